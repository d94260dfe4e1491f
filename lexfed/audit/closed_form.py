"""The attacks in closed form on every upload of a scene, each guess beside the truth."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lexfed.audit import attackers, score
from lexfed.audit.attackers import PUBLIC_FILES, Attacker, Public
from lexfed.audit.scene import Figures, Findings, Scene, timed
from lexfed.audit.uploads import Upload
from lexfed.config import Config
from lexfed.corpus.population import Client
from lexfed.methods.defences import Defences
from lexfed.seeds import derive, numpy_generator, root, torch_generator
from lexfed.vocabulary.rotation import rotation
from lexfed.vocabulary.word import words


def rows(scene: Scene, findings: Findings) -> None:
    for upload in scene.uploads:
        timed(findings.cell("rows", PUBLIC_FILES.name), partial(_rows, upload, scene))


def span(scene: Scene, findings: Findings) -> None:
    if scene.public.vectors is None:
        return
    for upload in scene.uploads:
        client = scene.client(upload)
        for attacker in (PUBLIC_FILES, *_adaptive(scene.assembly.config, client, scene.public)):
            timed(findings.cell("span", attacker.name), partial(_span, upload, client, scene.public, attacker))


def norms(scene: Scene, findings: Findings) -> None:
    """Only a rotation leaves it something to do: without one, the vectors themselves are public."""
    defences = scene.assembly.config.defences
    if scene.public.vectors is None or defences.rotation == "none":
        return
    for upload in scene.uploads:
        timed(findings.cell("norms", "isolated vectors"), partial(_norms, scene.client(upload), defences, scene.public))


def sentences(scene: Scene, findings: Findings) -> None:
    if scene.public.vectors is None:
        return
    for upload in scene.uploads:
        timed(findings.cell("sentences", PUBLIC_FILES.name), partial(_sentences, upload, scene))


def labels(scene: Scene, findings: Findings) -> None:
    cell = findings.cell("labels", PUBLIC_FILES.name)
    for upload in scene.uploads:
        scores = attackers.label_scores(upload)
        if scores is None:
            cell.nothing += 1
            continue
        own = scene.client(upload).train
        truth = np.bincount(own.labels, minlength=scene.everyone.classes) / len(own)
        length = float(scores.sub(scores.mean()).abs().max()) or 1.0  # uploads differ in length, labels do not
        cell.pairs += list(zip(((scores - scores.mean()) / length).tolist(), truth.tolist(), strict=True))
        cell.figures.append({})


def _rows(upload: Upload, scene: Scene) -> Figures | None:
    ranking = attackers.moved_words(upload)
    if ranking is None:
        return None
    encoder = scene.assembly.tokenizer
    limit = scene.assembly.config.train.max_length
    truth = {token for text in scene.client(upload).train for token in encoder.encode(text)[:limit]}
    tokens = scene.public.tokens
    return score.words(ranking, truth, torch.arange(len(tokens)), tokens)


def _span(upload: Upload, client: Client, public: Public, attacker: Attacker) -> Figures | None:
    found, truth = attackers.spectrum(upload), _true_words(client, public)
    if found is None or not truth:
        return None
    return score.words(attackers.spanned_words(found, public, attacker), truth, public.prior, public.words)


def _norms(client: Client, defences: Defences, public: Public) -> Figures | None:
    truth = sorted(_true_words(client, public))
    if not truth or public.vectors is None:
        return None
    own = public.vectors[truth]
    turned = torch.nn.functional.normalize(own) if defences.normalise else own  # a rotation leaves lengths as they are
    theirs = torch.nn.functional.normalize(public.vectors) if defences.normalise else public.vectors
    guess = attackers.matched_by_norm(turned, theirs)
    right = float((guess == torch.tensor(truth)).float().mean())
    return {"precision": right, "recall": right, "f1": right, "recall_at_n": right}


def _sentences(upload: Upload, scene: Scene) -> Figures | None:
    found, client, public = attackers.spectrum(upload), scene.client(upload), scene.public
    if found is None:
        return None
    own = [ids for text in client.train if (ids := _ids(text, public))]
    others = [ids for text in _others(client, scene) if (ids := _ids(text, public))]
    if not own or not others:
        return None
    scores = attackers.sentence_scores(found, [*own, *others], public, PUBLIC_FILES)
    return score.membership(scores[: len(own)], scores[len(own) :])


def _others(client: Client, scene: Scene) -> Iterator[str]:
    """Sentences of other clients, of each class as large a share as among the client's own."""
    people, wanted = scene.everyone, scene.assembly.config.audit.others
    start, end = people.starts[client.id], people.starts[client.id + 1]
    outside = np.concatenate([np.arange(start), np.arange(end, people.starts[-1])])
    pool, rng = people.train.take(outside), numpy_generator(derive(root(scene.assembly.config.seed), "others", client.id))
    labels, own = pool.labels, client.train.labels
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[: round(wanted * float((own == label).mean()))]
        for label in np.unique(own)
    ]
    known = set(client.train)
    return (text for text in pool.take(np.concatenate(chosen)) if text not in known)


def _adaptive(config: Config, client: Client, public: Public) -> Iterator[Attacker]:
    """Attackers who know that vectors are turned, and have something to undo it with."""
    key = config.defences.key(client)
    if key is None or public.vectors is None:
        return
    turn: Tensor = rotation(key, public.vectors.shape[1])
    generator = torch_generator(derive(root(config.seed), "known words", client.id))
    for share in (0.5, 1.0):
        yield attackers.knows_words(share, public.vectors, turn, generator)
    yield attackers.colluder(turn)


def _true_words(client: Client, public: Public) -> set[int]:
    return {token for text in client.train for token in _ids(text, public)}


def _ids(text: str, public: Public) -> list[int]:
    return [public.places[word] for word in words(text) if word in public.places]
