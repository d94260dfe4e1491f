"""The private part of a client: its words and its embedding table, built on the client from its own text and secret."""

from dataclasses import dataclass
from typing import Protocol

import torch

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState
from lexfed.methods.parts import Parts
from lexfed.methods.training import Task
from lexfed.models.bilstm import PROJECTION, TABLE, BiLSTMClassifier
from lexfed.models.model import EMBEDDING
from lexfed.seeds import derive, numpy_generator, torch_generator
from lexfed.vocabulary import vectors
from lexfed.vocabulary.reading import PrivateReader, Reader, initial_rows, own_words
from lexfed.vocabulary.vectors import PublicTable

WORDS, CHOICE = "words", "choice"


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

    def start(self, client: Client) -> ClientState:
        choice = int(numpy_generator(derive(client.secret, "choice")).integers(len(self.choices)))
        public = self.choices[choice]
        known = public.ids if public is not None and self.vocabulary != "own" else {}
        own = own_words(client.train, known, self.minimum, self.size, only_public=self.vocabulary == "public")
        generator = torch_generator(derive(client.secret, "embedding"))
        width = public.dimension if public is not None else self.dimension
        params = {TABLE: initial_rows(own, public, width, generator)}
        if width != self.dimension:  # another table than the others': a private projection brings it to their dimension
            params[PROJECTION] = torch.empty(width, self.dimension).normal_(0, width**-0.5, generator=generator)
        return ClientState(params, {WORDS: "\n".join(own).encode(), CHOICE: str(choice).encode()})

    def reader(self, state: ClientState) -> Reader:
        own = tuple(state.blobs[WORDS].decode().split("\n"))
        public = self.choices[int(state.blobs[CHOICE])] if self.vocabulary != "own" else None
        return PrivateReader(own, public, self.task.options.max_length)


@dataclass(frozen=True)
class WholeModule:
    """The embedding module of a pretrained model: tokenizer and table belong together, so a client starts from all of it."""

    task: Task

    def start(self, client: Client) -> ClientState:
        params = self.task.init(derive(client.secret, "embedding"))
        return ClientState({name: value for name, value in params.items() if self.task.model.depth(name) == EMBEDDING})

    def reader(self, state: ClientState) -> Reader:
        return self.task.reader


def table_for(parts: Parts, vocabulary: str, names: tuple[str, ...], minimum: int, size: int) -> PrivateTable:
    if not isinstance(parts.task.model, BiLSTMClassifier):
        return WholeModule(parts.task)
    choices = tuple(None if name == "random" else vectors.load(name) for name in names) or (parts.public,)
    if vocabulary == "public":  # just what the methods with one vocabulary know: no better coverage than theirs
        if None in choices:
            raise ConfigError("fedevocab.vocabulary = 'public' needs a public table; set vocabulary.vectors")
        choices = tuple(table.head(parts.shared_words) for table in choices if table is not None)
    return WordTable(parts.task, parts.task.model.options.embedding, vocabulary, choices, minimum, size)
