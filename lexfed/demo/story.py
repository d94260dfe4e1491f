"""`lexfed demo`: four short experiments on embedded text, and one page that tells what they show.

Their configurations are copied into the demo's folder, so that each can be repeated alone, and
changed.
"""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lexfed.audits import cells
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.language.language_task import tokenizer_of
from lexfed.records import rundir
from lexfed.records.rundir import RunDir
from lexfed.runs import launch
from lexfed.use.generating import before_switch
from lexfed.use.opening import state_of
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tokenizer import TrainedTokenizer

CHAPTERS = ("leak", "private", "agreed", "learned")
ALONE, TOGETHER, PRIVATE = "local_only", "fedavg", "fedevocab"
COMPARED = (ALONE, TOGETHER, PRIVATE)
LONGEST = 24  # words of the sentence that is cut
LOOKED_AT = 300  # texts among which the sentence is chosen

Say = Callable[[str], None]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cut:
    """A sentence as two tokenizers cut it."""

    before: Sequence[str]
    after: Sequence[str]


@dataclass(frozen=True)
class Story:
    """What was found; the page is made of it."""

    folder: Path
    leaks: Sequence[Row]
    compared: Sequence[RunDir]
    agreed: RunDir
    learned: RunDir
    cut: Cut

    def command(self, chapter: str, *more: str) -> str:
        """What repeats a chapter alone."""
        verb = "audit" if chapter == "leak" else "run"
        return shlex.join(["lexfed", verb, str(self.folder / f"{chapter}.toml"), *more])


def play(folder: Path, shipped: Path, workers: int, say: Say) -> Story:
    """Run everything. `shipped` is where the configurations lie; the folder must not be there
    yet.
    """
    rundir.refuse_existing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for chapter in CHAPTERS:
        shutil.copyfile(shipped / f"{chapter}.toml", folder / f"{chapter}.toml")
    say("What one upload gives away")
    leaks = _leaks(folder)
    say("\nAgreed: one word list, and vectors that are better than anyone's alone")
    agreed = _run(folder, "agreed", workers)
    say("\nPrivate: every client keeps its table of words, begun with those vectors")
    compared = [_run(folder, "private", workers, method) for method in COMPARED]
    say("\nLearned: a tokenizer for free")
    learned = _run(folder, "learned", workers)
    return Story(folder, leaks, compared, agreed, learned, cut_of(learned))


def _leaks(folder: Path) -> Sequence[Row]:
    found = cells.run(folder / "leak.toml", [], [], None, lambda line: None)
    (folder / "leak").mkdir()
    cells.write(folder / "leak", found)
    return found.rows


def _run(folder: Path, chapter: str, workers: int, method: str | None = None) -> RunDir:
    settings = [] if method is None else [f"method={method}", f"name=story-{method}"]
    manner = launch.Manner(workers=workers)
    out = folder / (method or chapter)
    return launch.start(folder / f"{chapter}.toml", settings, out, None, manner)


def leak(story: Story, method: str, defence: str, attack: str, attacker: str) -> Row:
    """The one row of the audit that is meant."""
    (row,) = [
        row
        for row in story.leaks
        if (row["method"], row["attack"], row["attacker"]) == (method, attack, attacker)
        and row["defence"] == defence
    ]
    return row


def spent(story: Story) -> tuple[Sequence[Row], Sequence[Row]]:
    """The ledger right before the tokenizer was switched, and right after."""
    records = [record for record in story.learned.records() if record["metrics"]]
    for one, other in pairwise(records):
        if other["metrics"]["tokenizer_switches"] > one["metrics"]["tokenizer_switches"]:
            return one["ledger"], other["ledger"]
    raise ValueError("the tokenizer was not switched")


def cut_of(run: RunDir) -> Cut:
    """The beginning of a review, of some hundred that never trained, which the two tokenizers cut
    most differently: the reader is told so.
    """
    state, options = state_of(run), run.config().tokenizer
    after = tokenizer_of(state).tokenizer
    before = tokenizer_of(before_switch(run, state)).tokenizer
    texts = list(load_corpus(run.config().data.name))[-LOOKED_AT:]
    heads = [words(text, options.lowercase)[:LONGEST] for text in texts]

    def gain(head: Sequence[str]) -> int:
        return len(before.encode_words(head)[0]) - len(after.encode_words(head)[0])

    chosen = max(heads, key=gain)
    return Cut(pieces(before, chosen), pieces(after, chosen))


def pieces(tokenizer: TrainedTokenizer, sentence: Sequence[str]) -> list[str]:
    """Each token as it reads."""
    return [tokenizer.decode([i]).strip() or "·" for i in tokenizer.encode_words(sentence)[0]]
