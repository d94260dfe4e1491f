"""FedRecon (Singhal et al., NeurIPS 2021), with the private rows that FedeVocab's comparison gives
it.

The rows of tokens that contain a digit are private; they have a tensor of their own name and never
travel.

    client k:  S, Q <- support and query halves of its texts
               P_k <- initial rows;  P_k <- fit on S, the rest frozen          reconstruction
               W_k <- E epochs from W on Q, P_k frozen
               send W_k - W with weight |Q|;  forget P_k
    server:    W <- W + sum_k (|Q_k| / |Q|) (W_k - W)
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import ParameterSplit, Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.corpus.population import Client
from lexfed.federation import ClientState, Entry, Method
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.evaluation import evaluator
from lexfed.learning.parts import Parts
from lexfed.learning.private_table import Kept
from lexfed.learning.task import Local, Task, Trained, train
from lexfed.learning.training import averaging, trainer
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.models.model import EMBEDDING, Batch, Classifier, Example
from lexfed.wire import Message

PRIVATE_ROWS = "private_rows"


@dataclass(frozen=True)
class FedRecon:
    """The `[fedrecon]` table."""

    support: float = 0.5  # share of a client's texts that the private rows are fitted on
    epochs: int = 1  # of fitting

    def __post_init__(self) -> None:
        if not 0 < self.support < 1 or self.epochs < 1:
            raise ConfigError(
                "fedrecon.support must be between 0 and 1, fedrecon.epochs at least 1"
            )


def is_private_token(token: str) -> bool:
    return any(letter.isdigit() for letter in token)


@dataclass(frozen=True, eq=False)
class Parted:
    """A classifier whose word table lies in two tensors, so that the private rows have a name that
    can be refused.
    """

    model: Classifier
    private: Tensor  # (V,) bool: which rows

    @property
    def word_table(self) -> str:
        return self.model.word_table

    def init(self, vocab_size: int, seed: Seed) -> Params:
        return self.part(self.model.init(vocab_size, seed))

    def part(self, whole: Params) -> Params:
        table = whole[self.word_table]
        return {**whole, self.word_table: table[~self.private], PRIVATE_ROWS: table[self.private]}

    def whole(self, params: Params) -> Params:
        public, private = params[self.word_table], params[PRIVATE_ROWS]
        # where each token's row lies in the two, end to end
        place = torch.empty(len(self.private), dtype=torch.int64)
        place[~self.private] = torch.arange(len(public))
        place[self.private] = torch.arange(len(private)) + len(public)
        rest = {name: value for name, value in params.items() if name != PRIVATE_ROWS}
        return {**rest, self.word_table: torch.cat([public, private])[place.to(public.device)]}

    def logits(self, params: Params, batch: Batch, seed: Seed | None) -> Tensor:
        return self.model.logits(self.whole(params), batch, seed)

    def depth(self, name: str) -> int:
        return EMBEDDING if name == PRIVATE_ROWS else self.model.depth(name)


def fedrecon(parts: Parts, options: FedRecon) -> Method:
    split = ParameterSplit(lambda name: name == PRIVATE_ROWS, beside=(PRIVATE_ROWS,))
    task = parted(parts)
    parts, forgotten = replace(parts, task=task), Kept(task.reader)

    def fit(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Params:
        """Reconstruction: of the private rows, on the support texts, all else frozen."""
        rows = task.init(derive(client.secret, "rows"))[PRIVATE_ROWS].to(task.device)
        support, _ = halves(task, options, client, seed)
        local = stage(task, client, message, options.epochs, private=True)
        return train(
            task, {**params, PRIVATE_ROWS: rows}, support, local, derive(seed, "fit")
        ).params

    def update(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Trained:
        _, query = halves(task, options, client, seed)
        local = stage(task, client, message, task.options.epochs, private=False)
        whole = fit(params, client, state, message, seed)
        after = train(task, whole, query, local, derive(seed, "query"))
        return Trained(split.shared(after.params), after.loss, len(query))

    return Method(
        client={
            TRAIN: trainer(parts, split, forgotten, update),
            EVALUATE: evaluator(task, split, forgotten, fit),
        },
        server=averaging(parts, split),
        split=split,
        rounds=parts.rounds,
    )


def parted(parts: Parts) -> Task:
    """The task, with the rows of private tokens in a tensor of their own."""
    tokens = parts.tokenizer.vocabulary.tokens if parts.tokenizer is not None else ()
    model = Parted(parts.task.model, torch.tensor([is_private_token(token) for token in tokens]))
    whole = parts.task.init
    return replace(parts.task, model=model, init=lambda seed: model.part(whole(seed)))


def halves(
    task: Task, options: FedRecon, client: Client, seed: Seed
) -> tuple[list[Example], list[Example]]:
    """Support and query."""
    examples = task.reader.read(client.train).examples
    generator = torch_generator(derive(seed, "halves"))
    order = torch.randperm(len(examples), generator=generator).tolist()
    size = min(max(1, round(options.support * len(order))), max(1, len(order) - 1))
    return [examples[i] for i in order[:size]], [examples[i] for i in order[size:]]


def stage(task: Task, client: Client, message: Message, epochs: int, private: bool) -> Local:
    """Training of the private rows alone, or of all but them."""

    def rate(name: str) -> float:
        return float((name == PRIVATE_ROWS) == private)

    return Local(task.learning_rate(message), epochs, rate, adjustment=task.adjustment(client))


METHOD = Entry("fedrecon", CLASSIFIER, fedrecon, FedRecon, frozenset({"part of the texts"}))
