"""Teaching after a switch of the tokenizer: what it computes, from what, and what it costs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from lexfed.core.errors import ConfigError, DivergedError
from lexfed.core.seeds import Seed, derive, root, torch_generator
from lexfed.experiment import config
from lexfed.federation import ServerState
from lexfed.federation.server_optimizer import AVERAGE, released
from lexfed.language.language_task import TOKENIZER, LanguageTask, tokenizer_of
from lexfed.language.switching import TokenizerForFree, switched
from lexfed.language.teaching import Lesson, Written, read, schedule, taught
from lexfed.learning.task import Local
from lexfed.models import language_model as language
from lexfed.models.language_model import LanguageModelOptions, build, pad, score, windows
from lexfed.privacy.accounting import to_json
from lexfed.records.checkpoint import load
from lexfed.report import progress
from lexfed.vocabulary import learned
from lexfed.vocabulary.learned import TokenizerOptions
from tests.conftest import Lexfed

WORDS = [
    "the", "old", "boat", "sails", "home", "over", "a", "wide", "cold", "sea", "and", "nobody",
    "waits", "there", "any", "longer",
]  # fmt: skip
TEXTS = [[WORDS[(i * i + 3 * j) % len(WORDS)] for j in range(3 + i % 9)] for i in range(300)]
LESSON = Lesson(epochs=2, lr=5e-3, batch=8)
OPTIONS = TokenizerForFree(
    switch=(1,),
    sample_words=2000,
    sample_length=20,
    teach_words=2500,
    teach_targets="hard",
    teach_epochs=2,
    teach_lr=1e-2,
    teach_batch=16,
)


def task_of(name: str = "lstm") -> LanguageTask:
    options = language.LanguageModelOptions(
        name=name, layers=1, width=12, heads=2, context=8, tied=name == "lstm"
    )
    model = language.build(options)
    train = config.parse({"train": {"optimizer": "sgd", "lr": 1.0, "batch": 4}}).train
    return LanguageTask(model, 8, train, TokenizerOptions(lowercase=True), 1)


@cache
def of_the_boat(name: str) -> ServerState:
    """A model of the boat, with a tokenizer that has not seen it."""
    task = task_of(name)
    old = learned.learn([["history", "of", "the", "county", "in", "a", "war"]], "bpe", 290, "x")
    start = task.model.init(len(old.tokenizer.tokens), root(0))
    sequences = [old.tokenizer.sequence(text) for text in TEXTS]
    params = task.fit(start, sequences, Local(0.5, epochs=3), root(1)).params
    slots = {"m": {name: torch.randn(value.shape) for name, value in params.items()}}
    return ServerState(params=dict(params), opt_state=slots, blobs={TOKENIZER: old.to_bytes()})


# --- what it computes -----------------------------------------------------------------------------


def obvious_states(params: dict[str, Tensor], ids: list[int]) -> list[Tensor]:
    """An LSTM, one token after the other, by the textbook."""
    h = c = torch.zeros(12)
    states = []
    for token in ids:
        gates = (
            params["lstm.weight_ih_l0"] @ params["embedding.weight"][token]
            + params["lstm.bias_ih_l0"]
            + params["lstm.weight_hh_l0"] @ h
            + params["lstm.bias_hh_l0"]
        )
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return states


def obvious_logits(params: dict[str, Tensor], state: Tensor) -> Tensor:
    return params["embedding.weight"] @ state + params["output.bias"]


def obvious_loss(params: dict[str, Tensor], window: list[int]) -> Tensor:
    """Sum over a window."""
    loss = torch.zeros(())
    for state, after in zip(obvious_states(params, window[:-1]), window[1:], strict=True):
        loss = loss - torch.log_softmax(obvious_logits(params, state), 0)[after]
    return loss


def obvious_teaching(
    params: dict[str, Tensor], sequences: list[list[int]], context: int, lesson: Lesson, seed: Seed
) -> dict[str, Tensor]:
    windows = []
    for sequence in sequences:
        for start in range(0, len(sequence) - 1, context):
            windows.append(sequence[start : start + context + 1])
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=lesson.lr)
    per_epoch = -(-len(windows) // lesson.batch)
    steps, number = lesson.epochs * per_epoch, 0
    for epoch in range(lesson.epochs):
        generator = torch_generator(derive(seed, "epoch", epoch))
        order = torch.randperm(len(windows), generator=generator).tolist()
        for start in range(0, len(order), lesson.batch):
            some = [windows[i] for i in order[start : start + lesson.batch]]
            targets = sum(len(window) - 1 for window in some)
            loss = torch.stack([obvious_loss(leaves, window) for window in some]).sum() / targets
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            warm = min(50, steps // 10)
            rise = min(1.0, (number + 1) / warm) if warm else 1.0
            optimizer.param_groups[0]["lr"] = lesson.lr * rise * (1 - number / steps)
            optimizer.step()
            number += 1
    return {name: leaf.detach() for name, leaf in leaves.items()}


def test_teaching_is_the_obvious_loop() -> None:
    task = task_of()
    new = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    start = dict(task.model.init(len(new.tokens), root(3)))
    sequences = [new.sequence(text) for text in TEXTS[:60]]
    expected = obvious_teaching(start, sequences, 8, LESSON, root(4))
    texts = [Written(text, ended=True) for text in TEXTS[:60]]
    found = taught(task, start, texts, new, LESSON, root(4))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
        assert not torch.allclose(found[name], start[name], atol=1e-4), f"{name} has learned"


def test_the_rate_rises_and_falls_to_nothing() -> None:
    pace = [schedule(1000)(step) for step in range(1000)]
    assert pace[0] == pytest.approx(0.02)
    assert max(pace) == pace[49] == pytest.approx(0.951)
    assert pace[-1] == pytest.approx(0.001)
    assert [schedule(3)(step) for step in range(3)] == pytest.approx([1, 2 / 3, 1 / 3])


def test_texts_are_read_in_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same windows as all at once; of the texts only a few are held."""
    monkeypatch.setattr("lexfed.language.teaching.TOGETHER", 7)
    tokenizer = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    found = read((Written(text, ended=True) for text in TEXTS), tokenizer, 8)
    whole = pad(windows([tokenizer.sequence(text) for text in TEXTS], 8))
    assert torch.equal(found.lengths, whole.lengths)
    assert torch.equal(found.ids.long(), whole.ids)
    assert found.ids.element_size() == 4
    assert len(read([], tokenizer, 8)) == 0


def test_a_text_that_was_cut_does_not_teach_an_end() -> None:
    """Nor the last word, of which the rest may be missing."""
    tokenizer = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    words = ["the", "old", "bo"]
    cut, ended = (read([Written(words, end)], tokenizer, 8) for end in (False, True))
    assert ended.ids[0, : int(ended.lengths)].tolist() == tokenizer.sequence(words)
    assert cut.ids[0, : int(cut.lengths)].tolist() == tokenizer.sequence(words[:2])[:-1]
    assert len(read([Written(["bo"], ended=False)], tokenizer, 8)) == 0


# --- what it does ---------------------------------------------------------------------------------


def nll(task: LanguageTask, state: ServerState, texts: list[list[str]]) -> float:
    """Per word."""
    tokenizer = tokenizer_of(state).tokenizer
    scored = score(task.model, state.params, [tokenizer.sequence(words) for words in texts])
    return sum(float(one.nll.sum()) for one in scored) / sum(map(len, texts))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_taught_model_is_close_to_the_old_one_again(name: str) -> None:
    task, state = task_of(name), of_the_boat(name)
    plain = switched(task, replace(OPTIONS, teach_words=0), state, root(2))
    after = switched(task, OPTIONS, state, root(2))
    assert after.blobs == plain.blobs != state.blobs, "teaching is not asked for a tokenizer"
    old, bare, healed = (nll(task, one, TEXTS) for one in (state, plain, after))
    assert healed - old < 0.5 * (bare - old)
    again = switched(task, OPTIONS, state, root(2))
    assert all(torch.equal(value, again.params[name]) for name, value in after.params.items())


def test_the_control_is_taught_and_keeps_its_tokenizer() -> None:
    task, state = task_of(), of_the_boat("lstm")
    after = switched(task, replace(OPTIONS, new="same"), state, root(2))
    assert after.blobs == state.blobs
    assert after.opt_state == state.opt_state
    assert not torch.equal(after.params["output.bias"], state.params["output.bias"])
    few = replace(OPTIONS, new="same", teach_words=100)
    assert switched(task, replace(few, slots="reset"), state, root(2)).opt_state == {}


def test_teaching_moves_no_slot() -> None:
    task, state = task_of(), of_the_boat("lstm")
    plain = switched(task, replace(OPTIONS, teach_words=0), state, root(2))
    after = switched(task, replace(OPTIONS, teach_words=100), state, root(2))
    slots, same = plain.opt_state["m"], after.opt_state["m"]
    assert all(torch.equal(value, same[name]) for name, value in slots.items())


def test_a_mean_of_models_teaches_and_begins_anew() -> None:
    """What is scored after teaching is what was taught, not a mean of models before it."""
    task, state = task_of(), of_the_boat("lstm")
    few = replace(OPTIONS, teach_words=100, new="same")
    bare = {name: torch.zeros_like(value) for name, value in state.params.items()}
    averaged = replace(state, opt_state={**state.opt_state, AVERAGE: bare})
    after, same = (switched(task, few, one, root(2)) for one in (averaged, state))
    assert released(after.params, after.opt_state) is after.params
    assert "m" in after.opt_state
    assert not torch.equal(after.params["output.bias"], same.params["output.bias"]), (
        "the mean, which knows nothing here, has written the text"
    )


def test_a_model_says_which_rate_suits_it() -> None:
    """At the LSTM's a transformer's weights grow ninefold, and nobody teaches them back."""
    lstm, transformer = (build(LanguageModelOptions(name=n)) for n in ("lstm", "transformer"))
    rates = [OPTIONS.__class__(teach_words=1).lesson(model).lr for model in (lstm, transformer)]
    assert rates == [8e-3, 1e-3]
    assert replace(OPTIONS, teach_lr=2e-3).lesson(transformer).lr == 2e-3


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"teach_words": -1}, "teach_words must be at least 0"),
        ({"teach_words": 10, "teach_epochs": 0}, "teach_epochs, teach_batch and teach_lr"),
        ({"teach_words": 10, "teach_batch": 0}, "teach_epochs, teach_batch and teach_lr"),
        ({"teach_words": 10, "teach_lr": 0.0}, "teach_epochs, teach_batch and teach_lr"),
        ({"teach_words": 10, "protocol": "from_scratch"}, "is for protocol = 'continue'"),
        ({"new": "same"}, "needs teach_words above 0"),
        ({"new": "same", "teach_words": 10, "kind": "word"}, "and no kind"),
        ({"new": "other"}, "not known"),
        ({"heal": 1}, "has become teaching"),
        ({"teach_word": 1}, "did you mean 'teach_words'"),
    ],
)
def test_options_that_can_not_be_meant(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        config.parse({"method": "tokenizer_for_free", "tokenizer_for_free": settings})


def test_a_file_of_before_in_which_healing_was_off_is_read() -> None:
    table = {"heal": 0, "heal_lr": 2.0, "switch": [3]}
    found = config.parse({"method": "tokenizer_for_free", "tokenizer_for_free": table})
    assert found.tokenizer_for_free == TokenizerForFree(switch=(3,))


# --- in a run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    rows = [{"user": f"u{i % 30}", "text": " ".join(text)} for i, text in enumerate(TEXTS[:90])]
    (folder / "users.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    public = [{"text": " ".join(text[::-1])} for text in TEXTS[200:]]
    (folder / "public.jsonl").write_text("".join(json.dumps(row) + "\n" for row in public))
    (folder / "taught.toml").write_text(
        f"""
name = "taught"
rounds = 4
method = "tokenizer_for_free"
[data]
name = "{folder}/users.jsonl"
partition = "user"
clients = 24
unseen = 6
test = 0.0
validation = 0.0
[tokenizer]
size = 290
public = "{folder}/public.jsonl"
[language_model]
layers = 1
width = 8
context = 8
[tokenizer_for_free]
switch = [1, 3]
sample_words = 300
sample_length = 20
teach_words = 1000
teach_batch = 16
[cohort]
size = 6
sampling = "poisson"
[train]
optimizer = "sgd"
lr = 1.0
[privacy]
placement = "central"
noise = 0.5
clip = 0.5
accountant = "rdp"
"""
    )
    return folder / "taught.toml"


def run(lexfed: Lexfed, toml: Path, out: str, *settings: str) -> tuple[dict[str, Any], str]:
    words = [word for setting in settings for word in ("--set", setting)]
    result = lexfed("run", toml, "--out", out, *words)
    assert result.returncode == 0, result.stderr
    return json.loads((Path(out) / "summary.json").read_text()), result.stdout


def test_teaching_costs_no_privacy_and_is_announced(toml: Path, lexfed: Lexfed) -> None:
    """Several switches, each taught; one line before each."""
    taught, out = run(lexfed, toml, "a")
    plain, silent = run(lexfed, toml, "b", "tokenizer_for_free.teach_words=0")
    assert taught["tokenizer_switches"] == plain["tokenizer_switches"] == 2
    assert taught["ledger"] == plain["ledger"]
    assert taught["epsilon_this_run"] == plain["epsilon_this_run"] > 0
    line = "switching the tokenizer and teaching: 1,000 words of the model's own, read once"
    told = [text for text in out.splitlines() if "teaching" in text]
    assert told == [f"round {place}/4  {line}" for place in (1, 3)]
    assert "teaching" not in silent
    kept = load(Path("a/kept/000001")).state
    assert "switch@1" not in kept.done, "what a killed switch begins with again"


def test_a_run_that_is_killed_in_teaching_teaches_again(toml: Path, lexfed: Lexfed) -> None:
    slow = ("--set", "tokenizer_for_free.teach_words=8000", "--set", "rounds=2")
    slow += ("--set", "tokenizer_for_free.switch=[1]")
    command = [sys.executable, "-m", "lexfed.cli", "run", str(toml), "--out", "a", *slow]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "teaching" in line:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = load(Path("a/checkpoint")).state
    assert killed.round == 1
    assert "switch@1" not in killed.done, "it was killed before teaching was over"
    assert lexfed("run", "a", "--resume").returncode == 0
    assert lexfed("run", toml, "--out", "b", *slow).returncode == 0
    one, other = (load(Path(name) / "checkpoint").state for name in "ab")
    assert one.blobs == other.blobs
    assert to_json(one.ledger) == to_json(other.ledger)
    assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 1e38])
def test_nothing_is_sampled_from_a_model_that_left_the_numbers(broken: float) -> None:
    """It was an IndexError: index out of range."""
    task, state = task_of(), of_the_boat("lstm")
    params = {name: torch.full_like(value, broken) for name, value in state.params.items()}
    for options in (replace(OPTIONS, teach_words=0), replace(OPTIONS, new="same")):
        with pytest.raises(DivergedError, match="nothing can be sampled from it"):
            switched(task, options, replace(state, params=params), root(2))


@pytest.mark.parametrize("terminal", [True, False])
def test_what_the_server_has_done_by_itself_is_a_line(terminal: bool) -> None:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    progress.show(iter([progress.Happened(3, "the tokenizer was switched")]), 4, 3, console)
    assert "round 3/4  the tokenizer was switched\n" in file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_long_work_is_said_before_it_begins(terminal: bool) -> None:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)

    def events() -> progress.Events:
        yield progress.Ahead(3, "teaching: 5 words")
        time.sleep(0.3 * terminal)  # the bar is drawn ten times a second

    progress.show(events(), 4, 3, console)
    assert "teaching: 5 words" in file.getvalue()
