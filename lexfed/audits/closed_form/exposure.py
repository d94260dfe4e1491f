"""Exposure of canary phrases: does what a client trained on stand out from what it might have
trained on?

    score(s)  how well an upload fits phrase s                by its tokens' rows, or the span of
                                                              the first matrix
    rank      of the planted phrase among R of the same form  ties count half
    exposure  log2 R - log2 rank                              in bits (Carlini et al., 2019, sec. 4)

A rank that is any from 1 to R by chance gives log2 e = 1.44 bits in the mean, one in the middle 1;
the most is log2 R, 13.3 bits for 10,000. Differs from the paper: an upload is asked, not the
model's perplexity.
"""

from functools import partial
from math import log2

import torch
from torch import Tensor

from lexfed.audits.closed_form import attackers
from lexfed.audits.closed_form import phrases as canaries
from lexfed.audits.closed_form.attackers import PUBLIC_FILES, Attacker
from lexfed.audits.closed_form.attacks import adaptive, true_words
from lexfed.audits.closed_form.front_ends import FrontEnd
from lexfed.audits.closed_form.row_names import row_names, without
from lexfed.audits.scene import Figures, Findings, Scene, timed
from lexfed.audits.uploads import Upload
from lexfed.core.seeds import derive, root
from lexfed.metrics import leakage

PHRASES = 10_000  # R


def exposed(scene: Scene, findings: Findings) -> None:
    """By the rows that moved, where a table of words travels; else by the span."""
    front = scene.front_end
    if not scene.canaries:
        return findings.not_run("canaries", "no phrase was planted: set audit.canaries")
    for upload in scene.uploads:
        if upload.client not in scene.canaries:
            continue
        if attackers.told_words(upload) is not None:
            timed(findings.cell("canaries", PUBLIC_FILES.name), partial(_by_rows, upload, scene))
        elif front is not None:
            for attacker in (
                PUBLIC_FILES,
                *adaptive(scene.assembly.config, scene.client(upload), scene.public),
            ):
                timed(
                    findings.cell("canaries", attacker.name),
                    partial(_by_span, upload, scene, front, attacker),
                )


def exposure(scores: Tensor) -> float:
    """Of the first; higher scores fit better."""
    mine, others = scores[0], scores[1:]
    rank = 1 + float((others > mine).sum()) + float((others == mine).sum()) / 2
    return log2(len(scores)) - log2(rank)


def _by_rows(upload: Upload, scene: Scene) -> Figures | None:
    """A phrase fits as well as the one of its tokens that moved least."""
    names, ranking, phrases = (
        row_names(scene.assembly, upload),
        attackers.told_words(upload),
        _tried(upload, scene),
    )
    rows = [list(names.ids(phrase)) for phrase in phrases]
    if ranking is None or not rows[0]:  # none of its words is in the list
        return None
    last = len(names.tokens)
    places = torch.full((last,), last)
    places[ranking] = torch.arange(len(ranking))
    scores = torch.tensor([-max(places[ids].tolist(), default=last) for ids in rows])
    count = len(names.read(scene.client(upload).train))
    return _figures(scores, without(ranking, names.always), names.prior, set(rows[0]), count)


def _by_span(upload: Upload, scene: Scene, front: FrontEnd, attacker: Attacker) -> Figures | None:
    found, phrases = attackers.spectrum([upload], front.is_first, attacker), _tried(upload, scene)
    if found is None:
        return None
    scores = leakage.sentence_scores(found, [front.inputs(phrase, attacker) for phrase in phrases])
    ranking, prior = front.ranking(found, attacker), torch.arange(len(front.words))
    return _figures(
        scores,
        ranking,
        prior,
        set(front.ids(phrases[0])),
        len(true_words(scene.client(upload), front)),
    )


def _tried(upload: Upload, scene: Scene) -> list[str]:
    """The planted phrase, then what it is ranked among."""
    config, phrase = scene.assembly.config, scene.canaries[upload.client]
    others = canaries.drawn(
        canaries.slots(config), PHRASES, derive(root(config.seed), "tried", upload.client)
    )
    return [phrase, *(other for other in others if other != phrase)][:PHRASES]


def _figures(
    scores: Tensor, ranking: Tensor, prior: Tensor, phrase: set[int], count: int
) -> Figures:
    """The exposure, and how many of the phrase's words are among as many guesses as the client has
    words.
    """
    recall, known = (
        len(phrase & set(ids[:count].tolist())) / len(phrase) for ids in (ranking, prior)
    )
    return {"exposure": exposure(scores), "recall_at_n": recall, "prior_recall_at_n": known}
