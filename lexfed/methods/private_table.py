"""The private part of a client: its words and its embedding table, built on the client from its own text and secret."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState
from lexfed.methods.defences import UNDEFENDED, Defences, common_secret
from lexfed.methods.parts import Parts
from lexfed.methods.training import Task
from lexfed.models.bilstm import FIRST_LAYER, PROJECTION, TABLE, BiLSTMClassifier
from lexfed.models.model import EMBEDDING
from lexfed.seeds import derive, numpy_generator, secret_normal
from lexfed.vocabulary import vectors
from lexfed.vocabulary.reading import PrivateReader, Reader, initial_rows, own_words
from lexfed.vocabulary.rotation import rotated, rotation
from lexfed.vocabulary.vectors import PublicTable

WORDS, CHOICE, KEY = "words", "choice", "rotation"


class PrivateTable(Protocol):
    def start(self, client: Client) -> ClientState:
        """What a client keeps when it first takes part."""

    def reader(self, state: ClientState) -> Reader:
        """How it reads with what it keeps."""


@dataclass(frozen=True)
class WordTable:
    """A row for every word of the client's own text, over a public table: memory and disk follow the words it uses."""

    task: Task
    dimension: int  # what the body of the model expects
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
        own = own_words(client.train, known, self.minimum, self.size, only_public=self.vocabulary == "public")
        width = public.dimension if public is not None else self.dimension
        params = {TABLE: initial_rows(own, public, secret_normal(derive(client.secret, "embedding"), len(own), width))}
        if width != self.dimension:  # another table than the others': a private projection brings it to their dimension
            params[PROJECTION] = width**-0.5 * secret_normal(derive(client.secret, "projection"), width, self.dimension)
        if self.defences.private_layers == "first":  # alike for all clients, so that what is averaged above it fits
            whole = self.task.init(derive(common_secret(client), "first"))
            params |= {name: value for name, value in whole.items() if name in FIRST_LAYER}
        return ClientState(params, {WORDS: "\n".join(own).encode(), **kept})

    def reader(self, state: ClientState) -> Reader:
        own = tuple(state.blobs[WORDS].decode().split("\n"))
        public = self._seen(state) if self.vocabulary != "own" else None
        return PrivateReader(own, public, self.task.options.max_length)

    def public(self, state: ClientState) -> PublicTable | None:
        """The table the client started from, as everybody knows it or can make it."""
        public, defences = self.choices[int(state.blobs[CHOICE])], self.defences
        return rotated(public, None, defences.normalise, defences.whiten) if public is not None else None

    def rotation(self, state: ClientState) -> Tensor | None:  # (d, d)
        public = self.public(state)
        return rotation(state.blobs[KEY], public.dimension) if KEY in state.blobs and public is not None else None

    def _seen(self, state: ClientState) -> PublicTable | None:
        """The same table as the client looks words up in it."""
        public, defences = self.choices[int(state.blobs[CHOICE])], self.defences
        if public is None:
            return None
        return rotated(public, self.rotation(state), defences.normalise, defences.whiten)


@dataclass(frozen=True)
class WholeModule:
    """The embedding module of a pretrained model: tokenizer and table belong together, so a client starts from all of it."""

    task: Task

    def start(self, client: Client) -> ClientState:
        params = self.task.init(derive(client.secret, "embedding"))
        return ClientState({name: value for name, value in params.items() if self.task.model.depth(name) == EMBEDDING})

    def reader(self, state: ClientState) -> Reader:
        return self.task.reader


def table_for(
    parts: Parts, vocabulary: str, names: tuple[str, ...], minimum: int, size: int, defences: Defences = UNDEFENDED
) -> PrivateTable:
    if not isinstance(parts.task.model, BiLSTMClassifier):
        return WholeModule(parts.task)
    choices = tuple(None if name == "random" else vectors.load(name) for name in names) or (parts.public,)
    if vocabulary == "public":  # just what the methods with one vocabulary know: no better coverage than theirs
        if None in choices:
            raise ConfigError("fedevocab.vocabulary = 'public' needs a public table; set vocabulary.vectors")
        choices = tuple(table.head(parts.shared_words) for table in choices if table is not None)
    dimension = parts.task.model.options.embedding
    return WordTable(parts.task, dimension, vocabulary, choices, minimum, size, defences)
