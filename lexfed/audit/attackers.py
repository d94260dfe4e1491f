"""Attacks on one upload in closed form, each with what its attacker knows: public files, and perhaps something more.

    rows       public files                 rows of a shared table that moved are words
    span       public files                 the first matrix that travels moved within the span of the client's words
    span       d/2 or d known words         has seen so many words both in public and as clients turn them: Procrustes
    span       a colluding client           has the clients' common secret
    norms      isolated vectors             has every word's vector as the client turned it, and matches lengths
    sentences  public files                 is this sentence of the client's?
    labels     public files                 how frequent is each class?
    inversion  public files and lengths     the texts whose gradient the upload is; also named by another model's table

A guess is a ranking or a score. The truth is not known here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lexfed.audit.uploads import Upload
from lexfed.metrics import leakage
from lexfed.metrics.leakage import Spectrum
from lexfed.params import Rows
from lexfed.vocabulary.rotation import aligned

# the matrices that multiply word vectors first, in the models there are
FIRST = ("lstm.weight_ih_l0", "lstm.weight_ih_l0_reverse")
TABLES = ("embedding.weight", "input")  # of a classifier or language model; of word vectors
BIAS = "output.bias"


@dataclass(frozen=True, eq=False)
class Public:
    """What everybody can have: a word list with vectors, most frequent first, and the list that a shared table has."""

    words: Sequence[str] = ()
    vectors: Tensor | None = None  # (C, d)
    tokens: Sequence[str] = ()  # of the shared vocabulary, by row

    @property
    def prior(self) -> Tensor:
        return torch.arange(len(self.words))

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {word: place for place, word in enumerate(self.words)}


@dataclass(frozen=True)
class Attacker:
    """Who attacks, and how public vectors look to it: as they are, or turned as far as it knows how."""

    name: str
    view: Callable[[Tensor], Tensor] = lambda vectors: vectors


PUBLIC_FILES = Attacker("public files")
LENGTHS = Attacker("public files and lengths")
ANOTHER_TABLE = Attacker("another model's table")


def colluder(rotation: Tensor) -> Attacker:
    return Attacker("a colluding client", lambda vectors: vectors @ rotation)


def knows_words(share: float, vectors: Tensor, rotation: Tensor, generator: torch.Generator) -> Attacker:
    """Some pairs of a public vector and what the clients made of it, as many as a share of d: then Procrustes."""
    count = max(1, round(share * vectors.shape[1]))
    known = vectors[torch.randperm(len(vectors), generator=generator)[:count]]
    guess = aligned(known, known @ rotation)
    return Attacker(f"{share:g} d known words", lambda others: others @ guess)


def moved_words(upload: Upload) -> Tensor | None:
    """Ids of the shared vocabulary, those that moved furthest first; None: no table travels."""
    for name in TABLES:
        if name in upload.delta:
            return leakage.moved_rows(upload.delta[name])
    return None


def spectrum(upload: Upload) -> Spectrum | None:
    """None: nothing that multiplies word vectors travels."""
    first = [value for name in FIRST if isinstance(value := upload.delta.get(name), Tensor)]
    return leakage.span(*first) if first and all(bool(value.isfinite().all()) for value in first) else None


def spanned_words(found: Spectrum, public: Public, attacker: Attacker) -> Tensor:
    if public.vectors is None:
        raise ValueError("a span is compared with public vectors")
    return leakage.ranking(found, attacker.view(public.vectors))


def matched_by_norm(turned: Tensor, public: Tensor) -> Tensor:  # (n,)
    """For each isolated vector the public word whose length is nearest: a rotation leaves lengths as they are."""
    lengths, order = torch.linalg.vector_norm(public, dim=1).sort()
    wanted = torch.linalg.vector_norm(turned, dim=1)
    right = torch.searchsorted(lengths, wanted).clamp(max=len(lengths) - 1)
    left = (right - 1).clamp(min=0)
    nearer = torch.where((wanted - lengths[left]).abs() <= (lengths[right] - wanted).abs(), left, right)
    matched: Tensor = order[nearer]
    return matched


def sentence_scores(found: Spectrum, sentences: Sequence[Sequence[int]], public: Public, attacker: Attacker) -> Tensor:
    if public.vectors is None:
        raise ValueError("sentences are compared by public vectors")
    view = attacker.view(public.vectors)
    return leakage.sentence_scores(found, [view[torch.tensor(ids)] for ids in sentences])


def label_scores(upload: Upload) -> Tensor | None:
    bias: Tensor | Rows | None = upload.delta.get(BIAS)
    return leakage.label_shares(bias) if isinstance(bias, Tensor) and bias.ndim == 1 else None


THREATS: Mapping[str, str] = {
    "public files": "sees every message of every client; knows the model, the method and every public file",
    "0.5 d known words": "the same, and knows d/2 words both in public and as the clients' secret rotation turns them",
    "1 d known words": "the same, and knows d words both in public and as the clients' secret rotation turns them",
    "a colluding client": "the same, and one client gave it what clients share and the server lacks",
    "knows half of the users": "public files, and the attribute in question of one half of the users, who told it",
    "isolated vectors": "has each of the client's word vectors alone, as the client turned it: more than an upload gives",
    "public files and lengths": "public files, and how many words each text of the client has",
    "another model's table": "the same, but names vectors by a table not the client's, as FedeVocab's attacker does",
    "the released model": "has the model that training ended with, and the text in question with its label; saw no message",
    "shadow models": "the same, and trains models of its own on texts like theirs, with and without the one in question",
}
