"""What tests share: small hand-made corpora, and the command line as a user calls it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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
from lexfed.api import Run, run
from lexfed.core.seeds import root
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.corpus.loading import Columns, from_table
from lexfed.corpus.population import Population
from lexfed.corpus.text import Corpus
from lexfed.report import page

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
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True,
        preexec_fn=_hears_ctrl_c,
    )  # fmt: skip


def _hears_ctrl_c() -> None:
    """A shell that starts the tests in the background makes them deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@cache
def named() -> list[dict[str, str]]:
    """Texts with named labels: the beginning of a real snippet, a phrase that tells the label more
    often than not, and a number.
    """
    texts = list(load_corpus("rotten_tomatoes"))[::31]
    wrongs = (np.random.default_rng(0).random(240) > 0.85).astype(int).tolist()
    return [
        {
            "text": " ".join(
                [*texts[i].split()[:3], (BAD, GOOD)[i % 2 ^ wrong][i % 5], str(i % 7)]
            ),
            "label": ("bad", "good")[i % 2],
        }
        for i, wrong in enumerate(wrongs)
    ]


SMALL = {
    "name": "small",
    "rounds": 2,
    "data": {"clients": 4, "unseen": 1, "test": 0.25, "alpha": 5.0},
    "vocabulary": {"corpus": "clients"},
    "model": {"embedding": 8, "hidden": 6, "dropout": 0.0},
    "cohort": {"size": 3},
    "train": {"batch": 8, "lr": 0.03, "epochs": 4, "max_length": 20},
    "local_only": {"epochs": 3},
    "centralised": {"epochs": 2},
    "lg_fedavg": {"warm": 1},
    "fedprox": {"mu": 0.001},
}

Trained = Callable[..., Run]


@cache
def small_vectors() -> str:
    """A file of public word vectors: twelve numbers for every second word of the texts above."""
    words = sorted({word for row in named() for word in row["text"].lower().split()})[::2]
    numbers = np.random.default_rng(1).normal(0, 0.4, (len(words), 12))
    lines = [
        " ".join([w, *(f"{x:.4f}" for x in row)]) for w, row in zip(words, numbers, strict=True)
    ]
    path = Path(os.environ["HF_HOME"]) / "small-vectors.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@contextmanager
def no_pictures() -> Iterator[None]:
    """Without a run's page: it takes half of a small run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "write", lambda run: None)
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A small classifier of this method, on texts with named labels: each is trained once."""
    folder, runs = tmp_path_factory.mktemp("trained"), dict[str, Run]()

    def get(method: str, **settings: object) -> Run:
        name = "-".join([method, *(f"{key}={value}" for key, value in settings.items())])
        if name not in runs:
            dotted = {key.replace("__", "."): value for key, value in settings.items()}
            setup = {**SMALL, "method": method}
            with no_pictures():
                runs[name] = run(setup, corpus=pa.Table.from_pylist(named()),
                                 out=folder / str(len(runs)), quiet=True, settings=dotted)  # fmt: skip
        return runs[name]

    return get
