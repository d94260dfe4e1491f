"""The demo tells the story, from embedded text alone."""

import re
from pathlib import Path

import pytest

from lexfed.demo import story, story_page
from lexfed.experiment.config import load
from tests.conftest import ROOT

SHIPPED = ROOT / "experiments/quick/story"
# the same experiments, with less text and fewer rounds
LESS = {
    "leak": {"clients = 4": "clients = 2", "clients = 12": "clients = 6\nlimit = 600"},
    "private": {"rounds = 8": "rounds = 1", "clients = 5": "clients = 3\nlimit = 150",
                "size = 5": "size = 3", "limit = 500": "limit = 50", "epochs = 8": "epochs = 1",
                "embedding = 64": "embedding = 8", "hidden = 32": "hidden = 8"},
    "agreed": {"rounds = 16": "rounds = 2", "limit = 10000": "limit = 400", "= 64": "= 8",
               "clients = 8": "clients = 3", "minimum = 10": "minimum = 3"},
    "learned": {"rounds = 20": "rounds = 4", "clients = 2000": "clients = 60", "= [12]": "= [2]",
                "unseen = 100": "unseen = 6", "= 50000": "= 3000", "width = 128": "width = 16"},
}  # fmt: skip


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    folder = tmp_path / "shipped"
    folder.mkdir()
    for chapter, changes in LESS.items():
        text = (SHIPPED / f"{chapter}.toml").read_text()
        for old, new in changes.items():
            assert old in text, (chapter, old)
            text = text.replace(old, new, 1)
        (folder / f"{chapter}.toml").write_text(text)
    return folder


@pytest.mark.slow
def test_the_story_is_told_on_one_page(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    told = story.play(Path("demo"), shipped, 0, said.append)
    text = story_page.write(told).read_text()
    assert len(said) == 4
    assert re.findall(r'id="chapter-(\d)"', text) == ["1", "2", "3", "4"]
    for chapter in story.CHAPTERS:
        verb = "audit" if chapter == "leak" else "run"
        assert f"lexfed {verb} demo/{chapter}.toml" in text, "the command that repeats it"
        assert (
            Path("demo", f"{chapter}.toml").read_text() == (shipped / f"{chapter}.toml").read_text()
        )
    leaky = story.leak(told, "fedavg", "none", "rows", "public files")
    turned = story.leak(told, "fedevocab", "defences.rotation=shared", "span", "public files")
    assert leaky["recall_at_n"] == 1.0
    assert turned["recall_at_n"] < leaky["recall_at_n"] / 4, "the pair"
    assert text.count("<mark>") > 20
    for word in told.agreed.summary()["neighbours"]:
        assert f"<td>{word}</td>" in text
    before, after = story.spent(told)
    assert before == after, "the tokenizer cost nothing"
    assert "".join(told.cut.before) == "".join(told.cut.after), "one sentence, cut twice"
    assert text.count('class="piece"') == len(told.cut.before) + len(told.cut.after)


@pytest.mark.parametrize("chapter", story.CHAPTERS)
def test_the_story_needs_no_file_but_what_is_embedded(
    chapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEXFED_DATA", raising=False)
    config = load(SHIPPED / f"{chapter}.toml")
    assert config.data.name in ("imdb", "rotten_tomatoes")
    assert config.vocabulary.vectors in (None, "hashed:100")
