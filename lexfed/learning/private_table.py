"""The private part of a client: its words and its embedding table, built on the client from its own
text and secret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lexfed.core.params import Params
from lexfed.core.seeds import derive, numpy_generator, secret_normal
from lexfed.corpus.population import Client
from lexfed.federation import ClientState
from lexfed.learning.defences import UNDEFENDED, Defences, common_secret
from lexfed.learning.task import Task
from lexfed.models.model import EMBEDDING, PROJECTION, TABLE, WordClassifier
from lexfed.vocabulary.reading import PrivateReader, Reader, initial_rows, own_words
from lexfed.vocabulary.tables.rotation import rotated, rotation
from lexfed.vocabulary.tables.vectors import PublicTable

WORDS, CHOICE, KEY = "words", "choice", "rotation"


class PrivatePart(Protocol):
    """What a client keeps of a model, and how it reads with it."""

    def start(self, client: Client) -> ClientState:
        """What a client keeps when it first takes part."""

    def reader(self, state: ClientState) -> Reader:
        """How it reads with what it keeps."""

    def public(self, state: ClientState) -> PublicTable | None:
        """The table of words that its own started from, as everybody knows it or can make it; None:
        there is none.
        """

    def rotation(self, state: ClientState) -> Tensor | None:  # (d, d)
        """What its vectors were turned by."""


@dataclass(frozen=True)
class Kept:
    """Parameters of which it is enough to say how they start; texts are read as everybody reads
    them.
    """

    shared_reader: Reader | None  # None: the task reads otherwise
    begin: Callable[[Client], Params] = lambda client: {}

    def start(self, client: Client) -> ClientState:
        return ClientState(self.begin(client))

    def reader(self, state: ClientState) -> Reader:
        if self.shared_reader is None:
            raise ValueError("texts are not read by a client's table here")
        return self.shared_reader

    def public(self, state: ClientState) -> PublicTable | None:
        return None

    def rotation(self, state: ClientState) -> Tensor | None:
        return None


KEEPS_NOTHING = Kept(None)


@dataclass(frozen=True)
class OwnWords:
    """A row for every word of the client's own text, over a public table: memory and disk follow
    the words it uses.
    """

    task: Task
    model: WordClassifier
    vocabulary: str  # public | own | own+public
    choices: tuple[PublicTable | None, ...]  # where a client may start from; None is random
    minimum: int
    size: int
    defences: Defences = UNDEFENDED

    def start(self, client: Client) -> ClientState:
        choice = int(numpy_generator(derive(client.secret, "choice")).integers(len(self.choices)))
        key = self.defences.key(client)
        kept = {CHOICE: str(choice).encode(), **({} if key is None else {KEY: key})}
        public = self._seen(ClientState(blobs=kept))
        known = public.ids if public is not None and self.vocabulary != "own" else {}
        own = own_words(
            client.train, known, self.minimum, self.size, only_public=self.vocabulary == "public"
        )
        width = public.dimension if public is not None else self.model.dimension
        params = {
            TABLE: initial_rows(
                own, public, secret_normal(derive(client.secret, "embedding"), len(own), width)
            )
        }
        # another table than the others': a private projection brings it to theirs
        if width != self.model.dimension:
            random = secret_normal(derive(client.secret, "projection"), width, self.model.dimension)
            params[PROJECTION] = width**-0.5 * random
        # alike for all clients, so that what is averaged above it fits
        if self.defences.private_layers == "first":
            whole = self.task.init(derive(common_secret(client), "first"))
            params |= {
                name: value for name, value in whole.items() if name in self.model.first_layer
            }
        return ClientState(params, {WORDS: "\n".join(own).encode(), **kept})

    def reader(self, state: ClientState) -> Reader:
        own = tuple(state.blobs[WORDS].decode().split("\n"))
        public = self._seen(state) if self.vocabulary != "own" else None
        return PrivateReader(own, public, self.task.options.max_length)

    def public(self, state: ClientState) -> PublicTable | None:
        public, defences = self.choices[int(state.blobs[CHOICE])], self.defences
        return (
            rotated(public, None, defences.normalise, defences.whiten)
            if public is not None
            else None
        )

    def rotation(self, state: ClientState) -> Tensor | None:  # (d, d)
        public = self.public(state)
        return (
            rotation(state.blobs[KEY], public.dimension)
            if KEY in state.blobs and public is not None
            else None
        )

    def _seen(self, state: ClientState) -> PublicTable | None:
        """The same table as the client looks words up in it."""
        public, defences = self.choices[int(state.blobs[CHOICE])], self.defences
        if public is None:
            return None
        return rotated(public, self.rotation(state), defences.normalise, defences.whiten)


def whole_module(task: Task) -> Kept:
    """The embedding module of a pretrained model: tokenizer and table belong together, so a client
    starts from all of it.
    """

    def begin(client: Client) -> Params:
        params = task.init(derive(client.secret, "embedding"))
        return {
            name: value for name, value in params.items() if task.model.depth(name) == EMBEDDING
        }

    return Kept(task.reader, begin)
