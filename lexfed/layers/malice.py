"""Malicious clients in a simulation: what does a federation withstand?

    scale             send -factor times the update                     model poisoning
    nan               send what is no number
    flip_labels       train on label C - 1 - y instead of y             data poisoning
    stuff_vocabulary  propose invented words, and say that everything occurs `factor` times as often

A layer on handlers, so that worker processes have it too. Who is malicious hangs from the seed, and
more of them are the same ones and others. They collude: all invent the same words. Evaluation
belongs to the experimenter, who lets every client score honestly. What they send passes the gates
that everyone's replies pass: a client that breaks the form of a message is not heard at all.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.corpus.population import Client, Population
from lexfed.corpus.text import Corpus
from lexfed.federation import Answer, ClientState, Handler, Layer
from lexfed.wire import ClientId, Message, Verb

COPIES = 100  # texts that hold all the invented words
LETTERS = 12  # of an invented word: nobody has it by chance


@dataclass(frozen=True)
class Malice:
    """The `[malice]` table: clients of a simulation that do harm."""

    clients: int = 0  # how many of the clients lie
    kind: Literal["scale", "flip_labels", "stuff_vocabulary", "nan"] = "scale"  # what they do
    # scale: of the update, whose sign is turned; stuff_vocabulary: of the counts
    factor: float = 10.0
    words: int = 1000  # stuff_vocabulary: invented ones

    def __post_init__(self) -> None:
        if self.clients < 0 or self.words < 1 or not self.factor > 0:
            raise ConfigError(
                "malice.clients must be at least 0, malice.words at least 1, malice.factor above 0"
            )


def malice(options: Malice, people: Population) -> Layer:
    """Evaluation belongs to the experimenter: everybody scores honestly."""
    liars = malicious(options, people)

    def layer(verb: Verb, handler: Handler) -> Handler:
        lying = corrupted(handler, verb, options, people.classes)

        def handle(message: Message, client: Client, state: ClientState) -> Answer:
            return (lying if client.id in liars else handler)(message, client, state)

        return handler if verb.kind == "figures" else handle

    return layer


def malicious(options: Malice, people: Population) -> frozenset[ClientId]:
    order = numpy_generator(derive(people.secret, "malice")).permutation(len(people))
    return frozenset(order[: options.clients].tolist())


def corrupted(handler: Handler, verb: Verb, options: Malice, classes: int) -> Handler:
    def handle(message: Message, client: Client, state: ClientState) -> Answer:
        reply, after = handler(message, _poisoned(client, verb, options, classes), state)
        if reply is None:
            return None, after
        return replace(reply, arrays=_poisoned_reply(reply.arrays, verb, options)), after

    return handle


def _poisoned(client: Client, verb: Verb, options: Malice, classes: int) -> Client:
    """The client with other texts than its own."""
    if options.kind == "flip_labels":
        return replace(client, train=_flipped(client.train, classes))
    if options.kind == "stuff_vocabulary" and verb.kind == "list":
        return replace(
            client, train=_stuffed(client.train, invented(options.words, client.common_secret))
        )
    return client


def _flipped(corpus: Corpus, classes: int) -> Corpus:
    return (
        corpus
        if corpus.label_column is None
        else replace(corpus, label_column=classes - 1 - corpus.label_column)
    )


def invented(words: int, secret: Seed) -> list[str]:
    """From what the clients share: colluding ones propose the same."""
    letters = numpy_generator(derive(secret, "invented")).integers(
        ord("a"), ord("z") + 1, (words, LETTERS)
    )
    return [bytes(word.tolist()).decode() for word in letters]


def _stuffed(corpus: Corpus, words: list[str]) -> Corpus:
    """The texts, and some more behind them. Its own are not copied: there may be gigabytes of
    them.
    """
    turned = (words[place % len(words) :] + words[: place % len(words)] for place in range(COPIES))
    # no two alike: `dp` draws words by the text
    more = pa.array([" ".join(text) for text in turned], corpus.texts.type)
    own = corpus.texts.chunks if isinstance(corpus.texts, pa.ChunkedArray) else [corpus.texts]
    rows = np.concatenate([corpus.rows, len(corpus.texts) + np.arange(COPIES)])
    return Corpus(rows, pa.chunked_array([*own, more]))


def _poisoned_reply(arrays: Params, verb: Verb, options: Malice) -> Params:
    if options.kind in ("scale", "nan") and verb.kind == "update":
        factor = -options.factor if options.kind == "scale" else float("nan")
        return {
            name: value * factor if _carries(name, arrays) else value
            for name, value in arrays.items()
        }
    if options.kind == "stuff_vocabulary" and verb.kind == "list":
        numbers = {name: arrays[name] for name in ("counts", "weights") if name in arrays}
        louder = {
            name: (value.double() * options.factor).to(value.dtype)
            for name, value in numbers.items()
        }
        return {**arrays, **{name: value.clamp_min(1) for name, value in louder.items()}}
    return arrays


def _carries(name: str, arrays: Params) -> bool:
    """Whether an array makes the size of a delta: its scale where it was rounded to steps, else its
    values.
    """
    base, _, part = name.partition("#")
    rounded = f"{base}#scale" in arrays
    return base.startswith("delta/") and (
        part == "scale" if rounded else part in ("", "fp16", "values")
    )
