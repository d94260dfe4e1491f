"""Tokenizer for free: the switch, both protocols, forks, and what each costs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lexfed.core.figures import SUMMARY
from lexfed.core.seeds import root
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.experiment import config
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import Federation, Requests, ServerState
from lexfed.language.language_task import TOKENIZER, LanguageTask, tokenizer_of
from lexfed.language.switching import TokenizerForFree, switched
from lexfed.learning.task import Local
from lexfed.models import language_model as language
from lexfed.models.language_model import TOKEN_ROWS, score
from lexfed.records.checkpoint import load
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.vocabulary import learned, remap
from lexfed.vocabulary.learned import TokenizerOptions
from lexfed.vocabulary.splitting import words as split
from lexfed.wire import ClientId, Message, Verb
from tests.conftest import Lexfed
from tests.parity.test_workers import figures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty users with three real snippets each, and other snippets as public text; a
    configuration that takes a second.
    """
    folder = tmp_path_factory.mktemp("learned")
    texts = list(load_corpus("rotten_tomatoes"))
    users = [{"user": f"u{i % 40}", "text": texts[i]} for i in range(120)]
    public = [{"text": text} for text in texts[4000:4400]]
    for name, rows in (("users", users), ("public", public)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "small.toml").write_text(
        f"""
name = "small"
rounds = 4
method = "tokenizer_for_free"
[data]
name = "{folder}/users.jsonl"
partition = "user"
clients = 32
unseen = 8
test = 0.0
validation = 0.0
[tokenizer]
size = 400
public = "{folder}/public.jsonl"
[language_model]
layers = 1
width = 12
context = 16
[tokenizer_for_free]
switch = [2]
sample_words = 500
[cohort]
size = 6
sampling = "poisson"
[train]
optimizer = "sgd"
lr = 1.0
batch = 8
[evaluation]
every = 1
clients = 3
[privacy]
placement = "central"
noise = 0.5
clip = 0.5
accountant = "rdp"
"""
    )
    return folder


def run(
    lexfed: Lexfed, folder: Path, out: str, *settings: str, more: tuple[object, ...] = ()
) -> dict[str, Any]:
    words = [word for setting in settings for word in ("--set", setting)]
    result = lexfed("run", folder / "small.toml", "--out", out, *words, *more)
    assert result.returncode == 0, result.stderr
    summary: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return summary


def test_a_run_with_a_switch_keeps_the_contract(
    folder: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    result = lexfed("run", folder / "small.toml", "--out", "a")
    summary = json.loads(Path("a/summary.json").read_text())
    (said,) = [line for line in result.stdout.splitlines() if "switched" in line]
    assert said == "round 2/4  the tokenizer was switched: 400 tokens before, 400 now"
    assert list(summary) == list(SUMMARY)
    assert summary["tokenizer_switches"] == 1
    assert summary["test_users"] == 8
    assert summary["before_switch"]["round"] == summary["after_switch"]["round"] == 2
    assert summary["before_switch"]["tokens_per_word"] != summary["after_switch"]["tokens_per_word"]
    for key in (
        "word_perplexity",
        "word_accuracy",
        "tokens_per_word",
        "oov_rate",
        "unigram_kld",
        "worst_tenth_perplexity",
    ):
        assert summary[key] is not None
        assert summary["before_switch"][key] is not None
    assert summary["oov_rate"] == 0, "bytes know no unknown word"
    records = [json.loads(line) for line in (tmp_path / "a/rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 2, 3, 4], (
        "the switch has a line of its own"
    )
    assert all(record["ledger"] for record in records)
    tokenizer = learned.opened((tmp_path / "a/artifacts/tokenizer.json").read_bytes())
    assert len(tokenizer.tokens) == 400
    assert "The switch of the tokenizer" in (tmp_path / "a/report.html").read_text()


def test_the_saved_tokenizer_is_one_that_transformers_loads(
    folder: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    run(lexfed, folder, "a")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "a/artifacts/tokenizer.json"))
    ours = learned.opened((tmp_path / "a/artifacts/tokenizer.json").read_bytes())
    assert theirs("an unusual film", add_special_tokens=False)["input_ids"] == ours.encode(
        "an unusual film"
    )


def test_a_switch_costs_no_privacy(folder: Path, lexfed: Lexfed) -> None:
    switching, staying = (
        run(lexfed, folder, "a"),
        run(lexfed, folder, "b", "tokenizer_for_free.switch=[]"),
    )
    assert switching["epsilon_this_run"] == staying["epsilon_this_run"] > 0
    assert switching["ledger"] == staying["ledger"]
    assert staying["before_switch"] is None


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bits(
    folder: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    run(lexfed, folder, "a")
    run(lexfed, folder, "b", more=("--workers", 2))
    assert figures(tmp_path / "a") == figures(tmp_path / "b")


def test_a_fork_from_a_kept_round_is_the_run_that_switched_there(
    folder: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """Without noise, bit for bit; with noise, a fork has its own (`test_promises.py`)."""
    bare = ("privacy.placement=none",)
    run(lexfed, folder, "base", "tokenizer_for_free.switch=[]", "keep=[2]", *bare)
    run(lexfed, folder, "whole", *bare)
    run(lexfed, folder, "fork", *bare, more=("--from", "base/kept/000002"))
    assert figures(tmp_path / "fork") == figures(tmp_path / "whole")
    refused = lexfed(
        "run",
        folder / "small.toml",
        "--out",
        "no",
        "--from",
        "base/kept/000002",
        "--set",
        "tokenizer.size=401",
    )
    assert refused.returncode == 2
    assert "tokenizer.size differs" in refused.stderr


# --- what the switch reads


def served(folder: Path, *settings: str) -> tuple[Assembly, Federation]:
    assembly = assemble(config.load(folder / "small.toml", settings))
    return assembly, simulate(site_of(assembly, Store(folder / "nowhere")))


def poisoned(federation: Federation) -> Federation:
    """Users that must not be asked."""

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        raise AssertionError("a user was asked")

    def total(verb: Verb, requests: Requests) -> Any:
        raise AssertionError("users were asked")

    return Federation(federation.clients, ask, total)


def test_the_switch_asks_no_user(folder: Path) -> None:
    assembly, federation = served(folder)
    steps = assembly.method.server(federation, root(0), ServerState())
    before = next(state for state in steps if state.round == 2)
    after = next(assembly.method.server(poisoned(federation), root(0), before))
    assert "switch@2" in after.done
    assert after.blobs.keys() == before.blobs.keys() == {TOKENIZER}
    assert after.blobs != before.blobs
    with pytest.raises(
        AssertionError, match="users were asked"
    ):  # the pair: the round after it does
        next(assembly.method.server(poisoned(federation), root(0), after))


def test_the_switch_is_the_same_whoever_the_users_are(folder: Path, tmp_path: Path) -> None:
    """From the same model, with users whose text is another: the same tokenizer, the same rows,
    bit for bit.
    """
    assembly, federation = served(folder)
    before = next(
        state
        for state in assembly.method.server(federation, root(0), ServerState())
        if state.round == 2
    )
    others = [{"user": f"v{i}", "text": f"quite another text {i}"} for i in range(40)]
    (tmp_path / "others.jsonl").write_text("".join(json.dumps(row) + "\n" for row in others))
    elsewhere, strangers = served(folder, f"data.name={tmp_path}/others.jsonl")
    one = next(assembly.method.server(federation, root(0), before))
    other = next(elsewhere.method.server(strangers, root(0), before))
    assert one.blobs == other.blobs
    assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())


# --- what the switch does to a model that has learned something


@pytest.fixture(scope="module")
def fitted() -> tuple[LanguageTask, ServerState, list[list[str]]]:
    """A small model of real snippets, with a tokenizer of other text; and snippets it has not
    seen.
    """
    texts = [split(text, True, "single") for text in load_corpus("rotten_tomatoes")]
    options = config.parse({"train": {"optimizer": "adam", "lr": 1e-2, "batch": 32}}).train
    model = language.build(language.LanguageModelOptions(layers=1, width=48, context=32))
    task = LanguageTask(model, 32, options, TokenizerOptions(lowercase=True), 1)
    wiki = [
        f"the history of the county and its {word} between {i} and {i + 10}".split()
        for i, word in enumerate("abcde")
    ]
    old = learned.learn(wiki * 40 + texts[3000:3100], "bpe", 500, "public")
    sequences = [old.tokenizer.sequence(words) for words in texts[:1500]]
    params = task.fit(model.init(500, root(0)), sequences, Local(1e-2, epochs=2), root(1)).params
    slots = {"m": {name: torch.randn(value.shape) for name, value in params.items()}}
    state = ServerState(params=params, opt_state=slots, blobs={TOKENIZER: old.to_bytes()})
    return task, state, texts[1500:1600]


def perplexity(task: LanguageTask, state: ServerState, texts: list[list[str]]) -> float:
    tokenizer = tokenizer_of(state).tokenizer
    scored = score(task.model, state.params, [tokenizer.sequence(words) for words in texts])
    return float(torch.exp(sum(one.nll.double().sum() for one in scored) / sum(map(len, texts))))  # type: ignore[arg-type]


FITTED = tuple[LanguageTask, ServerState, list[list[str]]]
OPTIONS = TokenizerForFree(switch=(1,), sample_words=8000, sample_length=40)


def test_right_after_the_switch_mean_rows_beat_random_ones(fitted: FITTED) -> None:
    task, state, texts = fitted
    before = perplexity(task, state, texts)
    after = {
        rows: perplexity(task, switched(task, replace(OPTIONS, rows=rows), state, root(2)), texts)  # type: ignore[arg-type]
        for rows in ("mean", "random")
    }
    teaching = replace(OPTIONS, teach_words=8000, teach_epochs=1, teach_lr=5e-3, teach_batch=32)
    taught = perplexity(task, switched(task, teaching, state, root(2)), texts)
    assert before < after["mean"] < after["random"]
    assert taught < after["mean"], "and what the old model writes mends what the means could not"


def test_a_bias_that_is_calibrated_on_the_sample_beats_the_mean_of_pieces(fitted: FITTED) -> None:
    task, state, texts = fitted
    scores = [
        perplexity(task, switched(task, replace(OPTIONS, bias=bias), state, root(2)), texts)  # type: ignore[arg-type]
        for bias in ("mean", "calibrated")
    ]
    assert scores[1] < scores[0]


def test_rows_and_slots_go_with_their_tokens(fitted: FITTED) -> None:
    task, state, _ = fitted
    after = switched(task, replace(OPTIONS, bias="mean"), state, root(2))
    old, new = (tokenizer_of(s).tokenizer for s in (state, after))
    kept = [
        (new.tokens.index(token), old.tokens.index(token))
        for token in new.tokens
        if token in old.tokens
    ]
    assert 100 < len(kept) < len(new.tokens)
    for name in TOKEN_ROWS:
        if name in state.params:
            for to, fro in kept:
                assert torch.equal(after.params[name][to], state.params[name][fro])
                assert torch.equal(after.opt_state["m"][name][to], state.opt_state["m"][name][fro])
    pieces = remap.pieces(new, old)
    fresh = next(place for place, parts in enumerate(pieces) if len(parts) > 1)
    table = state.params["embedding.weight"]
    assert torch.allclose(
        after.params["embedding.weight"][fresh],
        torch.stack([table[p] for p in pieces[fresh]]).mean(0),
    )
    for name in state.params.keys() - set(TOKEN_ROWS):
        assert torch.equal(after.params[name], state.params[name]), (
            "what has no row per token stays"
        )
    assert switched(task, replace(OPTIONS, slots="reset"), state, root(2)).opt_state == {}


# --- the other protocol, and the other tokenizers


def asked(folder: Path, lexfed: Lexfed, out: str, *settings: str) -> list[list[int]]:
    """Which users trained, round by round, read from the recorded wire."""
    run(lexfed, folder, out, *settings, more=("--record-wire", f"{out}-wire"))
    rounds: dict[int, list[int]] = {}
    for path in sorted(Path(f"{out}-wire").glob("*-train-*-down/meta.json")):
        meta = json.loads(path.read_text())
        rounds.setdefault(meta["round"], []).append(meta["client"])
    return [sorted(rounds.get(number, [])) for number in range(max(rounds) + 1)]


def test_from_scratch_trains_on_the_second_half_with_the_cohorts_of_the_other_rows(
    folder: Path, lexfed: Lexfed
) -> None:
    protocol = "tokenizer_for_free.protocol=from_scratch"
    sampled = asked(folder, lexfed, "sampled", protocol, "rounds=5", "evaluation.every=0")
    wiki = asked(
        folder,
        lexfed,
        "wiki",
        protocol,
        "tokenizer_for_free.switch=[]",
        "rounds=3",
        "evaluation.every=0",
    )
    assert all(user < 16 for cohort in sampled[:2] for user in cohort)
    assert all(user >= 16 for cohort in sampled[2:] for user in cohort)
    assert sampled[2:] == wiki
    assert [[user + 16 for user in cohort] for cohort in sampled[:2]] != wiki[:2], (
        "the halves draw apart"
    )
    summary = json.loads(Path("sampled/summary.json").read_text())
    assert {entry["group"]: entry["count"] for entry in summary["ledger"]} == {
        "half 1": 2,
        "half 2": 3,
    }
    other = json.loads(Path("wiki/summary.json").read_text())
    assert summary["epsilon_this_run"] == other["epsilon_this_run"], (
        "nobody is in both halves: the dearer half is paid"
    )


@pytest.mark.parametrize("start", ["oracle", "heavy_hitters"])
@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_other_first_tokenizers(start: str, kind: str, folder: Path, lexfed: Lexfed) -> None:
    size = "tokenizer.size=300"
    summary = run(
        lexfed, folder, "a", f"tokenizer.start={start}", f"tokenizer.kind={kind}", "rounds=3", size
    )
    assert summary["tokenizer_switches"] == 1
    assert (summary["oov_rate"] > 0) == (kind == "word")
    pure = [entry for entry in summary["ledger"] if entry["event"] == "pure"]
    assert [entry["epsilon"] for entry in pure] == ([24.0] if start == "heavy_hitters" else []), (
        "three words of epsilon 8"
    )


def test_a_tokenizer_from_a_file(folder: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    run(lexfed, folder, "a", "rounds=3")
    again = run(
        lexfed,
        folder,
        "b",
        "tokenizer.start=a/artifacts/tokenizer.json",
        "tokenizer_for_free.switch=[]",
    )
    assert again["tokenizer_switches"] == 0
    assert (tmp_path / "a/artifacts/tokenizer.json").read_bytes() == (
        tmp_path / "b/artifacts/tokenizer.json"
    ).read_bytes()


def test_a_budget_ends_training_and_the_model_is_scored(folder: Path, lexfed: Lexfed) -> None:
    short = run(
        lexfed,
        folder,
        "a",
        "rounds=200",
        "tokenizer_for_free.switch=[]",
        "privacy.noise=1.0",
        "privacy.epsilon=8.0",
    )
    assert short["stopped"] == "budget"
    assert "epsilon of 8" in short["reason"]
    assert 0 < short["rounds"] < 200
    assert 0 < short["epsilon_this_run"] <= 8
    assert short["test_users"] == 8


def test_training_on_without_state_is_training_on(
    folder: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    run(lexfed, folder, "a", "rounds=3")
    assert lexfed("run", "a", "--resume", "--set", "rounds=4").returncode == 0
    run(lexfed, folder, "b", "rounds=4")
    assert (
        load(tmp_path / "a/checkpoint").state.ledger == load(tmp_path / "b/checkpoint").state.ledger
    )
    weights = [(tmp_path / name / "artifacts/model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["tokenizer_for_free.switch=[4]"], "there are 4 rounds"),
        (["data.unseen=0"], "data.unseen"),
        (["tokenizer.start=nothing.json"], "no file and no source"),
        (["cohort.sampling=fixed"], "poisson"),
        (
            ["tokenizer_for_free.protocol=from_scratch", "tokenizer_for_free.switch=[1,2]"],
            "one switch",
        ),
        (["tokenizer.start=heavy_hitters", "heavy_hitters.by=triehh"], "too few"),
        (["train.upload=int8"], "fp32"),
        (["tokenizer.size=100"], "at least 260"),
    ],
)
def test_settings_that_can_not_be_meant(
    settings: list[str], line: str, folder: Path, lexfed: Lexfed
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    result = lexfed("run", folder / "small.toml", "--out", "a", *words)
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_user_is_read_once_for_all_its_rounds(folder: Path, monkeypatch: Any) -> None:
    """And again for another tokenizer; another user's texts are never taken for its own."""
    assembly = assemble(config.load(folder / "small.toml", []))
    task = LanguageTask(
        language.build(assembly.config.language_model),
        16,
        assembly.config.train,
        assembly.config.tokenizer,
        4,
    )
    read: list[int] = []

    def counted(corpus: Any, options: TokenizerOptions) -> Any:
        read.append(len(corpus))
        return learned.texts_of(corpus, options)

    monkeypatch.setattr("lexfed.language.language_task.texts_of", counted)
    one, other = (
        learned.learn([[f"w{i}" for i in range(n)]], "bpe", 300, "test").data for n in (5, 50)
    )
    people = assembly.population
    first = [task.read(people.client(0).train, one) for _ in range(3)]
    assert first[0] is not None
    assert first[0] is first[1] is first[2]
    assert len(read) == 1
    assert task.read(people.client(1).train, one) is not first[0]
    assert task.read(people.client(0).train, other) is not first[0]
    assert len(read) == 3
