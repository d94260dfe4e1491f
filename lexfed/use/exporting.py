"""A folder that other programs open: the model, what it reads texts with, and a card that says what
it is. It is there as a whole, or not at all.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lexfed.core.devices import one_thread
from lexfed.core.errors import ConfigError
from lexfed.language.language_parts import LANGUAGE_MODEL
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.evaluation import Evaluator
from lexfed.records.rundir import RunDir
from lexfed.use import classifier_files, language_files, model_card
from lexfed.use.opening import Opened, Who, directory_of, opened, state_of
from lexfed.use.predicting import evaluator_of, model_of, whose
from lexfed.word2vec.study import write_artifacts
from lexfed.word2vec.vector_parts import WORD_VECTORS

CARD = "README.md"
VECTORS = """\
```python
from gensim.models import KeyedVectors

vectors = KeyedVectors.load_word2vec_format("vectors.bin", binary=True)
```

`vectors.txt` holds the same in text, `projector/` for projector.tensorflow.org;
`vectors.safetensors` (both tables) is what `word2vec.start` goes on from.
"""
WEIGHTS_ALONE = """\
```python
from safetensors.torch import load_file

weights = load_file("model.safetensors")
```
"""


@dataclass(frozen=True)
class Content:
    """What was written."""

    what: str  # in a sentence or two
    use: str  # how it is opened
    private: bool = False  # it is a client's own: for its owner alone
    told: str = ""  # `what`, to who asked: with the client's name, which is not for a card


def export(path: Path, to: Path, client: Who | None = None, site: Path | None = None) -> Content:
    """`site`: of a run between organisations, with what this one keeps."""
    directory = directory_of(path)
    if to.exists():
        raise ConfigError(f"{to} exists already; choose another --to")
    summary, config = directory.summary(), directory.config()
    write = WRITERS.get(config.entry.kind.name)
    if write is None:
        raise ConfigError(f"{path} holds a {config.entry.kind.name}, and how that looks is yours")
    with _as_a_whole(to) as folder:
        content = write(directory, folder, client, site)
        card = model_card.card(config, summary, content.what, content.use, content.private)
        (folder / CARD).write_text(card, encoding="utf-8")
        _set_modes(folder, content.private)
    return content


@contextmanager
def _as_a_whole(to: Path) -> Iterator[Path]:
    """A folder that nobody else can look into, until it takes its place."""
    near = next(parent for parent in to.absolute().parents if parent.is_dir())
    with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=near) as closed:
        folder = Path(closed) / "export"
        folder.mkdir()
        yield folder
        to.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(to)


def _set_modes(folder: Path, private: bool) -> None:
    """For its owner alone; or for all as usual: some libraries write files of their own mode."""
    usual = (folder / CARD).stat().st_mode
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            path.chmod(0o600 if private else usual)
        elif private:
            path.chmod(0o700)


# --- by kind --------------------------------------------------------------------------------------


def _classifier(directory: RunDir, folder: Path, who: Who | None, site: Path | None) -> Content:
    run = opened(directory.path, site)
    client = run.number(who)
    evaluator = evaluator_of(run.assembly.method)
    with one_thread():
        if client is None and not run.state.params:
            return _everyones_own(run, evaluator, folder)
        model = model_of(run, evaluator, client)
        if client is None and evaluator.split.private(model.params):
            return _body(run, folder)
        use = classifier_files.write(folder, evaluator.task, model, run.people.labels)
    what, told = (
        f"A classifier: {whose(run, evaluator, client, model, called).split(' (for')[0]}."
        for called in ("", run.called(client))
    )
    if client is None or model.everybodys:
        return Content(what, use, told=told)
    own = _own(run, evaluator, client)
    return Content(f"{what} {own}", use, private=True, told=f"{told} {own}")


def _own(run: Opened, evaluator: Evaluator, client: int) -> str:
    shares = evaluator.task.adjustment(run.client(client)[0])
    sentence = "It was fitted to that client's texts: keep it as they are kept."
    if not shares.any():
        return sentence
    added = ", ".join(f"{value:.6g}" for value in shares.tolist())
    return f"{sentence} For texts of its own, add [{added}] to the logits: its label shares."


def _everyones_own(run: Opened, evaluator: Evaluator, folder: Path) -> Content:
    for number in range(len(run.people)):
        place = folder / f"client-{number:04d}"
        place.mkdir()
        model = model_of(run, evaluator, number)
        use = classifier_files.write(place, evaluator.task, model, run.people.labels)
    what = (
        "Classifiers, one a client: each was trained on that client's texts alone. Keep each as "
        "its texts are kept."
    )
    return Content(what, f"In each client's folder:\n\n{use}", private=True)


def _body(run: Opened, folder: Path) -> Content:
    classifier_files.write_weights(folder, run.state.params)
    what = (
        "The part of a classifier that all clients share. It is not a whole one: the rest, such as "
        "the word table, stays with each client. A client's whole model: `lexfed export RUN "
        f"--client N --to DIR`, N from {run.numbers()}."
    )
    return Content(what, WEIGHTS_ALONE)


def _language_model(
    directory: RunDir, folder: Path, client: Who | None, site: Path | None
) -> Content:
    _one_for_all(directory, client)
    use = language_files.write(folder, directory.config(), state_of(directory))
    return Content("A language model, and the tokenizer it was trained with.", use)


def _word_vectors(
    directory: RunDir, folder: Path, client: Who | None, site: Path | None
) -> Content:
    _one_for_all(directory, client)
    write_artifacts(state_of(directory), folder)
    return Content("Word vectors, for the words that the organisations agreed on.", VECTORS)


def _one_for_all(directory: RunDir, client: Who | None) -> None:
    if client is not None:
        raise ConfigError(f"{directory.path} has one model for all: leave out --client")


WRITERS: Mapping[str, Callable[[RunDir, Path, Who | None, Path | None], Content]] = {
    CLASSIFIER.name: _classifier,
    LANGUAGE_MODEL.name: _language_model,
    WORD_VECTORS.name: _word_vectors,
}
