"""FedeVocab (Zhang et al., EMNLP 2022): federated model decomposition with private vocabulary.

Every client keeps its vocabulary and its embedding table E_k; only the body B is averaged.

    client k:  E_k <- U(L, E_k | B frozen)      adaptive updating, one epoch       [sec. 3.3]
               E_k, B_k <- U(L, E_k, B)         E epochs                           [Alg. 1]
               send B_k - B;  keep E_k
    server:    B <- B + sum_k (n_k / n) (B_k - B)                                  [eq. 1]

Differs from the paper: the vocabulary really is private (its code gave every client the same public
one). A client's table has the words of its own text; with `own+public` (default), words it lacks
are looked up in a public table that all clients of a machine share and nobody changes; so are the
words that find no room in a table of `fedevocab.size`. The frozen body gets no gradient at all (in
its code they piled up and entered the first joint step). With adaptive updating, clients are scored
after an adaptive pass of their own, which is then discarded. By default the table learns at a tenth
of the rate and there is no adaptive pass; `preset = "paper"` is the published algorithm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from lexfed.core.errors import ConfigError
from lexfed.core.params import ParameterSplit, Params
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import ClientState, Entry, Method
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.evaluation import evaluator
from lexfed.learning.parts import Parts
from lexfed.learning.private_table import OwnWords, PrivatePart, whole_module
from lexfed.learning.task import Local, Trained, train
from lexfed.learning.training import averaging, trainer
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.models.model import EMBEDDING, WordClassifier, lacking
from lexfed.vocabulary.tables import vectors
from lexfed.vocabulary.tables.one_position import brought_to
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.wire import Message


@dataclass(frozen=True)
class FedeVocab:
    """The `[fedevocab]` table."""

    # which defaults hold: those that we found best (a slow table, no adaptive pass, two epochs,
    # logit adjustment), or the algorithm as it was published
    preset: Literal["lexfed", "paper"] = "lexfed"
    adaptive: bool = False  # adaptive updating before each round; preset paper: true
    adaptive_steps: int | None = None  # at most so many batches of the adaptive epoch
    # the words of a client's table: those of a public table, of its own text, or of its own text
    # with the public table behind them
    vocabulary: Literal["public", "own", "own+public"] = "own+public"
    # public tables to start from, one by each client's own choice; "random" is none
    vectors: tuple[str, ...] = ()
    # turn, stretch and move the other tables so that words which both have come near to where they
    # lie in the first; clients whose table has another width then need no private projection, which
    # also means that it shelters nothing
    align: bool = False
    table_lr: float = 0.1  # times train.lr, for the private part; preset paper: 1
    minimum: int = 1  # own words that the public table lacks: at least so many occurrences
    size: int = 50_000  # words of a client's table

    # without them the rows that clients keep mean something else
    lasting: ClassVar[tuple[str, ...]] = ("vocabulary", "vectors", "align", "minimum", "size")

    def __post_init__(self) -> None:
        if not self.table_lr > 0 or self.minimum < 1 or self.size < 2:
            raise ConfigError(
                "fedevocab.table_lr must be above 0, fedevocab.minimum at least 1, fedevocab.size "
                "at least 2"
            )
        if self.adaptive_steps is not None and self.adaptive_steps < 1:
            raise ConfigError(
                "fedevocab.adaptive_steps must be at least 1; for none, set fedevocab.adaptive = "
                "false"
            )
        if self.align and len({*self.vectors} - {"random"}) < 2:
            raise ConfigError(
                "fedevocab.align brings several public tables into one position: name them in "
                "fedevocab.vectors"
            )


def fedevocab(parts: Parts, options: FedeVocab) -> Method:
    task, table = parts.task, private_table(parts, options)
    split = ParameterSplit(stays_home(parts))

    def stage(client: Client, message: Message, epochs: int, body: float) -> Local:
        """Local training in which the body learns at this share of the learning rate."""
        rate = learning_rates(split, options.table_lr, body)
        adjustment = task.adjustment(client)
        return Local(task.learning_rate(message), epochs, rate, adjustment=adjustment)

    def learn(
        params: Params, client: Client, state: ClientState, local: Local, seed: Seed
    ) -> Trained:
        reading = table.reader(state).read(client.train)
        # `fedevocab.size` may leave words without a row of their own
        return train(task, params, reading.examples, replace(local, beyond=reading.beyond), seed)

    def adapt(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Params:
        local = replace(stage(client, message, 1, body=0.0), steps=options.adaptive_steps)
        return learn(params, client, state, local, derive(seed, "adapt")).params

    def update(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Trained:
        if options.adaptive:
            params = adapt(params, client, state, message, seed)
        local = stage(client, message, task.options.epochs, body=1.0)
        return learn(params, client, state, local, derive(seed, "joint"))

    return Method(
        client={
            TRAIN: trainer(parts, split, table, update),
            EVALUATE: evaluator(task, split, table, adapt if options.adaptive else None),
        },
        server=averaging(parts, split),
        split=split,
        rounds=parts.rounds,
    )


def learning_rates(split: ParameterSplit, table: float, body: float) -> Callable[[str], float]:
    return lambda name: table if split.is_private(name) else body


def stays_home(parts: Parts) -> Callable[[str], bool]:
    """The table, and with `defences.private_layers = "first"` what reads it."""
    model = parts.task.model
    first = parts.defences.private_layers == "first"
    also = model.first_layer if first and isinstance(model, WordClassifier) else frozenset()
    return lambda name: model.depth(name) == EMBEDDING or name in also


def private_table(parts: Parts, options: FedeVocab) -> PrivatePart:
    model = parts.task.model
    if not isinstance(model, WordClassifier):
        if parts.tokenizer is None:  # it reads words, and there is no table to read them with
            raise ConfigError(
                f"fedevocab puts a word table of each client's under the model, and "
                f"{type(model).__name__} is no WordClassifier: it lacks "
                f"{', '.join(lacking(model, WordClassifier))}"
            )
        return whole_module(parts.task)
    choices = named_tables(options, model.dimension) or (parts.public,)
    if parts.defences.of_vectors and not options.vectors and parts.public is None:
        raise ConfigError(
            "defences.rotation, normalise and whiten are for public vectors: set vocabulary.vectors"
        )
    if (
        not options.vectors
        and parts.public is not None
        and parts.public.dimension != model.dimension
    ):
        raise ConfigError(
            f"the word vectors have {parts.public.dimension} dimensions: set model.embedding = "
            f"{parts.public.dimension}"
        )
    # just what the methods with one vocabulary know: no better coverage than theirs
    if options.vocabulary == "public":
        if None in choices:
            raise ConfigError(
                "fedevocab.vocabulary = 'public' needs a public table; set vocabulary.vectors"
            )
        choices = tuple(table.head(parts.shared_words) for table in choices if table is not None)
    return OwnWords(
        parts.task, model, options.vocabulary, choices, options.minimum, options.size,
        parts.defences,
    )  # fmt: skip


def named_tables(options: FedeVocab, width: int) -> tuple[PublicTable | None, ...]:
    tables = tuple(None if name == "random" else vectors.load(name) for name in options.vectors)
    if not options.align:
        return tables
    first = next(table for table in tables if table is not None)
    if first.dimension != width:  # a private projection would turn each client's another way
        raise ConfigError(
            f"fedevocab.align brings all tables into the position of the first, which has "
            f"{first.dimension} dimensions: set model.embedding = {first.dimension}"
        )
    return tuple(t if t in (None, first) else brought_to(first, t) for t in tables)


def defaults(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of what nobody set. Chosen on SST-2's validation split (RESULTS.md); it carried over to data
    that no choice had seen.
    """
    if table.get("preset", FedeVocab.preset) == "paper":
        return {"fedevocab.adaptive": True, "fedevocab.table_lr": 1.0}
    return {"train.epochs": 2, "train.logit_adjustment": 1.0}


METHOD = Entry(
    "fedevocab",
    CLASSIFIER,
    fedevocab,
    FedeVocab,
    frozenset({"own words", "self-audit"}),
    ignores=("vocabulary.corpus", "vocabulary.minimum"),
    defaults=defaults,
)
