"""Gradient inversion on uploads: the delta taken for one gradient step, inverted, and decoded with
two tables.

    public files and lengths  the table that clients began with,
                              or the shared one where there is one
    another model's table     FedeVocab's attacker (A.3): the same vectors, named by a table that is
                              not the client's

A client that makes one SGD step sends a gradient. One that makes several sends their sum, taken at
moving weights, and Adam sends little more than signs: the attack goes on as if they were gradients,
and its row says what that is worth.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor

from lexfed.audits import guesses
from lexfed.audits.closed_form.attackers import ANOTHER_TABLE, LENGTHS
from lexfed.audits.inversion.dlg import (
    Inversion,
    Recovered,
    Threat,
    as_gradient,
    decode,
    invert,
    other_table,
    sentences,
)
from lexfed.audits.scene import Figures, Findings, Scene, timed
from lexfed.audits.uploads import Upload
from lexfed.core.errors import DivergedError
from lexfed.core.seeds import derive, root
from lexfed.corpus.population import Client
from lexfed.models.model import EMBEDDING, TABLE, WordClassifier
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.word import UNKNOWN

MOST = 4  # texts: with more of them a search finds little, and takes long


def inversion(scene: Scene, findings: Findings) -> None:
    config = scene.assembly.config
    if not isinstance(_model(scene), WordClassifier):
        return findings.not_run("inversion", "it searches for word vectors: the model reads none")
    if scene.assembly.entry.has("part of the texts"):
        return findings.not_run("inversion", "an upload speaks of some texts, nobody knows which")
    for upload in scene.uploads:
        names, table = _table(scene, upload)
        if table is None:
            continue
        true = _texts(scene.client(upload), config.train.max_length)
        found = _inverted(scene, upload, true) if len(true) <= MOST else None
        wrong = other_table(table, derive(root(config.seed), "another table"))
        for attacker, seen in ((LENGTHS, table), (ANOTHER_TABLE, wrong)):
            cell = findings.cell("inversion", attacker.name)
            show = partial(scene.show, cell, scene.client(upload))
            timed(cell, partial(_scored, found, true, names, seen, show))
            cell.seconds += found.seconds if found else 0.0


def _model(scene: Scene) -> Any:
    """The classifier, if one is trained at all."""
    task = getattr(scene.assembly.parts, "task", None)
    return getattr(task, "model", None)


def _texts(client: Client, limit: int) -> list[list[str]]:
    """As the client reads them, the longest first."""
    return sorted(
        (words(text)[:limit] or [UNKNOWN] for text in client.train), key=len, reverse=True
    )


def _table(scene: Scene, upload: Upload) -> tuple[Sequence[str], Tensor | None]:
    """The words that a vector may be, and their vectors, as far as there are some."""
    if TABLE in upload.model:
        return scene.public.tokens, upload.model[TABLE]
    # of another width: a private projection lies between them and the first layer
    vectors = scene.public.vectors
    fits = vectors is not None and vectors.shape[1] == scene.assembly.config.model.embedding
    return scene.public.words, vectors if fits else None


def _inverted(scene: Scene, upload: Upload, true: Sequence[Sequence[str]]) -> Recovered | None:
    """None: what travels tells nothing of the words. Of the truth only the lengths are read."""
    config, classes = scene.assembly.config, scene.everyone.classes
    model = _model(scene)
    delta = {name: value for name, value in upload.delta.items() if isinstance(value, Tensor)}
    observed = {name: value for name, value in delta.items() if model.depth(name) != EMBEDDING}
    if not set(observed) >= model.first_layer or not all(
        _moved(value) for value in observed.values()
    ):
        return None
    steps = config.train.epochs * ceil(len(true) / config.train.batch)
    threat = Threat(tuple(map(len, true)), config.model.embedding, classes)
    seed = derive(root(config.seed), "inversion", upload.client, upload.round)
    options = Inversion(seed, steps=config.audit.inversion_steps)
    try:
        return invert(
            model, upload.model, as_gradient(observed, config.train.lr * steps), threat, options
        )
    except DivergedError:
        return None


def _moved(value: Tensor) -> bool:
    return bool(value.isfinite().all()) and bool(value.any())


def _scored(
    found: Recovered | None,
    true: list[list[str]],
    names: Sequence[str],
    table: Tensor,
    show: Callable[[Sequence[str]], None],
) -> Figures | None:
    places = {name: place for place, name in enumerate(names)}
    truth = {places[word] for text in true for word in text if word in places}
    if found is None or not truth:
        return None
    lengths = [len(text) for text in true]
    ids = decode(found.vectors, table)
    guess = torch.unique(torch.cat([row[:n] for row, n in zip(ids, lengths, strict=True)]))
    read = sentences(ids, lengths, names)
    show([word for text in read for word in text])
    figures = {**guesses.words(guess, truth, names), **guesses.texts(true, read)}
    # words stand in the order of their frequency
    prior = sum(place < len(truth) for place in truth) / len(truth)
    return {**figures, "recall_at_n": figures["recall"], "prior_recall_at_n": prior}
