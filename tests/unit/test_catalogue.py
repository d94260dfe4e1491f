"""Data sets by name: from the folder LEXFED_DATA where it is set, else through Hugging Face
`datasets`.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from lexfed.core.errors import DataError
from lexfed.core.seeds import root
from lexfed.corpus.catalogue import CATALOGUE, HubSource, from_hub, load, where
from lexfed.corpus.loading import Columns
from lexfed.corpus.population import Data, build
from tests.conftest import Lexfed, needs_data

# texts, classes, users, sources: as counted in the folder's files
KNOWN = {
    "sst2": (70_042, 2, None, None),
    "20news": (18_794, 20, 8_449, None),
    "ag_news": (43_989, 4, None, None),
    "wikitext2": (29_119, None, None, None),
    "text8": (85_027, None, None, 5),
    "blogs": (65_329, None, 12_000, None),
}


@needs_data
@pytest.mark.parametrize("name", KNOWN)
def test_named_sets_are_what_they_are_said_to_be(name: str) -> None:
    texts, classes, users, sources = KNOWN[name]
    corpus = load(name)
    assert where(name) == "LEXFED_DATA"
    assert len(corpus) == texts
    if classes:
        assert len(np.unique(corpus.labels)) == classes
    if users:
        assert corpus.users is not None
        assert len(corpus.users.unique()) == users
    if sources:
        assert corpus.sources is not None
        assert len(corpus.sources.drop_null().unique()) == sources


@needs_data
def test_a_blogger_is_a_client() -> None:
    people = build(
        Data(name="blogs", partition="user", clients=500, unseen=20, validation=0.0), root(0)
    )
    assert (len(people), people.unseen) == (500, 20)
    for client in (0, 499, 519):
        corpus = people.client(client).train
        assert corpus.users is not None
        assert len(set(corpus.users.take(corpus.rows).to_pylist())) == 1


@needs_data
def test_two_organisations_a_topic() -> None:
    people = build(Data(name="text8", partition="source", clients=10), root(0))
    topics = []
    for client in range(10):
        corpus = people.client(client).train
        assert corpus.sources is not None
        topics.append(set(corpus.sources.take(corpus.rows).to_pylist()))
    assert all(len(topic) == 1 for topic in topics)
    names = sorted(next(iter(topic)) for topic in topics)
    assert names == sorted(2 * ["biology", "finance", "geography", "history", "sports"])


@needs_data
def test_the_test_set_is_the_data_sets_own() -> None:
    people = build(Data(name="sst2", clients=100), root(0))
    assert len(people.common_test) == 1_821


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A data set repository as the hub lays it out, on this disk."""
    for split, n in (("train", 6), ("validation", 3)):
        rows = [{"sentence": f"{split} {i}", "label": i % 2} for i in range(n)]
        pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    return tmp_path


def test_the_hub_is_read_with_its_own_names(repository: Path) -> None:
    hub = HubSource(
        str(repository),
        columns=Columns(text="sentence"),
        splits={"train": "train", "validation": "test"},
    )
    corpus = from_hub("sst2", hub)
    assert len(corpus.where("splits", "train")) == 6
    assert list(corpus.where("splits", "test")) == ["validation 0", "validation 1", "validation 2"]
    assert corpus.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_what_the_hub_can_not_give_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be fetched from the hub") as error:
        from_hub("sst2", HubSource(str(tmp_path / "nowhere")))
    assert "\n" not in str(error.value)


def test_the_catalogue_on_the_command_line(lexfed: Lexfed) -> None:
    listed = lexfed("data", "list").stdout
    assert all(name in listed for name in CATALOGUE)
    shown = lexfed("data", "show", "rotten_tomatoes").stdout
    assert "8,530" in shown
    assert "0: 4,265, 1: 4,265" in shown


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "user"}, "does not say the user of a text"),
        (
            {"partition": "source", "clients": 1, "name": "movie_reviews"},
            "2 sources need at least as many clients",
        ),
    ],
)
def test_a_partition_the_data_can_not_give_is_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        build(Data(**{"name": "rotten_tomatoes", "limit": 200, **settings}), root(0))  # type: ignore[arg-type]
