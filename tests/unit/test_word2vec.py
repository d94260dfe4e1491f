"""Federated Word2Vec: the paper's algorithm step for step, sparse transport, rules, resuming, hard
cases, artefacts.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors
from torch import Tensor

from lexfed.core.params import Rows, Update
from lexfed.core.seeds import derive, root
from lexfed.experiment import config
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import ClientState, Federation, Replies, Requests, ServerState, Sum, plain
from lexfed.models.skipgram import INPUT, OUTPUT, unigrams
from lexfed.privacy.mechanism import Asked
from lexfed.records.checkpoint import load as load_checkpoint
from lexfed.runs import session
from lexfed.runtime.simulation import Site, simulate, site_of
from lexfed.runtime.store import Store
from lexfed.runtime.threads import threads
from lexfed.vocabulary.export import read_tables
from lexfed.wire import ClientId, Message, Verb, decode, encode
from lexfed.word2vec.passes import draw_batch, heldout_pairs
from lexfed.word2vec.replica import UNKNOWN, VOCABULARY, first_tables, tables_of, version_of
from lexfed.word2vec.row_rules import VERSION, RowRule, RowStep, changed_since, start
from lexfed.word2vec.study import VectorStudy
from lexfed.word2vec.vector_verbs import SKIPGRAM
from tests.conftest import Lexfed
from tests.unit.test_skipgram import dense_loss

WORDS = """the cat sat on a mat while two dogs ran over hills and far away under old grey stones by river""".split()  # noqa: SIM905


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three organisations, each with words of its own beside the common ones."""
    return written(tmp_path, 3)


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """Twice as many."""
    return written(tmp_path, 6)


def written(tmp_path: Path, organisations: int) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(30 * organisations):
        source = number % organisations
        own = [f"only{source}word{i}" for i in range(4)]
        text = " ".join(rng.choice([*WORDS, *own], 60))
        rows.append({"text": text, "source": f"s{source}"})
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    toml = tmp_path / "words.toml"
    toml.write_text(
        f"""
name = "words"
rounds = 4
method = "federated_word2vec"
[data]
name = "{path}"
clients = {organisations}
partition = "source"
test = 0.1
test_of = "each"
[agreement]
minimum = 3
[word2vec]
dimension = 8
heldout_pairs = 500
queries = ["cat", "nowhere"]
[cohort]
sampling = "everyone"
"""
    )
    return toml


def states(assembly: Assembly, folder: Path) -> list[ServerState]:
    return run(assembly, simulate(site_of(assembly, Store(folder))))


def run(assembly: Assembly, federation: Federation) -> list[ServerState]:
    server = assembly.method.server(federation, root(0), ServerState())
    # a state's tables are changed in place by the next step: what is compared must be copied
    return [replace(s, params={n: t.clone() for n, t in s.params.items()}) for s in server]


def built(toml: Path, *settings: str) -> Assembly:
    return assemble(config.load(toml, settings))


def study(assembly: Assembly) -> VectorStudy:
    assert isinstance(assembly.method.study, VectorStudy)
    return assembly.method.study


def begun(assembly: Assembly, state: ServerState) -> ClientState:
    """What an organisation holds before the first round."""
    return study(assembly).replicas.first(state.blobs[VOCABULARY])


def equal(one: ServerState, other: ServerState) -> bool:
    return all(torch.equal(one.params[name], other.params[name]) for name in (INPUT, OUTPUT))


LATER = (10**6, 0)  # behind every step


def test_what_an_organisation_remembers_of_the_agreement_stays(
    corpus: Path, tmp_path: Path
) -> None:
    states(built(corpus, "rounds=2"), tmp_path / "s")
    for client in range(3):
        kept = Store(tmp_path / "s").load(client, LATER).blobs
        assert kept.keys() == {"agreements", "version", "list"}


PAPER = ("word2vec.mode=fedsgd", "word2vec.rule=mean", "word2vec.upload=fp32", "agreement.rule=union", "word2vec.steps=3",
         "word2vec.batch=256", "word2vec.shared=16", "word2vec.negatives=16", "word2vec.subsample=0.0", "rounds=2",
         "word2vec.lr=0.01")  # fmt: skip


def test_the_papers_mode_equals_dense_fedsgd_step_for_step(corpus: Path, tmp_path: Path) -> None:
    assembly = built(corpus, *PAPER)
    after = states(assembly, tmp_path / "a")
    readings, replica = study(assembly).readings, begun(assembly, after[-1])
    size = len(readings.vocabulary(replica))
    tables = {name: table.clone().requires_grad_() for name, table in first_tables(size, 8).items()}
    people = assembly.population
    for number in range(2):
        step = after[1 + number].step  # the clock of the requests of this round
        for ask in range(3):
            grads: list[dict[str, Tensor]] = []
            for client in map(people.client, range(3)):
                seed = derive(client.secret, "train", step, ask)
                text = readings.text(replica, client, "train", client.train)
                frequencies = readings.frequencies(replica, client)
                batch = draw_batch(text, frequencies, assembly.config.word2vec, seed)
                loss = dense_loss(tables, batch, 1.0)
                grads.append(
                    dict(zip(tables, torch.autograd.grad(loss, list(tables.values())), strict=True))
                )
            lr = 0.01 * (1 - number / 2)
            with torch.no_grad():
                for (
                    name,
                    table,
                ) in tables.items():  # the mean over all organisations, whoever touched the row
                    table -= lr * sum(grad[name] for grad in grads) / 3  # type: ignore[arg-type]
        kept = after[2 + number].params
        for name, table in tables.items():
            torch.testing.assert_close(kept[name], table.detach(), atol=1e-6, rtol=1e-5)


def test_sparse_and_dense_transport_give_the_same_model(corpus: Path, tmp_path: Path) -> None:
    """A replica that is only ever sent rows holds, bit for bit, the server's tables."""
    last = states(built(corpus), tmp_path / "a")[-1]
    for replica in (Store(tmp_path / "a").load(client, LATER) for client in range(3)):
        assert version_of(replica) == int(last.mechanism_state[VERSION]) - 1, "of the last request"
        missing = changed_since(last.params, last.mechanism_state, version_of(replica))
        for name, rows in missing.items():
            table = replica.held[name].clone()
            assert not torch.equal(table, last.params[name])
            table[rows.ids] = rows.values
            assert torch.equal(table, last.params[name])
            assert 0 < len(rows.ids) <= len(last.params[name])


@pytest.mark.parametrize("mode", ["fedavg", "fedsgd"])
def test_threads_change_no_bit(corpus: Path, tmp_path: Path, mode: str) -> None:
    def run(count: int) -> ServerState:
        rule = "add_rare" if mode == "fedavg" else "row_cap"
        assembly = built(
            corpus, f"word2vec.mode={mode}", "word2vec.steps=5", f"word2vec.rule={rule}"
        )
        site = site_of(assembly, Store(tmp_path / str(count)))
        if not count:
            return list(assembly.method.server(simulate(site), root(0), ServerState()))[-1]
        with threads(site, count) as federation:
            return list(assembly.method.server(federation, root(0), ServerState()))[-1]

    alone, pool = run(0), run(3)
    assert equal(alone, pool)
    for client in range(3):
        one, other = (Store(tmp_path / str(count)).load(client, LATER) for count in (0, 3))
        assert one.blobs == other.blobs
        assert all(torch.equal(one.held[name], other.held[name]) for name in (INPUT, OUTPUT))


def test_a_run_equals_its_bare_program_and_every_replica_the_server(
    corpus: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert lexfed("run", str(corpus), "--out", str(tmp_path / "run")).returncode == 0
    kept = load_checkpoint(tmp_path / "run" / "checkpoint").state
    assembly, store = built(corpus), Store(tmp_path / "s")
    program = assembly.method.server(
        simulate(site_of(assembly, store)), derive(root(0), "server"), ServerState()
    )
    for bare in program:
        if bare.round == 3:  # what the last request brings to every replica
            third = {name: table.clone() for name, table in bare.params.items()}
    assert equal(kept, bare)
    for folder in (store, Store(tmp_path / "run" / "checkpoint" / "clients")):
        replicas = [folder.load(client, LATER) for client in range(3)]
        assert all(torch.equal(r.held[n], third[n]) for r in replicas for n in (INPUT, OUTPUT))
        assert all(replica.held is replicas[0].held for replica in replicas), "held once"
        files = folder.root.glob(f"*/held-{bare.step - 1:08d}-*.safetensors")
        assert {path.stat().st_nlink for path in files} == {3}, "and written once"
        tables = tables_of(replicas[0])
        assert not any(np.shares_memory(tables[n], bare.params[n].numpy()) for n in tables)


def apart(toml: Path, folder: Path, *settings: str) -> Federation:
    """Every organisation with a method and a store of its own: all that passes between is bytes."""
    count = config.load(toml, settings).data.clients
    sites = [site_of(built(toml, *settings), Store(folder / str(k))) for k in range(count)]

    def ask(verb: Verb, requests: Requests) -> Replies:
        for client, message in requests.items():
            reply = sites[client].answer(verb, client, decode(encode(message)))
            if reply is not None:
                yield client, decode(encode(reply))

    return Federation(range(count), ask, plain(ask))


FEDSGD = ("word2vec.mode=fedsgd", "word2vec.rule=row_cap", "word2vec.steps=4")
FOUR = ("cohort.sampling=fixed", "cohort.size=4")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        FOUR,
        ("cohort.dropout=0.4",),
        ("cohort.lost=0.4",),
        ("cohort.stale=0.4",),
        FEDSGD,
        (*FEDSGD, *FOUR),
        (*FEDSGD, "cohort.stale=0.3"),
    ],
)
def test_organisations_that_share_tables_equal_those_on_machines_of_their_own(
    settings: tuple[str, ...], six: Path, tmp_path: Path
) -> None:
    settings = (*settings, "rounds=6")
    together = states(built(six, *settings), tmp_path / "a")[-1]
    alone = run(built(six, *settings), apart(six, tmp_path / "b", *settings))[-1]
    assert equal(together, alone)
    for client in range(6):
        one = Store(tmp_path / "a").load(client, LATER)
        other = Store(tmp_path / "b" / str(client)).load(client, LATER)
        assert one.blobs == other.blobs
        assert one.held.keys() == other.held.keys()
        assert all(torch.equal(one.held[name], other.held[name]) for name in one.held)


@pytest.mark.parametrize("settings", [FOUR, (*FEDSGD, *FOUR)])
def test_who_is_asked_follows_every_step(
    settings: tuple[str, ...], six: Path, tmp_path: Path
) -> None:
    """A cohort whose members were away for different times: nobody falls behind within a round."""
    assembly, answered = built(six, *settings, "rounds=6"), []
    federation = simulate(site_of(assembly, Store(tmp_path / "s")))

    def total(verb: Verb, requests: Requests) -> Sum:
        result = federation.total(verb, requests)
        answered.append((len(requests), result.clients))
        return result

    run(assembly, replace(federation, total=total))
    assert set(answered) == {(4, 4)}


def test_who_was_away_is_scored_on_the_tables_of_today(corpus: Path, tmp_path: Path) -> None:
    settings = ("cohort.sampling=fixed", "cohort.size=1", "rounds=2")
    assembly, store = built(corpus, *settings), Store(tmp_path / "s")
    federation = simulate(site_of(assembly, store))
    last = run(assembly, federation)[-1]
    versions = [version_of(store.load(client, LATER)) for client in range(3)]
    assert sorted(versions) == [UNKNOWN, 0, 1], "one was never there, one in each round"
    readings, options = study(assembly).readings, assembly.config.word2vec
    tables = {name: table.numpy() for name, table in last.params.items()}
    clients = [assembly.population.client(number) for number in range(3)]
    pairs = [heldout_pairs(readings, begun(assembly, last), client, options) for client in clients]
    figures = study(assembly)._heldout(federation, last)
    assert figures == [(one.loss(tables), len(one.centres)) for one in pairs]
    kept = [version_of(store.load(client, LATER)) for client in range(3)]
    assert kept == versions, "who is scored keeps what it held"


def same_records(one: Path, other: Path) -> None:
    states = (load_checkpoint(folder / "checkpoint").state for folder in (one, other))
    assert equal(*states)
    lines = [(folder / "rounds.jsonl").read_text().splitlines() for folder in (one, other)]
    for left, right in zip(*lines, strict=True):
        a, b = json.loads(left), json.loads(right)
        for key in ("bytes_up", "bytes_down", "loss", "metrics"):
            assert a[key] == b[key]


def test_a_resumed_run_ends_with_the_same_bits_and_bytes(
    corpus: Path, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lexfed("run", str(corpus), "--out", str(tmp_path / "whole")).returncode == 0
    record = session.Server._record

    def interrupted(server: session.Server) -> Any:
        if server.state.round == 3:  # the state of round 3 is kept, its record is not yet written
            raise KeyboardInterrupt
        return record(server)

    monkeypatch.setattr(session.Server, "_record", interrupted)
    assert lexfed("run", str(corpus), "--out", str(tmp_path / "cut")).returncode == 130
    monkeypatch.setattr(session.Server, "_record", record)
    resumed = lexfed("run", str(tmp_path / "cut"), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    same_records(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("settings", [(), FEDSGD])
def test_a_round_that_was_cut_short_is_repeated_with_the_same_bits_and_bytes(
    settings: tuple[str, ...],
    corpus: Path,
    lexfed: Lexfed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed while the last organisation is asked: the others hold newer tables already."""
    words = [word for setting in settings for word in ("--set", setting)]
    whole = lexfed("run", str(corpus), "--out", str(tmp_path / "whole"), *words)
    assert whole.returncode == 0, whole.stderr
    answer, asks = Site.answer, 4 if settings else 1

    def interrupted(site: Site, verb: Verb, client: ClientId, message: Message) -> Message | None:
        place = (message.meta["round"], message.meta["ask"], client)
        if verb is SKIPGRAM and place == (2, asks - 1, 2):
            raise KeyboardInterrupt
        return answer(site, verb, client, message)

    monkeypatch.setattr(Site, "answer", interrupted)
    cut = lexfed("run", str(corpus), "--out", str(tmp_path / "cut"), *words)
    assert cut.returncode == 130
    store = Store(tmp_path / "cut" / "checkpoint" / "clients")
    held = [version_of(store.load(client, LATER)) for client in range(3)]
    assert held[0] == held[1] > held[2]
    monkeypatch.setattr(Site, "answer", answer)
    resumed = lexfed("run", str(tmp_path / "cut"), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    same_records(tmp_path / "whole", tmp_path / "cut")


def rows(values: list[list[float]], counts: list[int], nodes: list[int]) -> Rows:
    table = torch.tensor(values)
    return Rows(torch.arange(len(values)), table, None, torch.tensor(counts), torch.tensor(nodes))


EXCHANGE = Asked(range(4), 4, 4, {})


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mean", [8 / 4, 8 / 4, 8 / 4]),  # by all that took part
        ("row_mean", [8 / 1, 8 / 2, 8 / 4]),  # by those that moved it
        ("add_rare", [8 / 1, 8 / 1.5, 8 / 4]),  # by count / cap, between 1 and those that moved it
        ("row_cap", [8 / 1, 8 / 1.5, 8 / 90]),  # by count / cap
    ],
)
def test_rules_by_hand(rule: str, expected: list[float]) -> None:
    total = {
        "delta/input": rows([[8.0], [8.0], [8.0]], [50, 150, 9000], [1, 2, 4]),
        "nodes": torch.tensor(4.0),
    }
    tables = {"input": torch.zeros(3, 1)}
    update, kept = RowRule(rule, cap=100.0).release(total, EXCHANGE, start(tables, False), b"")  # type: ignore[arg-type]
    assert isinstance(update["input"], Rows)
    assert update["input"].values.flatten().tolist() == pytest.approx(expected)
    assert kept["version"] == 1
    assert kept["changed/input"].tolist() == [1, 1, 1]


def test_row_adagrad_divides_by_what_has_been() -> None:
    def total() -> Update:
        return {"delta/input": rows([[3.0, 4.0]], [1], [1]), "nodes": torch.tensor(1.0)}

    state = start({"input": torch.zeros(2, 2)}, False)
    rule = RowRule("row_adagrad", 1.0, lr=0.5)
    first, state = rule.release(total(), EXCHANGE, state, b"")
    second, _ = rule.release(total(), EXCHANGE, state, b"")
    assert isinstance(first["input"], Rows)
    assert isinstance(second["input"], Rows)
    assert torch.allclose(first["input"].values, 0.5 * torch.tensor([[3.0, 4.0]]) / 12.5**0.5)
    assert torch.allclose(second["input"].values, 0.5 * torch.tensor([[3.0, 4.0]]) / 25**0.5)


def test_row_adagrad_learns_at_the_rate_that_it_is_given(corpus: Path, tmp_path: Path) -> None:
    """Clients send steps of that length already, and the division takes it out of them again. At a
    rate of 1, where it was before, the first step ends a run: a row of 200 numbers becomes 14 long.
    """
    mode = ("word2vec.mode=fedsgd", "word2vec.rule=row_adagrad", "word2vec.steps=2", "rounds=1")

    def moved(lr: float) -> float:
        *_, last = states(built(corpus, *mode, f"word2vec.lr={lr}"), tmp_path / str(lr))
        return float(last.params[OUTPUT].norm())

    assert moved(0.02) == pytest.approx(0.2 * moved(0.1), rel=0.3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_a_row_that_would_explode_stays_and_the_others_move(value: float) -> None:
    tables = {"input": torch.ones(3, 2), "output": torch.ones(3, 2)}
    update = {
        "input": Rows(torch.tensor([0]), torch.ones(1, 2)),
        "output": Rows(torch.tensor([0, 2]), torch.tensor([[value, 0.0], [1.0, 1.0]])),
    }
    RowStep().step(tables, update, {})
    assert tables["input"].tolist() == [[2, 2], [1, 1], [1, 1]]
    assert tables["output"].tolist() == [[1, 1], [1, 1], [2, 2]]


def test_divergence_is_reported_and_the_last_good_round_stays(
    corpus: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = ("word2vec.lr=500.0", "word2vec.cap=1e9", "word2vec.upload=fp32")
    out = lexfed(
        "run",
        str(corpus),
        "--out",
        str(tmp_path / "run"),
        *(w for s in settings for w in ("--set", s)),
    )
    assert out.returncode == 2
    assert "diverged: most updates were no numbers of an ordinary size" in out.stderr
    assert len(out.stderr.strip().splitlines()) == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped"] == "diverged"
    assert "word2vec.lr" in summary["reason"]
    assert all(
        "is no number" in reason or "out of its range" in reason for reason in summary["refused"]
    )
    _, tables = read_tables(tmp_path / "run" / "artifacts" / "vectors.safetensors")
    assert all(bool(torch.isfinite(table).all()) for table in tables.values())


def test_the_union_shows_a_name_that_one_alone_holds_and_the_default_does_not(
    corpus: Path, tmp_path: Path
) -> None:
    default, paper = (
        set(words_of(states(built(corpus, *settings), tmp_path / str(i))[-1]))
        for i, settings in enumerate([(), ("agreement.rule=union",)])
    )
    assert "only1word2" in paper
    assert not any(word.startswith("only") for word in default)
    assert {"cat", "river"} <= default & paper


def words_of(state: ServerState) -> list[str]:
    tokens: list[str] = json.loads(state.blobs[VOCABULARY])["tokens"]
    return tokens


def test_only_what_changed_goes_down_and_who_was_away_gets_the_rest(
    corpus: Path, tmp_path: Path
) -> None:
    assembly = built(corpus, "cohort.dropout=0.4", "rounds=6", "word2vec.subsample=0.0")
    federation, sent = simulate(site_of(assembly, Store(tmp_path / "s"))), []

    def total(verb: Verb, requests: Requests) -> Sum:
        sent.append(
            {client: (m.meta["since"], m.meta["version"], m) for client, m in requests.items()}
        )
        return federation.total(verb, requests)

    run(assembly, replace(federation, total=total))
    gaps = {version - since for round_ in sent for since, version, _ in round_.values()}
    assert {0, 1} <= gaps
    assert max(gaps) > 1, "somebody was away"
    for round_ in sent:
        for since, version, message in round_.values():
            ids = message.arrays["rows/input#ids"]
            assert (since == version) == (len(ids) == 0)


def test_training_goes_on_from_an_artefact_and_a_joining_organisation_extends_it(
    corpus: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert lexfed("run", str(corpus), "--out", str(tmp_path / "one")).returncode == 0
    file = tmp_path / "one" / "artifacts" / "vectors.safetensors"
    old, old_tables = read_tables(file)
    texts = (tmp_path / "texts.jsonl").read_text()
    for number in range(9):
        texts += (
            json.dumps(
                {"text": f"newcomer words the cat {number} " * 10 + "only1word2", "source": "s3"}
            )
            + "\n"
        )
        texts += json.dumps({"text": f"newcomer words sat {number} " * 10, "source": "s2"}) + "\n"
    (tmp_path / "texts.jsonl").write_text(texts)
    more = lexfed(
        "run",
        str(corpus),
        "--set",
        f"word2vec.start={file}",
        "--set",
        "data.clients=4",
        "--out",
        str(tmp_path / "two"),
    )
    assert more.returncode == 0, more.stderr
    new, tables = read_tables(tmp_path / "two" / "artifacts" / "vectors.safetensors")
    assert new.tokens[: len(old)] == old.tokens
    assert {"newcomer", "only1word2"} <= set(new.tokens[len(old) :])
    assert new.version == old.version + 1
    moved = (tables[INPUT][: len(old)] - old_tables[INPUT]).norm(dim=1)
    away = (tables[INPUT][: len(old)] - first_tables(len(old), 8)[INPUT]).norm(dim=1)
    assert float(moved.median()) < float(away.median()), "it went on from there"


def test_what_a_user_gets(corpus: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    out = lexfed(
        "run",
        str(corpus),
        "--out",
        str(tmp_path / "run"),
        "--workers",
        "2",
        "--record-wire",
        str(tmp_path / "wire"),
    )
    assert out.returncode == 0, out.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for key in (
        "heldout_loss",
        "centralised_heldout_loss",
        "alone_heldout_loss",
        "untrained_heldout_loss",
    ):
        assert isinstance(summary[key], float), key
    assert summary["vocabulary_size"] == len(WORDS)
    assert summary["single_source_words"] == 0
    assert set(summary["agreement_refused"].values()) == {0}
    assert set(summary["neighbours"]) == {"cat"}
    assert set(summary["neighbours"]["cat"]) == {"federated", "alone", "centralised"}
    assert len(summary["organisations"]) == 3
    artifacts = tmp_path / "run" / "artifacts"
    vectors = KeyedVectors.load_word2vec_format(str(artifacts / "vectors.bin"), binary=True)
    text = KeyedVectors.load_word2vec_format(str(artifacts / "vectors.txt"))
    assert np.array_equal(vectors.vectors, text.vectors)
    _, tables = read_tables(artifacts / "vectors.safetensors")
    assert np.array_equal(vectors["cat"], tables[INPUT][vectors.key_to_index["cat"]].numpy())
    assert "Nearest neighbours" in (tmp_path / "run" / "report.html").read_text()
    sent = b"".join(path.read_bytes() for path in (tmp_path / "wire").rglob("*") if path.is_file())
    assert b"only1word2" not in sent, "no word of one organisation alone ever travelled"


def test_a_malformed_update_counts_as_none(corpus: Path, tmp_path: Path) -> None:
    assembly = built(corpus, "rounds=1")
    federation = simulate(site_of(assembly, Store(tmp_path / "s")))

    def evil(verb: Verb, requests: Requests) -> Replies:
        for client, reply in federation.ask(verb, requests):
            if verb is SKIPGRAM and client == 1:
                arrays = {
                    **reply.arrays,
                    "delta/input#ids": reply.arrays["delta/input#ids"] + 10**6,
                }
                reply = Message(arrays, reply.meta)
            yield client, decode(encode(reply))

    last = run(assembly, replace(federation, ask=evil, total=plain(evil)))[-1]
    assert len(last.params[INPUT]) == len(WORDS)


def test_who_sends_no_numbers_is_counted_and_ends_nothing(
    corpus: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = ("malice.clients=1", "malice.kind='nan'", "rounds=2")
    for workers in (0, 2):  # these are threads
        words = [word for setting in settings for word in ("--set", setting)]
        out = lexfed("run", corpus, "--out", f"w{workers}", "--workers", workers, *words)
        assert out.returncode == 0, out.stderr
        run = tmp_path / f"w{workers}"
        records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        assert [record["clients"] for record in records] == [2, 2]
        assert [record["refused"] for record in records] == [{"'delta/' is no number": 1}] * 2
        summary = json.loads((run / "summary.json").read_text())
        assert summary["refused"] == {"'delta/' is no number": 2}
        assert "2 &#x27;delta/&#x27; is no number" in (run / "report.html").read_text()
    one, two = ((tmp_path / f"w{n}/artifacts/vectors.txt").read_bytes() for n in (0, 2))
    assert one == two


def test_pairs_beyond_the_most_that_count_are_not_claimed(corpus: Path, tmp_path: Path) -> None:
    heard: list[Message] = []
    assembly = built(corpus, "word2vec.most_pairs=5", "rounds=1")
    federation = simulate(site_of(assembly, Store(tmp_path)))

    def ask(verb: Verb, requests: Requests) -> Replies:
        for client, reply in federation.ask(verb, requests):
            if verb is SKIPGRAM:
                heard.append(reply)
            yield client, reply

    run(assembly, replace(federation, ask=ask, total=plain(ask)))
    assert len(heard) == 3
    assert {int(reply.arrays["delta/input#counts"].max()) for reply in heard} == {5}


HARD: dict[str, tuple[list[tuple[str, str]], str | None]] = {
    "no overlap": (
        [("alpha beta " * 20, "a"), ("gamma delta " * 20, "b")],
        "no word is held by 2 organisations",
    ),
    "one without a frequent word": (
        [("alpha beta " * 20, "a"), ("alpha beta " * 20, "b"), ("zeta eta", "c")],
        None,
    ),
    "no spaces": (
        [("我喜欢看电影因为它很有趣" * 3, "a"), ("今天天气很好我们去公园" * 3, "b")],
        "without spaces",
    ),
    "one organisation": ([("alpha beta " * 20, "a")], "agreement.holders = 1"),
    "a very long word": (
        [("x" * 5000 + " alpha beta " * 20, "a"), ("x" * 5000 + " alpha beta " * 20, "b")],
        None,
    ),
    "other scripts": (
        [("мир дом " * 20 + "שלום " * 20, "a"), ("мир дом " * 20 + "नमस्ते दुनिया " * 20, "b")],
        None,
    ),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_cases_get_a_result_or_one_clear_line(
    case: str, lexfed: Lexfed, tmp_path: Path
) -> None:
    texts, complaint = HARD[case]
    path = tmp_path / "hard.jsonl"
    rows = [
        {"text": f"{text} {number}", "source": source}
        for text, source in texts
        for number in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    toml = tmp_path / "hard.toml"
    toml.write_text(
        f"""
method = "federated_word2vec"
rounds = 2
[data]
name = "{path}"
clients = {len({source for _, source in texts})}
partition = "source"
test = 0.3
test_of = "each"
[word2vec]
dimension = 4
[cohort]
sampling = "everyone"
"""
    )
    out = lexfed("run", str(toml), "--out", str(tmp_path / "run"))
    if complaint is None:
        assert out.returncode == 0, out.stderr
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["vocabulary_size"] >= 2
    else:
        assert out.returncode == 2
        assert complaint in out.stderr
        assert len(out.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "bad",
    ["word2vec.dimension=0", "word2vec.lr=-1.0", "word2vec.rule=best", "word2vec.start=nowhere"],
)
def test_bad_options_are_one_line(bad: str, corpus: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    out = lexfed("run", str(corpus), "--set", bad, "--out", str(tmp_path / "run"))
    assert out.returncode == 2
    assert len(out.stderr.strip().splitlines()) == 1


def test_unigrams_without_shared_counts_are_everyones_own(corpus: Path, tmp_path: Path) -> None:
    assembly = built(corpus, "agreement.rule=union", "rounds=1")
    replica = begun(assembly, states(assembly, tmp_path / "a")[-1])
    clients = (assembly.population.client(number) for number in (0, 1))
    one, other = (study(assembly).readings.frequencies(replica, client) for client in clients)
    assert not np.array_equal(one.table, other.table)
    assert isinstance(unigrams(np.ones(3, dtype=np.int64), 0.0).table, np.ndarray)
