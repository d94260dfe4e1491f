"""Defences against a server that reads its clients' uploads: what each costs it, and what stays open.

    rotation         public vectors are turned by a secret that all clients have: a public table no longer fits their span.
                     Open: one client that gives it away, about d known words, lengths (unless `normalise`) and angles.
                     `whiten`, which hides nothing by itself, takes its price away: see `vocabulary.rotation`.
                     "own", a secret for each client, is for comparison: bodies trained over different axes average badly.
    minimum_words    who has fewer distinct words (try 20 d) does not send: with many words, none stands out
    private_layers   "first": the first layer above the embedding stays too, so nothing on the wire multiplies a word vector.
                     It starts from what clients share and the server lacks, so that what is averaged above it fits.
    embedding_dropout   whole words are left out of a step, by chance

Who holds back sends an empty message: it is not averaged, like one who dropped out. Under differential privacy not sending
would itself be a message, without noise; so an update of zeros goes through the mechanism, as any other. (How soon it
comes is not hidden: nobody trained for it.) How often a client held back it keeps for itself; only a simulation looks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError, PrivacyError
from lexfed.federation import ClientState, Handler, Method
from lexfed.privacy.mechanism import Mechanism, NoPrivacy
from lexfed.seeds import Seed, derive
from lexfed.vocabulary.word import count_words
from lexfed.wire import Message, Verb, below, pack

HELD, UPLOADS = "held_back", "uploads"  # what a client keeps: how often it held back, and how often it was asked
SENDING = ("train", "warm")  # verbs that are answered with an update


@dataclass(frozen=True)
class Defences:
    """The `[defences]` table."""

    rotation: Literal["none", "shared", "own"] = "none"  # of public vectors: by a secret of all clients, or of each
    normalise: bool = False  # public vectors of one length, before they are turned
    whiten: bool = False  # public vectors without axes of their own, before that
    minimum_words: int = 0  # a client with fewer distinct words sends nothing
    private_layers: Literal["embedding", "first"] = "embedding"  # first: also the layer above it
    embedding_dropout: float = 0.0  # the share of words left out of a training step

    def __post_init__(self) -> None:
        if self.minimum_words < 0 or not 0 <= self.embedding_dropout < 1:
            raise ConfigError("defences.minimum_words is at least 0; defences.embedding_dropout at least 0 and below 1")

    @property
    def of_tables(self) -> bool:
        """Whether something is done to tables that clients make for themselves."""
        return self.of_vectors or self.private_layers == "first"

    @property
    def of_vectors(self) -> bool:
        return self.rotation != "none" or self.normalise or self.whiten

    def key(self, client: Client) -> Seed | None:
        """What the client's rotation is made of."""
        if self.rotation == "none":
            return None
        return derive(common_secret(client) if self.rotation == "shared" else client.secret, "rotation")


UNDEFENDED = Defences()


def common_secret(client: Client) -> Seed:
    if not client.common_secret:
        raise PrivacyError("the clients share no secret: without one the server could make the same numbers")
    return client.common_secret


def check(defences: Defences, method: str, model: str, vectors: bool) -> None:
    """Refuse what could not defend."""
    if defences == UNDEFENDED:
        return
    if method in ("federated_word2vec", "tokenizer_for_free", "local_only", "centralised"):
        raise ConfigError(f"[defences] is for classifiers that are averaged, not for method = '{method}'")
    if defences.of_tables and method != "fedevocab":
        raise ConfigError(
            "defences.rotation, normalise, whiten and private_layers need method = 'fedevocab': here the server makes it"
        )
    if (defences.of_tables or defences.embedding_dropout) and model != "bilstm":
        raise ConfigError("[defences] but minimum_words need model.name = 'bilstm': an encoder's own table can't be hidden")
    if defences.of_vectors and not vectors:
        raise ConfigError("defences.rotation, normalise and whiten are for public vectors: set vocabulary.vectors")


Silence = Callable[[Message, Client], Message]  # what goes out instead of an upload


def silence(mechanism: Mechanism) -> Silence:
    def reply(message: Message, client: Client) -> Message:
        if isinstance(mechanism, NoPrivacy):
            return Message()
        zeros = {name: torch.zeros_like(value) for name, value in below("model", message.arrays).items()}
        seed = derive(client.secret, "silence", int(message.meta["step"]), int(message.meta["ask"]))
        return Message(pack(mechanism.bound(zeros, 0, 0.0, message, seed)))

    return reply


def minimum_text(handler: Handler, least: int, silent: Silence) -> Handler:
    """A layer: who has fewer than `least` distinct words neither trains nor sends, and keeps what it had."""

    def handle(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        if len(count_words(client.train)) >= least:
            return handler(message, client, state)
        return silent(message, client), counted(HELD, 1, state, state)

    return handle


def counting(handler: Handler, uploads: int) -> Handler:
    """A layer: the client counts how often it was asked for an upload, and its counts outlive what a handler forgets."""

    def handle(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        reply, after = handler(message, client, state)
        after = after if HELD in after.blobs else counted(HELD, 0, state, after)
        return reply, counted(UPLOADS, uploads, state, after)

    return handle


def counted(name: str, more: int, before: ClientState, after: ClientState) -> ClientState:
    """The state after, with its count from before (a handler that starts afresh knows of none) and this."""
    count = int(before.blobs.get(name, b"0")) + more
    return replace(after, blobs={**after.blobs, name: str(count).encode()})


def layered(method: Method, defences: Defences, audited: bool, mechanism: Mechanism) -> Method:
    """The method, its uploads counted and, where that is asked for, held back by those who have little text."""
    if not defences.minimum_words and not audited:
        return method
    silent = silence(mechanism)

    def layers(verb: Verb, handler: Handler) -> Handler:
        if verb in SENDING and defences.minimum_words:
            handler = minimum_text(handler, defences.minimum_words, silent)
        return handler if verb == "evaluate" else counting(handler, int(verb in SENDING))

    return replace(method, client={verb: layers(verb, handler) for verb, handler in method.client.items()})


def held_back(clients: Iterable[ClientState]) -> dict[str, int | list[int]]:
    """The experimenter's figures, of what clients keep for themselves: how often they were asked, and sent nothing."""
    counts = [[int(state.blobs.get(name, b"0")) for name in (UPLOADS, HELD)] for state in clients]
    uploads, held = ([count[i] for count in counts] for i in (0, 1))
    return {"uploads": sum(uploads), "held": sum(held), "by_client": held}
