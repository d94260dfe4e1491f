"""A rotation that all clients share, found from their uploads and public files alone.

Short reviews (up to twelve words), two a client, real word vectors where there are some, the real BiLSTM and FedeVocab's
own handler. Figures in the comments are what was measured when the test was written.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from lexfed.audits.closed_form import alignment
from lexfed.audits.closed_form.alignment import covariance, gram, meet
from lexfed.audits.closed_form.attackers import turned_by
from lexfed.audits.closed_form.row_names import used
from lexfed.core.params import Params
from lexfed.core.seeds import numpy_generator, root, torch_generator
from lexfed.corpus.population import Client, Population
from lexfed.corpus.text import Corpus
from lexfed.federation import ClientState
from lexfed.learning.defences import Defences
from lexfed.learning.training_verbs import TRAIN
from lexfed.methods.fedevocab import FedeVocab, fedevocab
from lexfed.metrics.leakage import Spectrum, ranking, score_words, span
from lexfed.models.bilstm import INPUTS
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.rotation import rotated, rotation
from lexfed.wire import Message, below, under
from tests.conftest import needs_data
from tests.unit.test_defences import CLOCK, SIZE, D, parts, public, reviews

WHITE = Defences(rotation="shared", whiten=True)
Q = rotation(root(1), D)


@cache
def short() -> Corpus:
    """Reviews of at most twelve words."""
    sizes = np.array([len(words(text)) for text in reviews()])
    return reviews().take(np.flatnonzero(sizes <= 12))


def holders(count: int, texts: int = 2, corpus: Corpus | None = None) -> list[Client]:
    held = short() if corpus is None else corpus
    starts = texts * np.arange(count + 1, dtype=np.int64)
    nothing = held.take(np.arange(0))
    people = Population(held, starts, nothing, nothing, classes=2, secret=root(7))
    return [people.client(number) for number in range(count)]


def sent(clients: list[Client], defences: Defences, **options: object) -> list[Params]:
    options = {"optimizer": "sgd", "lr": 0.1, **options}
    part = replace(parts(hidden=50, **options), defences=defences)
    method = fedevocab(part, FedeVocab())
    message = Message(under("model", method.split.shared(part.task.init(root(1)))), CLOCK)
    train = method.client[TRAIN]
    return [below("delta", train(message, one, ClientState())[0].arrays) for one in clients]  # type: ignore[union-attr]


def spectra(uploads: list[Params]) -> list[Spectrum]:
    return [span(*(upload[name] for name in INPUTS)) for upload in uploads]


def table(defences: Defences) -> Tensor:
    rows = rotated(public(), None, whiten=defences.whiten).vectors[:SIZE]
    return torch.from_numpy(np.array(rows, dtype=np.float32))


def recall(
    uploads: list[Params], clients: list[Client], view: Tensor, basis: Tensor
) -> Tensor:  # (2,)
    """Recall at n and that of the prior, in the mean."""
    leaks = []
    for upload, client in zip(uploads, clients, strict=True):
        truth = {public().ids[w] for text in client.train for w in words(text) if w in public().ids}
        found = span(*(upload[name] @ basis for name in INPUTS))
        leak = score_words(ranking(found, view @ basis), truth, torch.arange(SIZE), public().words)
        leaks.append([leak.recall_at_n, leak.prior_recall_at_n])
    return torch.tensor(leaks).mean(0)


# --- gram ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("defences", [Defences(rotation="shared"), replace(WHITE, normalise=True)])
def test_a_few_short_uploads_give_a_shared_rotation_away(defences: Defences) -> None:
    """16 uploads of two short texts: 1.00 of the words, whitened or not, of one length or not; blind attackers 0.00."""
    clients = holders(16)
    uploads, x = sent(clients, defences), table(defences)
    found = gram(spectra(uploads), x)
    assert found is not None
    assert found.words >= 50
    read, prior = recall(uploads, clients, x @ found.rotation, found.basis)
    blind, _ = recall(uploads, clients, x, torch.eye(D))
    assert read >= 0.9 > prior + 0.4
    assert blind < 0.05


def test_what_is_not_enough_is_said_to_be_nothing() -> None:
    """The pairs: three uploads have too little in common, Adam leaves no span, long texts fill the space; and a rotation
    for each client leaves nothing in common.
    """
    clients = holders(16)
    assert gram(spectra(sent(clients[:3], WHITE)), table(WHITE)) is None
    assert gram(spectra(sent(clients, WHITE, optimizer="adam", lr=5e-3)), table(WHITE)) is None
    long = holders(3, 16, reviews())
    assert all(one.sharp_rank is None for one in spectra(sent(long, WHITE)))
    own = Defences(rotation="own", whiten=True)
    assert gram(spectra(sent(clients, own)), table(own)) is None


def test_a_word_that_everybody_has_is_taken_out_first() -> None:
    """Whole reviews end in a full stop: every walk through spans ends there. 20 uploads of one review each: 0.9 to 1.0."""
    clients = holders(20, 1, reviews())
    uploads, x = sent(clients, WHITE), table(WHITE)
    spans = [one.axes[:, : one.sharp_rank] for one in spectra(uploads)]
    assert len(alignment.atoms(spans, np.random.default_rng(0))) < alignment.SEEDS + 2
    found = gram(spectra(uploads), x)
    assert found is not None
    read, prior = recall(uploads, clients, x @ found.rotation, found.basis)
    assert read >= 0.85 > prior + 0.4


def test_what_two_spans_have_in_common() -> None:
    vectors = torch.randn(5, 20, generator=torch_generator(root(1)), dtype=torch.float64)
    one, other = (torch.linalg.qr(vectors[ids].T).Q for ids in ([0, 1, 2], [2, 3, 4]))
    both = meet(one, other)
    assert both.shape == (20, 1)
    assert abs(float(both[:, 0] @ vectors[2]) / float(vectors[2].norm())) == pytest.approx(1.0)
    assert meet(one, torch.linalg.qr(vectors[3:].T).Q).shape == (20, 0)


def test_half_of_a_rotation_is_enough_for_few_words() -> None:
    """d/2 known words: what they span is compared, and the rest left out. With the rest turned anyhow: 0.2."""
    clients = holders(4)
    uploads, x = sent(clients, WHITE), table(WHITE)
    turn = rotation(WHITE.key(clients[0]) or b"", D)
    known = x[torch.randperm(SIZE, generator=torch_generator(root(2)))[: D // 2]] @ turn
    half = torch.linalg.qr(known.T).Q
    one = turned_by("half", turn, half)
    assert one.view(x).shape == (SIZE, D // 2)
    assert one.sees(uploads[0][INPUTS[0]]).shape[1] == D // 2
    read, _ = recall(uploads, clients, x @ turn, half)
    assert read >= 0.95


# --- covariance ----------------------------------------------------------------------------------


def named(guess: Tensor, x: Tensor, among: int = 2000) -> float:
    """The share of turned words whose nearest public word, turned back, is the word itself."""
    unit = torch.nn.functional.normalize(x)
    return float(
        ((x[:among] @ Q @ guess.T) @ unit.T).argmax(1).eq(torch.arange(among)).float().mean()
    )


def skewed(white: bool) -> Tensor:
    """Vectors along few axes, as real ones are, and the same without axes."""
    rng = numpy_generator(root(4))
    plain = rng.normal(size=(5000, D)) * np.geomspace(4, 0.2, D) + rng.normal(size=D)
    if white:
        plain = plain - plain.mean(0)
        values, axes = np.linalg.eigh(np.cov(plain.T))
        plain = plain @ (axes / np.sqrt(values)) @ axes.T
    return torch.from_numpy(plain.astype(np.float32))


@pytest.mark.parametrize("white", [False, True])
def test_axes_laid_on_axes_are_the_rotation_unless_there_are_none(white: bool) -> None:
    """The ideal case: every word once, each vector alone. 1.00 of the words are named; of whitened ones 0.00."""
    x = skewed(white)
    seen = (x @ Q).double()
    guess = covariance(seen.T @ seen, seen.mean(0), x, torch.ones(len(x)))
    assert named(guess, x) < 0.01 if white else named(guess, x) > 0.95


@needs_data  # numbers that are made from words have no axes of any kind
def test_text_does_not_use_every_word_once() -> None:
    """So words that were whitened as a list still have an axis as text: the first one is found, cosine 0.9 and more."""
    x, counts = table(WHITE).double(), used(public().words[:SIZE])
    assert counts.sum() > 50_000
    drawn = numpy_generator(root(5)).choice(SIZE, 5000, p=(counts / counts.sum()).numpy())
    seen = x[drawn] @ Q.double()
    guess = covariance(seen.T @ seen, seen.mean(0), x.float(), counts).double()
    share = counts / counts.sum()
    first = torch.linalg.eigh((x * share[:, None]).T @ x).eigenvectors[:, -1]
    assert (first @ guess) @ (first @ Q.double()) > 0.9
    assert named(guess.float(), x.float()) < 0.5, "and that is far from all of it"
