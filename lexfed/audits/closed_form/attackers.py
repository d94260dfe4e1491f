"""Attacks on one upload in closed form, each with what its attacker knows: public files, and
perhaps something more.

    rows       public files              rows of a shared table that moved are words
    span       public files              the first matrix that travels moved within the span of the
                                         client's words
    span       d/2 or d known words      has seen so many words both in public and as clients turn
                                         them: Procrustes
    span       a colluding client        has the clients' common secret
    span       every round of a client   adds up what it saw of one client
    span       covariance, gram          looks for the rotation in all uploads (`alignment`)
    norms      isolated vectors          has every word's vector as the client turned it, and
                                         matches lengths
    sentences  public files              is this sentence of the client's?
    labels     public files              how frequent is each class?
    inversion  public files and lengths  the texts whose gradient the upload is; also named by
                                         another model's table

A guess is a ranking or a score. The truth is not known here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lexfed.audits.uploads import Upload
from lexfed.metrics import leakage
from lexfed.metrics.leakage import Spectrum
from lexfed.vocabulary.tables.rotation import aligned

TABLES = ("embedding.weight", "input")  # of a classifier or language model; of word vectors
PRETRAINED = ".word_embeddings.weight"  # of an encoder
OUTPUTS = "output"  # of word vectors
BIASES = ("output.bias", "classifier.bias", "classifier.out_proj.bias")


@dataclass(frozen=True, eq=False)
class Public:
    """What everybody can have: a word list with vectors, most frequent first, and the list that a
    shared table has.
    """

    words: Sequence[str] = ()
    vectors: Tensor | None = None  # (C, d)
    tokens: Sequence[str] = ()  # of the shared vocabulary, by row

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {word: place for place, word in enumerate(self.words)}


@dataclass(frozen=True)
class Attacker:
    """Who attacks, and how public vectors look to it: as they are, or turned as far as it knows
    how. What it does not know of a rotation it leaves out of vectors and uploads alike.
    """

    name: str
    view: Callable[[Tensor], Tensor] = lambda vectors: vectors
    sees: Callable[[Tensor], Tensor] = lambda moved: moved


PUBLIC_FILES = Attacker("public files")
LENGTHS = Attacker("public files and lengths")
ANOTHER_TABLE = Attacker("another model's table")
EVERY_ROUND = Attacker("every round of a client")


def colluder(rotation: Tensor) -> Attacker:
    return Attacker("a colluding client", lambda vectors: vectors @ rotation)


def knows_words(
    share: float, vectors: Tensor, rotation: Tensor, generator: torch.Generator
) -> Attacker:
    """Some pairs of a public vector and what the clients made of it, as many as a share of d: then
    Procrustes. It is right where these pairs lie, and any turn will do for it elsewhere: so with
    fewer than d the rest is left out.
    """
    count = max(1, round(share * vectors.shape[1]))
    known = vectors[torch.randperm(len(vectors), generator=generator)[:count]]
    guess = aligned(known, known @ rotation)
    return turned_by(f"{share:g} d known words", guess, torch.linalg.qr((known @ rotation).T).Q)


def turned_by(name: str, rotation: Tensor, basis: Tensor) -> Attacker:
    """Who knows a rotation as far as this basis (d, r) of turned vectors reaches."""
    if basis.shape[0] == basis.shape[1]:
        return Attacker(name, lambda vectors: vectors @ rotation)
    return Attacker(name, lambda vectors: vectors @ rotation @ basis, lambda moved: moved @ basis)


def moved_words(upload: Upload) -> Tensor | None:
    """Rows of the table of words that moved, those that moved furthest first; None: no such table
    travels.

    A language model whose output is tied to it moves all rows: those of its text are ahead.
    """
    for name, table in upload.delta.items():
        if name in TABLES or name.endswith(PRETRAINED):
            return leakage.moved_rows(table)
    return None


def moved_outputs(upload: Upload) -> Tensor | None:
    """Rows that the output tells of; None: it has none that stand for words.

    Of word vectors: contexts, and the negatives beside them. Of a language model: what its bias
    says.
    """
    return (
        leakage.moved_rows(upload.delta[OUTPUTS]) if OUTPUTS in upload.delta else _came_next(upload)
    )


def told_words(upload: Upload) -> Tensor | None:
    """Rows by what tells most: a language model's bias, as its table may be tied to the output;
    else the table.
    """
    came = _came_next(upload)
    return moved_words(upload) if came is None else came


def _came_next(upload: Upload) -> Tensor | None:
    """A bias with a number for every token goes up where a token came more often than was
    expected.
    """
    bias, table = upload.delta.get(BIASES[0]), upload.delta.get(TABLES[0])
    if not isinstance(bias, Tensor) or not isinstance(table, Tensor) or len(bias) != len(table):
        return None
    return bias.argsort(descending=True, stable=True)[: int((bias > 0).sum())]


def spectrum(
    uploads: Sequence[Upload],
    is_first: Callable[[str, Tensor], bool],
    attacker: Attacker = PUBLIC_FILES,
) -> Spectrum | None:
    """Of all these uploads together; None: nothing that multiplies word vectors travels."""
    moved = ((name, value) for upload in uploads for name, value in upload.delta.items())
    first = [value for name, value in moved if isinstance(value, Tensor) and is_first(name, value)]
    return (
        leakage.span(*(attacker.sees(value) for value in first))
        if first and all(bool(value.isfinite().all()) for value in first)
        else None
    )


def matched_by_norm(turned: Tensor, public: Tensor) -> Tensor:  # (n,)
    """For each isolated vector the public word whose length is nearest: a rotation leaves lengths
    as they are.
    """
    lengths, order = torch.linalg.vector_norm(public, dim=1).sort()
    wanted = torch.linalg.vector_norm(turned, dim=1)
    right = torch.searchsorted(lengths, wanted).clamp(max=len(lengths) - 1)
    left = (right - 1).clamp(min=0)
    nearer = torch.where(
        (wanted - lengths[left]).abs() <= (lengths[right] - wanted).abs(), left, right
    )
    matched: Tensor = order[nearer]
    return matched


def label_scores(upload: Upload) -> Tensor | None:
    bias = next((upload.delta[name] for name in BIASES if name in upload.delta), None)
    return leakage.label_shares(bias) if isinstance(bias, Tensor) and bias.ndim == 1 else None


THREATS: Mapping[str, str] = {
    "public files": (
        "sees every message of every client; knows the model, the method and every public file"
    ),
    "0.5 d known words": (
        "the same, and knows d/2 words both in public and as the client's secret rotation turns "
        "them"
    ),
    "1 d known words": (
        "the same, and knows d words both in public and as the client's secret rotation turns them"
    ),
    "a colluding client": (
        "the same, and one client gave it what clients share and the server lacks"
    ),
    "every round of a client": "public files, and adds up what it saw of one client in all rounds",
    "covariance": (
        "public files, and lays the second moments of all uploads on those of public text, to find "
        "the secret rotation"
    ),
    "gram": (
        "public files, and matches angles between what the uploads of few words have in common, to "
        "find the secret rotation"
    ),
    "another organisation": "reads the word list that was agreed on, and its own text",
    "isolated vectors": (
        "has each of the client's word vectors alone, as the client turned it: more than an upload "
        "gives"
    ),
    "public files and lengths": "public files, and how many words each text of the client has",
    "another model's table": (
        "the same, but names vectors by a table not the client's, as FedeVocab's attacker does"
    ),
    "knows half of the users": (
        "public files, and the attribute in question of one half of the users, who told it"
    ),
    "knows half of the users, reads the bias": (
        "the same, and looks at the output's bias alone, where words are counted"
    ),
    "every released model": (
        "has every model that training went through, and knows what all other users sent"
    ),
    "the released model": (
        "has the model that training ended with, and the text in question with its label; saw no "
        "message"
    ),
    "shadow models": (
        "the same, has all clients' texts but not who joined, and trains models with and without "
        "each client"
    ),
}
