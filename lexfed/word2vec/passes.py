"""Training word vectors on one organisation's text: which stretch, which pairs, which rows, and how
they moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lexfed.core.kernels import subtract_rows
from lexfed.core.params import Rows, Update
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.corpus.population import Client
from lexfed.federation import ClientState
from lexfed.models import skipgram
from lexfed.models.skipgram import INPUT, OUTPUT, Floats, Ints, Text, Unigrams
from lexfed.vocabulary.shards import pieces
from lexfed.word2vec.options import Word2Vec
from lexfed.word2vec.replica import PUBLIC, Readings

Counts = npt.NDArray[np.int64]

NEAR = 128  # centres in a row that share negatives


@dataclass(frozen=True)
class Moment:
    """Where in a run we are, and the learning rate there."""

    round: int
    rounds: int
    pace: float = 1.0  # of `Word2Vec`

    @property
    def done(self) -> tuple[float, float]:
        """The share of all training at the beginning and at the end of the round."""
        first, last = (number / self.rounds for number in (self.round, self.round + 1))
        return first**self.pace, last**self.pace

    def rate(self, lr: float) -> tuple[float, float]:
        """At the beginning and at the end of the round."""
        first, last = (lr * max(0.01, 1 - done) for done in self.done)
        return first, last


def stretch(text: Text, epochs: float, moment: Moment, secret: Seed) -> Text:
    """This round's share of the text. Each pass goes through its pieces in an order of its own."""
    count = len(text.starts) - 1
    first, last = (round(count * epochs * done) for done in moment.done)
    numbers: list[int] = []
    while first < last:
        epoch, place = divmod(first, count)
        order = numpy_generator(derive(secret, "order", epoch)).permutation(count)
        numbers.extend(order[place : place + last - first])
        first += min(count - place, last - first)
    return pieces(text, np.array(numbers, dtype=np.int64))


def _number(seed: Seed, name: str) -> int:
    return int.from_bytes(derive(seed, name)[:7], "big")


@dataclass(frozen=True, eq=False)
class Gathered:
    """Copies of the rows that a text touches, and the text and its negatives as places in them."""

    v_ids: Ints
    u_ids: Ints
    v_rows: Floats
    u_rows: Floats
    centres: Ints
    words: Ints
    negatives: Ints


def gather(tables: Mapping[str, Floats], centres: Ints, words: Ints, negatives: Ints) -> Gathered:
    size = len(tables[INPUT])
    v_ids, (v_places,) = _places(size, centres)
    u_ids, (u_places, negative_places) = _places(size, words, negatives)
    return Gathered(
        v_ids, u_ids, tables[INPUT][v_ids], tables[OUTPUT][u_ids],
        v_places, u_places, negative_places,
    )  # fmt: skip


def _places(size: int, *arrays: Ints) -> tuple[Ints, list[Ints]]:
    """The distinct ids of these arrays, ascending, and the arrays as places among them."""
    total = sum(array.size for array in arrays)
    if total * 8 < size:  # few ids: sorting them is cheaper than a mark for every word there is
        ids, places = np.unique(
            np.concatenate([array.reshape(-1) for array in arrays]), return_inverse=True
        )
        cuts = np.split(places.astype(np.int32), np.cumsum([array.size for array in arrays])[:-1])
        return ids, [cut.reshape(array.shape) for cut, array in zip(cuts, arrays, strict=True)]
    seen = np.zeros(size, dtype=bool)
    for array in arrays:
        seen[array.reshape(-1)] = True
    ids = np.flatnonzero(seen).astype(np.int32)
    place = np.empty(size, np.int32)
    place[ids] = np.arange(len(ids), dtype=np.int32)
    return ids, [place[array] for array in arrays]


def draw_negatives(unigrams: Unigrams, centres: int, options: Word2Vec, seed: Seed) -> Ints:
    """Of each centre, (n, K). Those of some centres in a row are drawn together and serve in turn,
    `reuse` times each: their rows are still in the processor's cache when they are met again.
    """
    each = NEAR * options.negatives
    drawn = max(options.negatives, -(-each // options.reuse))
    shape = -(-centres // NEAR), drawn
    few: Ints = skipgram.draw(unigrams.table, shape, _number(seed, "negatives"))
    return few[:, np.arange(each) % drawn].reshape(-1, options.negatives)[:centres]


def local_pass(
    tables: Mapping[str, Floats],
    text: Text,
    unigrams: Unigrams,
    options: Word2Vec,
    moment: Moment,
    seed: Seed,
) -> Update:
    """SGD over a stretch of text; how the touched rows moved."""
    tokens, starts = skipgram.thin(text.tokens, text.starts, unigrams.keep, _number(seed, "thin"))
    low, high = skipgram.windows(starts, options.window, _number(seed, "windows"))
    negatives = draw_negatives(unigrams, len(tokens), options, seed)
    rows = gather(tables, tokens, tokens, negatives)
    v_counts, u_counts = np.zeros(len(rows.v_ids), np.int64), np.zeros(len(rows.u_ids), np.int64)
    text_places, windows = (rows.centres, rows.words), (low, high)
    loss, met = skipgram.sgd_pass(
        rows.v_rows, rows.u_rows, text_places, windows, rows.negatives, 1.0,
        moment.rate(options.lr), (v_counts, u_counts),
    )  # fmt: skip
    subtract_rows(rows.v_rows, tables[INPUT], rows.v_ids)
    subtract_rows(rows.u_rows, tables[OUTPUT], rows.u_ids)
    counts = _counted(v_counts, options), _counted(u_counts, options)
    return _update(rows, rows.v_rows, rows.u_rows, *counts, loss, met)


def sgd_in_place(
    tables: Mapping[str, Floats],
    text: Text,
    unigrams: Unigrams,
    options: Word2Vec,
    moment: Moment,
    seed: Seed,
) -> None:
    """The same, with all rows at hand and nobody to tell: what training in one place does."""
    for name, rows in local_pass(tables, text, unigrams, options, moment, seed).items():
        if isinstance(rows, Rows):
            tables[name.removeprefix("delta/")][rows.ids.numpy()] += rows.values.numpy()


def gradient(
    tables: Mapping[str, Floats],
    text: Text,
    unigrams: Unigrams,
    options: Word2Vec,
    moment: Moment,
    seed: Seed,
) -> Update:
    """One batch of consecutive text, from a random place: a step along its gradient, by touched
    rows.
    """
    batch = draw_batch(text, unigrams, options, seed)
    rows = gather(tables, batch.centres, batch.contexts, batch.negatives)
    v_counts, u_counts = np.zeros(len(rows.v_ids), np.int64), np.zeros(len(rows.u_ids), np.int64)
    grad_v, grad_u, loss = skipgram.batch_gradient(
        rows.v_rows, rows.u_rows, rows.centres, rows.words, rows.negatives,
        options.negatives / options.shared, v_counts, u_counts,
    )  # fmt: skip
    lr = np.float32(moment.rate(options.lr)[0])
    counts = _counted(v_counts, options), _counted(u_counts, options)
    return _update(rows, -lr * grad_v, -lr * grad_u, *counts, loss, len(batch.centres))


@dataclass(frozen=True, eq=False)
class Pairs:
    centres: Ints  # (B,)
    contexts: Ints  # (B,)
    negatives: Ints  # (S,) shared by all, or (B, K)

    def loss(self, tables: Mapping[str, Floats]) -> float:
        """Summed, with negatives of each pair's own."""
        return float(
            skipgram.pair_loss(
                tables[INPUT], tables[OUTPUT], self.centres, self.contexts, self.negatives
            )
        )


def draw_batch(text: Text, unigrams: Unigrams, options: Word2Vec, seed: Seed) -> Pairs:
    negatives = skipgram.draw(unigrams.table, (options.shared,), _number(seed, "negatives"))
    count = len(text.starts) - 1
    if count == 0:
        return Pairs(np.empty(0, np.int32), np.empty(0, np.int32), negatives)
    place = int(numpy_generator(derive(seed, "place")).integers(count))
    # words: a position has window + 1 contexts in the mean, some are left out
    enough = 4 * options.batch // options.window
    length = np.diff(text.starts)
    stop = place + 1 + int(np.searchsorted(np.cumsum(length[place:]), enough))
    some = pieces(text, np.arange(place, min(stop, count)))
    tokens, starts = skipgram.thin(some.tokens, some.starts, unigrams.keep, _number(seed, "thin"))
    low, high = skipgram.windows(starts, options.window, _number(seed, "windows"))
    centres, contexts = skipgram.batch_pairs(tokens, low, high, options.batch)
    return Pairs(centres, contexts, negatives)


def _counted(counts: Counts, options: Word2Vec) -> Counts:
    """How often rows were moved, as far as it counts."""
    return np.minimum(counts, options.most_pairs)


def _update(
    rows: Gathered,
    v_rows: Floats,
    u_rows: Floats,
    v_counts: Counts,
    u_counts: Counts,
    loss: float,
    pairs: int,
) -> Update:
    moved = {
        f"delta/{INPUT}": Rows(
            torch.from_numpy(rows.v_ids).long(),
            torch.from_numpy(v_rows),
            counts=torch.from_numpy(v_counts),
        ),
        f"delta/{OUTPUT}": Rows(
            torch.from_numpy(rows.u_ids).long(),
            torch.from_numpy(u_rows),
            counts=torch.from_numpy(u_counts),
        ),
    }
    figures = {"weight": float(pairs), "loss": loss, "nodes": 1.0}
    return {**moved, **{name: torch.tensor(value) for name, value in figures.items()}}


def heldout_pairs(
    readings: Readings, state: ClientState, client: Client, options: Word2Vec
) -> Pairs:
    """Pairs and negatives of the client's own held-out text: fixed, so that every model is asked
    the same.
    """
    text = readings.text(
        state, client, "test", client.test if client.test is not None else client.common_test
    )
    seed = derive(PUBLIC, "heldout", client.id)
    low, high = skipgram.windows(text.starts, options.window, _number(seed, "windows"))
    total = int((high - low - 1).sum())
    centres, contexts = skipgram.batch_pairs(text.tokens, low, high, total)
    some = np.sort(numpy_generator(seed).permutation(total)[: options.heldout_pairs])
    frequencies = readings.frequencies(state, client)
    negatives = skipgram.draw(
        frequencies.table, (len(some), options.negatives), _number(seed, "negatives")
    )
    return Pairs(centres[some], contexts[some], negatives)
