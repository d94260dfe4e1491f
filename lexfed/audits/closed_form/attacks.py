"""The attacks in closed form on every upload of a scene, each guess beside the truth."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from lexfed.audits import score
from lexfed.audits.closed_form import alignment, attackers
from lexfed.audits.closed_form.attackers import EVERY_ROUND, PUBLIC_FILES, Attacker, Public
from lexfed.audits.closed_form.front_ends import FrontEnd
from lexfed.audits.closed_form.row_names import row_names, without
from lexfed.audits.scene import Figures, Findings, Scene, timed
from lexfed.audits.score import Cell
from lexfed.audits.uploads import Upload
from lexfed.core.seeds import derive, numpy_generator, root, torch_generator
from lexfed.corpus.population import Client
from lexfed.experiment.config import Config
from lexfed.learning.defences import Defences
from lexfed.metrics import leakage
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.rotation import rotation

NO_TABLE = "no public vectors are known that clients could have started from"


def rows(scene: Scene, findings: Findings) -> None:
    for upload in scene.uploads:
        cell = findings.cell("rows", PUBLIC_FILES.name)
        timed(cell, partial(_rows, attackers.moved_words, upload, scene, cell))
        if attackers.moved_outputs(upload) is not None:
            cell = findings.cell("output rows", PUBLIC_FILES.name)
            timed(cell, partial(_rows, attackers.moved_outputs, upload, scene, cell))


def span(scene: Scene, findings: Findings) -> None:
    if scene.front_end is None:
        return findings.not_run("span", NO_TABLE)
    for upload in scene.uploads:
        for attacker in (
            PUBLIC_FILES,
            *adaptive(scene.assembly.config, scene.client(upload), scene.public),
        ):
            cell = findings.cell("span", attacker.name)
            timed(cell, partial(_span, [upload], scene, scene.front_end, attacker, cell))
    if scene.assembly.config.defences.rotation != "none":
        _found_out(scene, scene.front_end, findings)
    for several in scene.repeated:
        cell = findings.cell("span", EVERY_ROUND.name)
        timed(cell, partial(_span, several, scene, scene.front_end, EVERY_ROUND, cell))


def _found_out(scene: Scene, front: FrontEnd, findings: Findings) -> None:
    """By who looks for the rotation in all uploads that were turned alike."""
    shared = scene.assembly.config.defences.rotation == "shared"
    groups: dict[int, list[Upload]] = {}
    for upload in scene.uploads:
        groups.setdefault(0 if shared else upload.client, []).append(upload)
    for several, (name, find) in product(groups.values(), alignment.FINDERS.items()):
        cell = findings.cell("span", name)
        started = time.perf_counter()
        attacker = find(several, scene, front)
        cell.seconds += time.perf_counter() - started
        for upload in several:
            if attacker is None:
                cell.nothing += 1
            else:
                timed(cell, partial(_span, [upload], scene, front, attacker, cell))


def norms(scene: Scene, findings: Findings) -> None:
    """Only a rotation leaves it something to do: without one, the vectors themselves are public."""
    defences = scene.assembly.config.defences
    if scene.public.vectors is None:
        return findings.not_run("norms", NO_TABLE)
    if defences.rotation == "none":
        return findings.not_run("norms", "no vector is turned: the vectors themselves are public")
    for upload in scene.uploads:
        timed(
            findings.cell("norms", "isolated vectors"),
            partial(_norms, scene.client(upload), defences, scene.public),
        )


def sentences(scene: Scene, findings: Findings) -> None:
    if scene.front_end is None:
        return findings.not_run("sentences", NO_TABLE)
    for upload in scene.uploads:
        timed(
            findings.cell("sentences", PUBLIC_FILES.name),
            partial(_sentences, [upload], scene, scene.front_end),
        )
    for several in scene.repeated:
        timed(
            findings.cell("sentences", EVERY_ROUND.name),
            partial(_sentences, several, scene, scene.front_end),
        )


def labels(scene: Scene, findings: Findings) -> None:
    cell = findings.cell("labels", PUBLIC_FILES.name)
    for upload in scene.uploads:
        scores = attackers.label_scores(upload)
        # a language model's are of tokens
        if scores is None or len(scores) != scene.everyone.classes:
            cell.nothing += 1
            continue
        own = scene.client(upload).train
        truth = np.bincount(own.labels, minlength=scene.everyone.classes) / len(own)
        # uploads differ in length, labels do not
        length = float(scores.sub(scores.mean()).abs().max()) or 1.0
        cell.pairs += list(
            zip(((scores - scores.mean()) / length).tolist(), truth.tolist(), strict=True)
        )
        cell.figures.append({})


def _rows(
    read: Callable[[Upload], Tensor | None], upload: Upload, scene: Scene, cell: Cell
) -> Figures | None:
    ranking = read(upload)
    if ranking is None:
        return None
    names, client = row_names(scene.assembly, upload), scene.client(upload)
    truth, ranking = names.read(client.train), without(ranking, names.always)
    if not truth:
        return None
    scene.show(cell, client, [names.tokens[i] for i in ranking[: len(truth)].tolist()])
    return score.words(ranking, truth, names.prior, names.tokens)


def _span(
    seen: Sequence[Upload], scene: Scene, front: FrontEnd, attacker: Attacker, cell: Cell
) -> Figures | None:
    client = scene.client(seen[0])
    found = attackers.spectrum(seen, front.is_first, attacker)
    truth = true_words(client, front)
    if found is None or not truth:
        return None
    ranking = front.ranking(found, attacker)
    scene.show(cell, client, [front.words[i] for i in ranking[: len(truth)].tolist()])
    return score.words(ranking, truth, torch.arange(len(front.words)), front.words)


def _norms(client: Client, defences: Defences, public: Public) -> Figures | None:
    truth = sorted(
        {
            public.places[word]
            for text in client.train
            for word in words(text)
            if word in public.places
        }
    )
    if not truth or public.vectors is None:
        return None
    own = public.vectors[truth]
    # a rotation leaves lengths as they are
    turned = torch.nn.functional.normalize(own) if defences.normalise else own
    theirs = torch.nn.functional.normalize(public.vectors) if defences.normalise else public.vectors
    guess = attackers.matched_by_norm(turned, theirs)
    right = float((guess == torch.tensor(truth)).float().mean())
    return {"precision": right, "recall": right, "f1": right, "recall_at_n": right}


def _sentences(seen: Sequence[Upload], scene: Scene, front: FrontEnd) -> Figures | None:
    found, client = attackers.spectrum(seen, front.is_first), scene.client(seen[0])
    if found is None:
        return None
    own, others = (
        [front.inputs(text, PUBLIC_FILES) for text in texts]
        for texts in (client.train, _others(client, scene))
    )
    own, others = ([x for x in side if len(x)] for side in (own, others))
    if not own or not others:
        return None
    scores = leakage.sentence_scores(found, [*own, *others])
    return score.membership(scores[: len(own)], scores[len(own) :])


def _others(client: Client, scene: Scene) -> Iterator[str]:
    """Sentences of other clients, of each class as large a share as among the client's own."""
    people, wanted = scene.everyone, scene.assembly.config.audit.others
    start, end = people.starts[client.id], people.starts[client.id + 1]
    outside = np.concatenate([np.arange(start), np.arange(end, people.starts[-1])])
    pool, rng = (
        people.train.take(outside),
        numpy_generator(derive(root(scene.assembly.config.seed), "others", client.id)),
    )
    labels, own = pool.labels, client.train.labels
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[
            : round(wanted * float((own == label).mean()))
        ]
        for label in np.unique(own)
    ]
    known = set(client.train)
    return (text for text in pool.take(np.concatenate(chosen)) if text not in known)


def adaptive(config: Config, client: Client, public: Public) -> Iterator[Attacker]:
    """Attackers who know that vectors are turned, and have something to undo it with."""
    key = config.defences.key(client)
    if key is None or public.vectors is None:
        return
    turn: Tensor = rotation(key, public.vectors.shape[1])
    generator = torch_generator(derive(root(config.seed), "known words", client.id))
    for share in (0.5, 1.0):
        yield attackers.knows_words(share, public.vectors, turn, generator)
    # where each has its own, a client that works with the server gives away its own alone
    if config.defences.rotation == "shared":
        yield attackers.colluder(turn)


def true_words(client: Client, front: FrontEnd) -> set[int]:
    return {token for text in client.train for token in front.ids(text)}
