"""Labels for new texts, with the very model that a client was scored with."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexfed.core.devices import one_thread
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.files import OWNER_ONLY, require_folder, write_atomically
from lexfed.corpus.loading import text_column
from lexfed.corpus.population import Client
from lexfed.corpus.table_files import read_file
from lexfed.federation import ClientState, Method, ServerState, request
from lexfed.learning.evaluation import Evaluator, InUse, logits_of
from lexfed.records.rundir import RunDir
from lexfed.use.opening import ASK, Opened, Who, directory_of, opened
from lexfed.vocabulary.reading import PrivateReader

ENDINGS = (".csv", ".jsonl")


@dataclass(frozen=True)
class Predictions:
    labels: tuple[str | int, ...]  # of the classes
    logits: Tensor  # (N, C)
    whose: str  # whose predictions they are, in one line

    @property
    def probabilities(self) -> Tensor:  # (N, C)
        return torch.softmax(self.logits.double(), 1)

    def rows(self) -> list[dict[str, Any]]:
        """One a text: its label, how likely it is, and how likely each is."""
        best = self.logits.argmax(1).tolist()
        return [
            {
                "label": self.labels[place],
                "probability": round(chances[place], 6),
                **{f"p_{name}": round(p, 6) for name, p in zip(self.labels, chances, strict=True)},
            }
            for place, chances in zip(best, self.probabilities.tolist(), strict=True)
        ]


# --- of a run -------------------------------------------------------------------------------------


def predict(
    path: Path,
    texts: Sequence[str | None],
    client: Who | None = None,
    at_home: bool = False,
    site: Path | None = None,
) -> Predictions:
    """What the run's model says of these texts; a client's own, if one is named. `at_home`: for
    texts of that client's own, whose label shares count (`train.logit_adjustment`). `site`: of a
    run between organisations, with what this one keeps.
    """
    check(directory_of(path), client, at_home, site)
    return predicted(opened(path, site), texts, client, at_home)


def predicted(
    run: Opened, texts: Sequence[str | None], who: Who | None, at_home: bool
) -> Predictions:
    if not texts:
        raise DataError("there is no text to predict the label of")
    client = run.number(who)
    evaluator = evaluator_of(run.assembly.method)
    with one_thread():
        model = model_of(run, evaluator, client)
        logits = logits_with(evaluator, model, texts)
        if at_home and client is not None:
            logits += evaluator.task.adjustment(run.client(client)[0])
    said = whose(run, evaluator, client, model, run.called(client))
    return Predictions(run.people.labels, logits, said)


def check(directory: RunDir, client: Who | None, at_home: bool, site: Path | None = None) -> None:
    """Refuse what can't be meant, before anything is loaded."""
    kind = directory.config().entry.kind
    if not kind.labels:
        raise ConfigError(
            f"{directory.path} is no classifier ({kind.name}): it has no labels to predict"
        )
    if at_home and client is None and site is None:
        raise ConfigError("--at-home is for a client's own texts: name it with --client")


def model_of(run: Opened, evaluator: Evaluator, client: int | None) -> InUse:
    """The model that a client was scored with; without one, that of somebody who has no texts."""
    if client is None and not run.state.params:
        raise ConfigError(
            f"every client of {run.directory.path} has a model of its own, and there is no common "
            f"one: name a client with --client, {run.numbers()}"
        )
    asked, kept = run.newcomer() if client is None else run.client(client)
    return in_use(evaluator, run.state, asked, kept)


def whose(
    run: Opened, evaluator: Evaluator, client: int | None, model: InUse, called: str = ""
) -> str:
    """Whose model it is, in one line; `called`, the client's name, is not for a card."""
    if client is not None:
        absent = ", which never took part" if client >= len(run.people) else ""
        if absent and not run.state.params:
            absent += ", so nothing was trained"
        own = ", with the common model" if model.everybodys else ", with its own model"
        shares = evaluator.task.options.logit_adjustment
        hint = " (for texts of its own: --at-home, its label shares count)" if shares else ""
        return f"client {client}{called}{absent}{own}{hint}"
    if not evaluator.split.private(model.params):
        fitted = ", before a client fits it to its own texts" if evaluator.adapt else ""
        return f"the common model{fitted}"
    reader = model.reader
    blind = isinstance(reader, PrivateReader) and reader.public is None
    return (
        "there is no common model: part of it stays with each client. This is how somebody new "
        f"starts, without texts of their own{' and so without words' if blind else ''}; --client "
        "names a client"
    )


# --- the core: it needs nothing but what a client has ---------------------------------------------


def in_use(evaluator: Evaluator, state: ServerState, client: Client, kept: ClientState) -> InUse:
    """From the model that was sent, a client and what it keeps, to the model that it was scored
    with at the end.
    """
    return evaluator.model(request(state, ask=ASK, split="test"), client, kept)


def logits_with(
    evaluator: Evaluator, model: InUse, texts: Sequence[str | None]
) -> Tensor:  # (N, C)
    try:
        return logits_of(evaluator.task, model, [text or "" for text in texts])
    except UnicodeEncodeError as error:
        raise DataError("a text holds half a character (a surrogate): decode it again") from error


def evaluator_of(method: Method) -> Evaluator:
    found = next((h for h in method.client.values() if isinstance(h, Evaluator)), None)
    if found is None:
        raise ConfigError(
            "this method scores its clients in a way of its own: for predictions, answer EVALUATE "
            "with lexfed.learning.evaluation.evaluator"
        )
    return found


# --- files ----------------------------------------------------------------------------------------


def texts_in(file: Path, directory: RunDir, column: str | None) -> list[str | None]:
    """The texts of a file, a row each, the empty ones too. Without a column, that of the run's own
    data, or `text`.
    """
    table = read_file(file)
    usual = [directory.config().data.text, "text"]
    name = column or next((name for name in usual if name in table.column_names), usual[0])
    texts = text_column(table, name, str(file), "name it with --text")
    return list(texts.to_pylist())


def check_target(out: Path) -> None:
    if out.suffix not in ENDINGS:
        raise ConfigError(f"--out ends in {' or '.join(ENDINGS)}, not in '{out.suffix}'")
    if out.exists():
        raise ConfigError(f"{out} exists already; choose another --out")
    require_folder(out)


def write(out: Path, predictions: Predictions) -> None:
    """A row for each of the file's, in their order, with its number; for its owner, as the texts
    are.
    """
    rows = [{"row": number, **row} for number, row in enumerate(predictions.rows(), start=1)]
    if out.suffix == ".jsonl":
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(out, lines.encode(), OWNER_ONLY)
        return
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomically(out, file.getvalue().encode(), OWNER_ONLY)
