"""Word vectors of many organisations: training that stays stable, that stops where it does not,
and figures that say when there is nothing to score.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexfed.agreement import word_list
from lexfed.core.params import Rows, union
from lexfed.federation import ServerState
from lexfed.models.skipgram import INPUT, OUTPUT
from lexfed.records.checkpoint import load as load_checkpoint
from lexfed.vocabulary.word import Vocabulary
from lexfed.word2vec.options import Word2Vec
from lexfed.word2vec.replica import VOCABULARY, first_tables
from lexfed.word2vec.row_rules import RowRule, start
from lexfed.word2vec.study import chance_loss, worse_than_none
from tests.conftest import Lexfed
from tests.unit.test_word2vec import EXCHANGE


def step(moves: list[list[float]], reach: float) -> list[float]:
    """How a row moves that each of these nodes moved, by one pair."""
    sent = [Rows(torch.tensor([0]), torch.tensor([m]), counts=torch.tensor([1])) for m in moves]
    halves = union(sent[: len(sent) // 2]), union(sent[len(sent) // 2 :])
    total = {"delta/input": union(halves), "nodes": torch.tensor(float(len(moves)))}
    state = start({"input": torch.zeros(1, 2)}, False)
    update, _ = RowRule("add_rare", 200.0, reach).release(total, EXCHANGE, state, b"")
    assert isinstance(update["input"], Rows)
    return update["input"].values[0].tolist()


def test_many_nodes_that_agree_move_a_row_no_further_than_reach() -> None:
    assert step([[3.0, 4.0]] * 100, math.inf) == pytest.approx([300, 400])
    assert step([[3.0, 4.0]] * 100, 4.0) == pytest.approx([12, 16])
    assert step([[0.0, 0.0]] * 100, 4.0) == [0, 0]


def test_few_nodes_and_nodes_that_say_different_things_are_added() -> None:
    assert step([[3.0, 4.0]] * 4, 4.0) == pytest.approx([12, 16])
    # at right angles to one another, or against each other
    assert step([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2, 4.0) == pytest.approx([3, 2])
    assert step([[5.0, 0.0], [-5.0, 0.0]] * 50 + [[2.0, 1.0]], 4.0) == pytest.approx([2, 1])


def test_the_lengths_of_rounded_moves_add_up() -> None:
    whole = Rows(torch.tensor([1, 4]), torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    steps, scale = torch.tensor([[6, 8]], dtype=torch.int8), torch.tensor([[0.5]])
    total = union([whole, Rows(torch.tensor([4]), steps, scale)])
    assert total.squares is not None
    assert total.squares.tolist() == pytest.approx([25, 4 + 25])


MANY = """
name = "many"
rounds = 6
method = "federated_word2vec"
[data]
name = "rotten_tomatoes"
clients = 60
partition = "iid"
limit = 3000
test = 0.1
test_of = "each"
[agreement]
minimum = 20
[word2vec]
dimension = 16
epochs = 12.0
lr = 0.05
heldout_pairs = 50
queries = []
[cohort]
sampling = "everyone"
[evaluation]
every = 2
"""


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_sixty_organisations_gain_by_joining(lexfed: Lexfed, tmp_path: Path) -> None:
    """Real text, at twice the usual learning rate: sums of any length diverge there (below)."""
    (tmp_path / "many.toml").write_text(MANY)
    out = lexfed("run", "many.toml", "--out", "run")
    assert out.returncode == 0, out.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["heldout_loss"] < 0.9 * summary["alone_heldout_loss"]
    lines = records(tmp_path / "run")
    assert all(record["loss"] < 1.01 * summary["untrained_heldout_loss"] for record in lines)


def test_training_that_is_worse_than_none_stops_and_the_state_before_stays(
    lexfed: Lexfed, tmp_path: Path
) -> None:
    (tmp_path / "many.toml").write_text(MANY)
    settings = ("--set", "word2vec.reach=1e9", "--set", "word2vec.baselines=false")
    out = lexfed("run", "many.toml", "--out", "run", *settings)
    assert out.returncode == 2
    assert "worse than untrained ones" in out.stderr
    assert "lower word2vec.lr" in out.stderr
    assert len(out.stderr.strip().splitlines()) == 1
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["stopped"] == "diverged"
    kept = load_checkpoint(tmp_path / "run/checkpoint").state
    assert 0 < kept.round == summary["rounds"] == len(records(tmp_path / "run")) < 6
    assert worse_than_none(Word2Vec())(kept) is None
    assert (tmp_path / "run/artifacts/vectors.bin").exists()
    again = lexfed("run", "run", "--resume")
    assert again.returncode == 2, "it does the same again"


def state_of(words: int, counts: tuple[int, ...]) -> ServerState:
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(words)), counts)
    tables = dict(first_tables(words, 16))
    return ServerState(params=tables, blobs={VOCABULARY: word_list.to_bytes(vocabulary)})


def test_what_the_server_sees_by_itself() -> None:
    state = state_of(500, tuple(range(1000, 500, -1)))
    judge = worse_than_none(Word2Vec())
    assert judge(ServerState()) is None, "nothing is agreed on yet"
    assert chance_loss(state) == pytest.approx(math.log(2), abs=1e-3)
    assert judge(state) is None
    rng = np.random.default_rng(0)
    loud = torch.from_numpy(rng.normal(0, 10, (500, 16)).astype(np.float32))
    exploded = replace(state, params={INPUT: loud, OUTPUT: loud.flip(0)})
    assert "worse than untrained" in str(judge(exploded))
    spoilt = {name: table.clone() for name, table in state.params.items()}
    for table in spoilt.values():
        table[0] = 250.0
    assert judge(replace(state, params=spoilt)) is None, "one word's row ends no run"


def written(folder: Path, sources: dict[str, list[str]], *lines: str) -> None:
    rows = [{"text": text, "source": name} for name, texts in sources.items() for text in texts]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = "\n".join(lines)
    (folder / "t.toml").write_text(
        f"""
method = "federated_word2vec"
rounds = 2
[data]
name = "{folder / "t.jsonl"}"
clients = {len(sources)}
partition = "source"
test = 0.3
test_of = "each"
[agreement]
minimum = 3
[word2vec]
dimension = 4
{settings}
[cohort]
sampling = "everyone"
"""
    )


def test_one_organisation_is_refused_before_anything_is_made(
    lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, {"a": [f"alpha beta {n}" for n in range(20)]})
    made: list[object] = []
    monkeypatch.setattr("lexfed.records.rundir.create", lambda *args: made.append(args))
    out = lexfed("run", "t.toml", "--out", "run")
    assert out.returncode == 2
    assert "1 organisation takes part: set agreement.holders = 1" in out.stderr
    assert not made
    assert not (tmp_path / "run").exists()


def test_where_there_is_nothing_to_score_there_is_no_loss(lexfed: Lexfed, tmp_path: Path) -> None:
    """The third organisation has no word of the list: it was said to have a loss of 0.000."""
    common = [f"alpha beta gamma {n}" for n in range(20)]
    other = [f"{n}zeta {n}eta" for n in range(20)]
    written(tmp_path, {"a": common, "b": common, "c": other})
    out = lexfed("run", "t.toml", "--out", "run")
    assert out.returncode == 0, out.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    one, _, silent = summary["organisations"]
    assert silent["pairs"] == 0
    losses = ("heldout_loss", "alone_heldout_loss", "centralised_heldout_loss")
    assert [silent[key] for key in losses] == [None] * 3
    assert all(one[key] > 0 for key in losses)
    assert "<td>0.000</td>" not in (tmp_path / "run/report.html").read_text()
