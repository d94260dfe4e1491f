"""What tests share: small hand-made corpora, and the command line as a user calls it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_HOME"] = tempfile.mkdtemp(
    prefix="lexfed-tests-"
)  # what Hugging Face keeps stays out of the user's cache
os.environ["XDG_CACHE_HOME"] = os.environ["HF_HOME"]  # and so does the noise that was calibrated

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import settings

from lexfed import cli
from lexfed.core.seeds import root
from lexfed.corpus.loading import Columns, from_table
from lexfed.corpus.population import Population
from lexfed.corpus.text import Corpus

settings.register_profile("lexfed", deadline=None)  # the first call of a compiled loop compiles it
settings.load_profile("lexfed")

ROOT = Path(__file__).parent.parent
DATA = os.environ.get("LEXFED_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="LEXFED_DATA is not set")
# what tests read whose subject is no particular file: a bare clone has the embedded text and hashed
# vectors
TEXTS = "sst2" if DATA else "rotten_tomatoes"
VECTORS = "glove_6b_100d_top100k.npz" if DATA else "hashed:100"
GOOD = [
    "a fine and moving film",
    "great great fun",
    "fine acting",
    "a moving story of love",
    "we loved it",
]
BAD = [
    "a dull film",
    "no fun at all",
    "poor acting and a poor story",
    "we hated it",
    "dull dull dull",
]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def corpus_of(texts: Sequence[str], labels: Sequence[int]) -> Corpus:
    table = pa.table({"text": list(texts), "label": list(labels)})
    return from_table(table, "hand-made", Columns())


def hand_made(sizes: Sequence[int] = (3, 2, 4, 1)) -> Population:
    """Clients of these sizes, with texts of both classes in turn."""
    texts = [(GOOD if i % 2 else BAD)[i // 2 % 5] for i in range(sum(sizes))]
    labels = [i % 2 for i in range(sum(sizes))]
    starts = np.cumsum([0, *sizes]).astype(np.int64)
    test = corpus_of(GOOD + BAD, [1] * 5 + [0] * 5)
    return Population(corpus_of(texts, labels), starts, test, test, classes=2, secret=root(7))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A configuration on forty texts in a file: a run takes a second."""
    rows = [{"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i}", "label": i % 2} for i in range(80)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "tiny.toml"
    path.write_text(
        f"""
name = "tiny"
rounds = 3
[data]
name = "{tmp_path}/texts.jsonl"
clients = 6
[vocabulary]
corpus = "clients"
[model]
embedding = 4
hidden = 3
[cohort]
size = 3
[train]
batch = 8
[evaluation]
every = 2
clients = 2
[local_only]
epochs = 2
"""
    )
    return path


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


Lexfed = Callable[..., Result]


@pytest.fixture
def lexfed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Lexfed:
    """The command as a user calls it in a folder of its own, in this process: torch takes
    seconds to import.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> Result:
        monkeypatch.setattr("sys.argv", ["lexfed", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out = capsys.readouterr()
        return Result(int(exit_.value.code or 0), out.out, out.err)

    return call


def lexfed_process(*arguments: object, cwd: Path) -> "subprocess.Popen[str]":
    """The command in a process of its own, to be timed or killed."""
    command = [sys.executable, "-m", "lexfed.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)
