"""Runs with secure sums: the same model as without, whatever happens on the way, and what an
auditor sees of them.
"""

import json
import shutil
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lexfed.audits.cells import of_config
from lexfed.core.errors import PrivacyError
from lexfed.corpus.population import Client
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.federation import Answer, ClientState
from lexfed.records import checkpoint
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.secure.graph import CORRECTNESS, SECURITY, complete, degree, harary
from lexfed.secure.identity import Roster, read_identity, read_roster, write_identity, write_roster
from lexfed.secure.keys import public_identity, sign, signed
from lexfed.secure.remembered import Remembered
from lexfed.secure.secure_sum import NOT_OPENED, secured
from lexfed.secure.sessions import Sessions
from lexfed.wire import Message
from tests.conftest import ROOT, Lexfed, lexfed_process
from tests.unit.test_tokenizer_for_free import folder  # noqa: F401

SECURE = ("--set", "secure.sums=true", "--set", "evaluation.clients=3")
FEW = ("--set", "evaluation.clients=3")


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def model(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "artifacts/model.safetensors")


def alike(one: Path, other: Path, tolerance: float = 2e-5) -> bool:
    left, right = model(one), model(other)
    return all(torch.allclose(left[name], right[name], atol=tolerance) for name in left)


METHODS = ("fedavg", "fedevocab", "fedprox", "lg_fedavg", "fedrecon", "fedavg_finetune")


@pytest.mark.parametrize("method", METHODS)
def test_a_secure_run_is_the_plain_one_but_for_rounding(
    method: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    own = ("--set", f"method={method}", "--set", "cohort.size=4")
    plain = lexfed("run", tiny, "--out", "plain", *FEW, *own)
    secure = lexfed("run", tiny, "--out", "secure", *SECURE, *own)
    assert plain.returncode == secure.returncode == 0, secure.stderr
    assert alike(tmp_path / "plain", tmp_path / "secure")
    for key in ("global_accuracy", "local_accuracy", "macro_f1"):
        assert summary(tmp_path / "secure")[key] == pytest.approx(summary(tmp_path / "plain")[key])
    for line in records(tmp_path / "secure"):
        assert (line["clients"], line["refused"], line["cut"]) == (4, {}, 0)


def test_thirty_two_bits_are_enough_for_a_small_range(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    lexfed("run", tiny, "--out", "wide", *SECURE)
    narrow = ("--set", "secure.bits=32", "--set", "secure.range=64")
    assert lexfed("run", tiny, "--out", "narrow", *SECURE, *narrow).returncode == 0
    assert alike(tmp_path / "wide", tmp_path / "narrow", 1e-4)
    ups = [records(tmp_path / run)[0]["bytes_up"] for run in ("wide", "narrow")]
    assert ups[1] < ups[0]


def test_workers_make_the_same_bits(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    own = ("--set", "cohort.size=4")
    lexfed("run", tiny, "--out", "one", *SECURE, *own)
    assert lexfed("run", tiny, "--out", "two", *SECURE, *own, "--workers", "2").returncode == 0
    assert alike(tmp_path / "one", tmp_path / "two", 0.0)


def test_rounds_with_too_many_mishaps_fail_clean_and_the_run_goes_on(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    own = ("--set", "cohort.size=5", "--set", "cohort.dropout=0.1", "--set", "rounds=12")
    run = lexfed("run", tiny, "--out", "a", *SECURE, *own)
    assert run.returncode == 0, run.stderr
    reasons: Counter[str] = Counter()
    for line in records(tmp_path / "a"):
        reasons.update(line["refused"])
        opened = line["clients"] >= 4
        assert opened or line["clients"] == 0
        assert opened == ("too few stayed: the sum was not opened" not in line["refused"])
    assert reasons, "ten of a hundred exchanges fail"
    assert any(line["clients"] for line in records(tmp_path / "a"))


def test_language_models_and_sketches_add_up_securely(
    folder: Path,  # noqa: F811
    lexfed: Lexfed,
    tmp_path: Path,
) -> None:
    settings = ("--set", "rounds=3", "--set", "tokenizer.start=heavy_hitters")
    for out, secure in (("plain", "false"), ("secure", "true")):
        words = ("--set", f"secure.sums={secure}", "--set", "secure.least=2")
        run = lexfed("run", folder / "small.toml", "--out", out, *settings, *words)
        assert run.returncode == 0, run.stderr
    assert (tmp_path / "plain/artifacts/tokenizer.json").read_bytes() == (
        tmp_path / "secure/artifacts/tokenizer.json"
    ).read_bytes(), "the same sketch"
    figures = [summary(tmp_path / out)["word_perplexity"] for out in ("plain", "secure")]
    assert figures[1] == pytest.approx(figures[0], rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("aggregation.rule=median",), "a robust rule looks at single updates"),
        (("train.upload=int8",), "set train.upload = 'fp32'"),
        (("method=local_only",), "nothing is added up"),
        (("cohort.size=2",), "cohort.size is 2, and nobody takes part"),
        (("secure.threshold=0.4",), "secure.threshold must be above 0.5"),
        (("secure.bits=16",), "secure.bits must be 32 or 64"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    settings: tuple[str, ...], why: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    run = lexfed("run", tiny, "--out", "a", *SECURE, *words)
    assert run.returncode == 2
    assert why in run.stderr
    assert run.stderr.count("\n") <= 2
    assert not (tmp_path / "a").exists()


def test_a_fork_opens_no_sum_again(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """Of one clock and one model, two sums of other cohorts would tell a single client."""
    keep = ("--set", "keep=[1]", "--set", "cohort.size=4")
    assert lexfed("run", tiny, "--out", "a", *SECURE, *keep).returncode == 0
    more = ("--set", "rounds=5", "--set", "cohort.size=5")
    old = lexfed("run", tiny, "--from", "a/kept/000001", "--out", "b", *SECURE, *more)
    assert old.returncode == 2
    assert "no client opens a sum twice" in old.stderr
    assert lexfed("run", tiny, "--from", "a", "--out", "c", *SECURE, *more).returncode == 0
    assert [line["refused"] for line in records(tmp_path / "c")] == [{}] * 5
    opened = Sessions(tmp_path / "c/checkpoint/clients")
    assert max(opened.opened(client, "train")[0] for client in range(6)) > 3


def test_the_gate_sees_what_masks_will_hide(tiny: Path) -> None:
    """A method of one's own that sends a private table is stopped before it is masked."""
    config = configuration.load(
        tiny, ["method=fedevocab", "secure.sums=true", "evaluation.clients=3"]
    )
    assembly = assemble(config)
    (train,) = (verb for verb in assembly.method.client if verb.moves)

    def leak(message: Message, client: Client, state: ClientState) -> Answer:
        table = {"delta/embedding.weight": torch.zeros(2, 4), "weight": torch.tensor(1.0)}
        return Message(table), state

    bad = replace(assembly.method, client={**assembly.method.client, train: leak})
    site = site_of(replace(assembly, method=bad), Store(tiny.parent / "clients"))
    federation = secured(simulate(site), config.secure, site.population.pinned)
    model = Message(
        {"model/embedding.weight": torch.zeros(2, 4)},
        {"step": 1, "ask": 0, "round": 0, "most_texts": 10},
    )
    with pytest.raises(PrivacyError, match="nothing was sent"):
        federation.total(train, dict.fromkeys(range(4), model))


# --- what is on the wire -------------------------------------------------------------------------


def test_no_single_update_is_on_the_wire(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert lexfed("run", tiny, "--out", "a", *SECURE, "--record-wire", "wire").returncode == 0
    names = Counter()
    for path in (tmp_path / "wire").iterdir():
        if path.is_dir():
            about = json.loads((path / "meta.json").read_text())
            if about["direction"] == "up" and about["verb"] in ("train", "evaluate"):
                assert len(about["cohort"]) >= 3, "a sum"
            names[about["verb"], about["direction"]] += 1
    assert names["train-masked", "up"] == 9
    assert names["train", "up"] == 3
    audit = lexfed("audit", "wire", "--truth", "a", "--attack", "rows", "--out", "b")
    assert audit.returncode == 0, audit.stderr
    assert "each masked upload" in audit.stdout
    assert "the sum of 3 clients" in audit.stdout


@pytest.mark.parametrize("clients", [2, 10])
def test_the_span_attack_reads_nothing_behind_masks_and_the_words_of_all_in_the_sum(
    clients: int,
) -> None:
    """The pair: the same attack on the plain run reads them, and whose they are."""
    path = ROOT / "experiments/quick/audit.toml"
    settings = [
        "audit.methods=['fedevocab']", "audit.defences=['none']", "audit.sentences=[2]",
        f"audit.clients={clients}", "audit.attacks=['span', 'sentences']", "secure.least=2",
    ]  # fmt: skip
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for secure in ("false", "true"):
        config = configuration.load(path, [*settings, f"secure.sums={secure}"])
        found |= {(row["attack"], row["sees"]): row for row in of_config(config)}
    plain = found["span", None]
    masked = found["span", "each masked upload"]
    summed = found["span", f"the sum of {clients} clients"]
    assert plain["recall_at_n"] > 0.9
    assert masked["recall_at_n"] < 0.02
    least = 0.9 if clients == 2 else summed["prior_recall_at_n"] + 0.1
    assert summed["recall_at_n"] > least, "of everybody's words, though not whose"
    assert found["sentences", None]["auc"] > 0.95
    if clients == 10:  # masks are fresh each time: twenty sentences, a deviation of 0.065
        assert 0.2 < found["sentences", "each masked upload"]["auc"] < 0.8


# --- kills ---------------------------------------------------------------------------------------


def test_a_crash_between_a_sum_and_its_checkpoint_opens_nothing_twice(
    tiny: Path, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sum that the server had written down the round goes on as if nothing had been;
    without it the round is lost, because no client opens its sum again.
    """
    settings = (*SECURE, "--set", "cohort.size=4")
    assert lexfed("run", tiny, "--out", "whole", *settings).returncode == 0
    save = checkpoint.save

    def crash(target: Path, kept: checkpoint.Checkpoint) -> None:
        if kept.state.round == 2:
            raise OSError("no power")
        save(target, kept)

    for out in ("found", "lost"):
        monkeypatch.setattr(checkpoint, "save", crash)
        assert lexfed("run", tiny, "--out", out, *settings).returncode != 0
        monkeypatch.setattr(checkpoint, "save", save)
        if out == "lost":
            shutil.rmtree(tmp_path / out / "checkpoint/opened")
        assert lexfed("run", "--resume", out).returncode == 0
    assert alike(tmp_path / "whole", tmp_path / "found", 0.0)
    refused = [line["refused"] for line in records(tmp_path / "lost")]
    assert refused[1] == {"this sum was opened already": 4, NOT_OPENED: 1}
    assert refused[0] == refused[2] == {}


@pytest.mark.slow
def test_kills_never_open_a_sum_twice_and_lose_nothing(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = (*SECURE, "--set", "rounds=16", "--set", "cohort.size=4")
    assert lexfed("run", tiny, "--out", "whole", *settings).returncode == 0
    process = lexfed_process("run", tiny, "--out", "killed", *settings, cwd=tmp_path)
    for kill in range(2):
        wanted, deadline = 4 + 6 * kill, time.monotonic() + 120
        while time.monotonic() < deadline:
            path = tmp_path / "killed/rounds.jsonl"
            if path.exists() and len(path.read_text().splitlines()) >= wanted:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = lexfed_process("run", "--resume", "killed", cwd=tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert alike(tmp_path / "whole", tmp_path / "killed", 0.0)
    for line in records(tmp_path / "killed"):
        assert line["refused"] == {}, "the sum of a round that was killed is found again"
    sessions = Sessions(tmp_path / "killed/checkpoint/clients")
    assert max(sessions.opened(client, "train")[0] for client in range(6)) >= 16


def test_an_opened_sum_is_found_again_for_the_same_question_alone(tmp_path: Path) -> None:
    from lexfed.federation import Sum
    from lexfed.learning.training_verbs import TRAIN

    memory = Remembered(tmp_path / "opened")
    clock = {"step": 4, "ask": 0, "round": 3}
    asked = dict.fromkeys((1, 2, 3), Message({"model/w": torch.zeros(2)}, clock))
    total = Sum({"delta/w": torch.ones(2)}, 3, 10, Counter(a=1), 5, 1, (1, 2, 3))
    memory.keep(TRAIN, asked, total)
    found = memory.find(TRAIN, asked)
    assert found is not None
    assert torch.equal(found.update["delta/w"], torch.ones(2))  # type: ignore[arg-type]
    assert (found.members, found.refused, found.cut) == ((1, 2, 3), Counter(a=1), 1)
    other = dict.fromkeys((1, 2, 3), Message({"model/w": torch.ones(2)}, clock))
    assert memory.find(TRAIN, other) is None
    assert memory.find(TRAIN, {1: asked[1]}) is None
    later = dict.fromkeys((1, 2, 3), Message({"model/w": torch.zeros(2)}, {**clock, "step": 5}))
    memory.keep(TRAIN, later, total)
    assert memory.find(TRAIN, asked) is None, "its step was kept"


# --- who masks with whom -------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [101, 200, 1000])
def test_a_sparse_graph_is_as_safe_as_it_says(clients: int) -> None:
    """Its three chances again, by another way: sums of logarithms of factorials."""
    from math import ceil, exp, lgamma

    def choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    def tail(hits: int, draws: int, marked: int) -> float:
        few = range(hits, min(draws, marked) + 1)
        ways = (choose(marked, i) + choose(clients - marked, draws - i) for i in few)
        return sum(exp(way - choose(clients, draws)) for way in ways)

    found = degree(clients, 0.1, 0.1)
    assert found is not None
    k, t = found
    bad = ceil(0.1 * clients)
    assert 2 * t > k + 1
    assert clients * tail(t, k + 1, bad) <= SECURITY
    assert clients * tail(k + 2 - t, k + 1, bad) <= CORRECTNESS
    row = choose(clients - k // 2, 2 * bad - k // 2) - choose(clients, 2 * bad)
    assert clients * exp(row) <= SECURITY
    graph = harary(range(clients), k, t)
    assert all(len(group) == k + 1 for group in graph.neighbours.values())
    assert all(a in graph.neighbours[b] for a, group in graph.neighbours.items() for b in group)


@pytest.mark.parametrize("seed", range(5))
def test_survivors_stay_connected(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    k, t = degree(500, 0.1, 0.1) or (0, 0)
    graph = harary(range(500), k, t)
    gone = set(torch.randperm(500, generator=generator)[:100].tolist())
    left = set(range(500)) - gone
    reached, front = {min(left)}, [min(left)]
    while front:
        for peer in graph.neighbours[front.pop()]:
            if peer in left and peer not in reached:
                reached.add(peer)
                front.append(peer)
    assert reached == left
    stayed = set(range(500)) - set(list(gone)[:50])
    assert all(len(set(graph.neighbours[c]) & stayed) >= t for c in stayed)


def test_a_small_cohort_masks_with_everybody() -> None:
    assert complete([3, 1, 2], 2).neighbours == dict.fromkeys((1, 2, 3), (1, 2, 3))
    assert degree(8, 0.4, 0.4) is None


# --- who somebody is -----------------------------------------------------------------------------


def test_identities_and_peers_are_files(tmp_path: Path) -> None:
    identity = bytes(range(32))
    write_identity(tmp_path / "identity.pem", identity)
    assert (tmp_path / "identity.pem").stat().st_mode & 0o777 == 0o600
    assert read_identity(tmp_path / "identity.pem") == identity
    server = public_identity(bytes(32))
    write_roster(tmp_path / "peers.json", Roster({0: public_identity(identity)}, server))
    roster = read_roster(tmp_path / "peers.json")
    assert roster.server == server
    assert signed(roster.clients[0], sign(identity, b"text"), b"text")
    assert not signed(roster.clients[0], sign(identity, b"text"), b"other")


def test_what_is_wrong_with_such_files_is_one_line(tmp_path: Path) -> None:
    from lexfed.core.errors import ConfigError

    write_identity(tmp_path / "identity.pem", bytes(32))
    (tmp_path / "identity.pem").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        read_identity(tmp_path / "identity.pem")
    (tmp_path / "peers.json").write_text('{"1": "no key"}')
    with pytest.raises(ConfigError, match="no list of peers"):
        read_roster(tmp_path / "peers.json")
    key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    for wrong, why in [
        (f'{{"0": "{key}", "1": "{key}"}}', "one key twice"),
        (f'{{"1": "{key}"}}', "number the clients from 0"),
    ]:
        (tmp_path / "peers.json").write_text(wrong)
        with pytest.raises(ConfigError, match=why):
            read_roster(tmp_path / "peers.json")


# --- word vectors --------------------------------------------------------------------------------


@pytest.fixture
def organisations(tmp_path: Path) -> Path:
    """Four organisations with real text, and a small list."""
    path = tmp_path / "agreed.toml"
    path.write_text(
        """
name = "agreed"
rounds = 3
method = "federated_word2vec"
[data]
name = "rotten_tomatoes"
limit = 800
clients = 4
partition = "iid"
test = 0.05
test_of = "each"
[agreement]
minimum = 5
memory = 16
[word2vec]
dimension = 8
upload = "fp32"
baselines = false
[cohort]
sampling = "everyone"
"""
    )
    return path


def test_word_vectors_add_up_securely_over_rows_that_tell_of_nobody(
    organisations: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    trust = ("--set", "agreement.trust=nobody")
    plain = lexfed("run", organisations, "--out", "plain", *trust)
    assert plain.returncode == 0, plain.stderr
    losses, ups = {}, {}
    for rows in ("all", "held", "block"):
        settings = ("--set", "secure.sums=true", "--set", f"secure.rows={rows}")
        few = ("--set", "secure.block=200")
        run = lexfed("run", organisations, "--out", rows, *settings, *few)
        assert run.returncode == 0, run.stderr
        losses[rows] = summary(tmp_path / rows)["heldout_loss"]
        ups[rows] = records(tmp_path / rows)[-1]["bytes_up"]
    whole = summary(tmp_path / "plain")
    assert losses["all"] == pytest.approx(whole["heldout_loss"], abs=2e-3)
    assert losses["held"] == pytest.approx(whole["heldout_loss"], abs=0.05)
    assert losses["block"] < whole["untrained_heldout_loss"]
    assert ups["block"] < ups["held"] < ups["all"]
    assert records(tmp_path / "plain")[-1]["bytes_up"] < ups["all"]


def test_with_secure_sums_nobody_is_trusted_with_the_words_either(
    organisations: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    secure = ("--set", "secure.sums=true")
    assert configuration.load(organisations, ["secure.sums=true"]).agreement.trust == "nobody"
    refused = lexfed("run", organisations, "--out", "a", *secure, "--set", "agreement.trust=server")
    assert refused.returncode == 2
    assert "set agreement.trust = 'nobody'" in refused.stderr
    assert not (tmp_path / "a").exists()
