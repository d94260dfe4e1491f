"""Hostile rows, through every compiled loop that the server runs on what it is sent.

`python -m tests.bounds` with NUMBA_BOUNDSCHECK=1: a loop that leaves its arrays raises.
"""

import numpy as np
import torch

from lexfed.core.kernels import add_rows, add_rows_within, add_scaled_rows
from lexfed.core.params import Rows
from lexfed.federation import add_replies
from lexfed.privacy.mechanism import Asked
from lexfed.wire import Message, Precision, echoing, pack
from lexfed.word2vec.passes import Pairs
from lexfed.word2vec.row_rules import RowRule, RowStep, start
from lexfed.word2vec.vector_verbs import SKIPGRAM
from tests.hostile import CORPUS, mutated, wrong

WORDS, WIDTH = 16, 8


def tables() -> dict[str, torch.Tensor]:
    return {name: torch.ones(WORDS, WIDTH) for name in ("input", "output")}


def request() -> Message:
    empty = Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, WIDTH))
    told = {"step": 1, "ask": 0, "round": 0, "rows": WORDS, "width": WIDTH, "most_pairs": 1000}
    return Message(pack({f"rows/{name}": empty for name in tables()}), told)


def reply(precision: Precision) -> Message:
    rows = Rows(torch.tensor([0, 3, 15]), torch.randn(3, WIDTH), counts=torch.tensor([1, 2, 3]))
    figures = {name: torch.tensor(1.0) for name in ("weight", "loss", "nodes")}
    update = {**{f"delta/{name}": rows for name in tables()}, **figures}
    packed = pack(update, precision, torch.Generator().manual_seed(0))
    return echoing(request(), Message(packed))


def taken(honest: Message, lie: Message) -> None:
    """A round of three, one of whom lies."""
    requests = dict.fromkeys(range(3), request())
    total = add_replies(SKIPGRAM, requests, iter(enumerate((honest, lie, honest))))
    params = tables()
    asked = Asked(range(3), 3, 3, params)
    update, _ = RowRule("add_rare", 200.0).release(total.update, asked, start(params, False), b"")
    RowStep().step(params, update, {})
    assert all(bool(table.isfinite().all()) for table in params.values())
    places = np.arange(WORDS, dtype=np.int32)
    scored = Pairs(places, places, np.zeros((WORDS, 2), np.int32))
    assert np.isfinite(scored.loss({name: table.numpy() for name, table in params.items()}))


def checks_are_on() -> bool:
    """What each loop does with a place, or a column, that is not there."""
    table, rows, outside = np.ones((2, 3), np.float32), np.ones((1, 3), np.float32), np.array([7])
    nothing = np.empty((1, 0), np.float32)
    caught = 0
    for call in (
        lambda: add_rows(table, outside, rows),
        lambda: add_rows_within(table, outside, rows, 10.0),
        lambda: add_scaled_rows(table, np.array([0]), rows.astype(np.int8), nothing),
    ):
        try:
            call()
        except IndexError:
            caught += 1
    return caught == 3


def main() -> None:
    assert checks_are_on(), "set NUMBA_BOUNDSCHECK=1"
    rng, cases = np.random.default_rng(0), 0
    scenes: dict[str, Precision] = {"word2vec": "int8", "word2vec fp32": "fp32", "": "fp16"}
    for scene, precision in scenes.items():
        honest = reply(precision)
        cases_of = [c for c in CORPUS if (c["scene"], c["verb"]) == (scene, "skipgram")]
        lies = [wrong(case, honest) for case in cases_of]
        for lie in (honest, *lies, *(mutated(honest, rng) for _ in range(120))):
            taken(honest, lie)
            cases += 1
    print("the checks are on; cases:", cases)


if __name__ == "__main__":
    main()
