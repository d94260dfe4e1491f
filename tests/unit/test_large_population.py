"""What a client costs does not depend on how many others there are."""

import numpy as np
import pyarrow as pa
import pytest

from lexfed.core.seeds import derive, root
from lexfed.corpus import checking, partition
from lexfed.corpus.population import Data, parted
from lexfed.corpus.sources import load
from lexfed.corpus.text import Corpus, gathered

SEED = derive(root(0), "data")


def in_pieces(texts: int, each: int) -> pa.ChunkedArray:
    pieces = range(0, texts, each)
    return pa.chunked_array(
        [
            pa.array([f"text {n}" for n in range(start, min(texts, start + each))])
            for start in pieces
        ]
    )


@pytest.mark.parametrize("each", [1, 7, 100])
def test_entries_are_gathered_from_pieces_in_the_order_asked_for(each: int) -> None:
    column = in_pieces(50, each)
    rows = np.random.default_rng(0).integers(0, 50, 80)
    assert gathered(column, rows) == [f"text {row}" for row in rows]
    assert gathered(column, rows[:0]) == []
    corpus = Corpus(rows, column, users=column)
    assert list(corpus) == [f"text {row}" for row in rows]
    assert corpus.where("users", "text 3").rows.tolist() == [3] * int((rows == 3).sum())


def test_two_texts_do_not_cost_the_whole_corpus() -> None:
    """pyarrow's own take of a column in pieces puts all of them together, every time."""
    column = in_pieces(40_000, 10_000)
    pool = pa.default_memory_pool()

    def allocated(work: object) -> int:
        before = pool.total_bytes_allocated()
        assert callable(work)
        work()
        return int(pool.total_bytes_allocated() - before)

    rows = np.array([5, 30_000])
    assert allocated(lambda: gathered(column, rows)) < 5_000 < column.nbytes / 50


def test_parts_are_made_when_they_are_asked_for() -> None:
    parts = partition.iid(10, 4, SEED)
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert sorted(np.concatenate(list(parts)).tolist()) == list(range(10))
    assert parts[-1].tolist() == parts[3].tolist()
    assert [part.tolist() for part in parts[1:3]] == [parts[1].tolist(), parts[2].tolist()]
    with pytest.raises(IndexError):
        parts[4]
    whole = partition.pieces([np.array([4, 2]), np.array([], dtype=np.int64), np.array([1])])
    assert whole.order.tolist() == [4, 2, 1]
    assert whole.starts.tolist() == [0, 2, 2, 3]


def test_remarks_on_clients_of_one_class_count_them() -> None:
    corpus = load({"text": [f"text {n}" for n in range(40)], "label": [0, 1] * 20})
    data = Data(clients=20, partition="iid", test=0.0, validation=0.0)
    people = parted(corpus, data, SEED)
    single = sum(len(set(people.client(n).train.labels.tolist())) == 1 for n in range(20))
    remarks = list(checking.of_clients(people, data, 40))
    assert 4 < single < 20
    assert f"{single} of 20 clients hold texts of one class only" in remarks
