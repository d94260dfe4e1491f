"""Classifiers: from the tables of a configuration to what their methods are built from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.corpus import overlap
from lexfed.corpus.catalogue import CATALOGUE
from lexfed.corpus.population import Data, Population
from lexfed.federation.method import Entry, Kind
from lexfed.federation.robust import Aggregation
from lexfed.federation.sampling import Cohort, Everyone
from lexfed.federation.sampling import build as sampler_of
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.defences import UNDEFENDED, Defences, check
from lexfed.learning.evaluation import ClassifierStudy, Evaluation
from lexfed.learning.parts import Parts
from lexfed.learning.task import Task, Train
from lexfed.models import registry
from lexfed.models.encoder import resolve
from lexfed.models.model import TABLE, Classifier, ModelOptions
from lexfed.privacy import promise
from lexfed.privacy.distributed import Crowd, shares
from lexfed.privacy.gaussian import Privacy
from lexfed.privacy.mechanism import Account, Mechanism, NoPrivacy
from lexfed.privacy.promise import Promise, Secrets
from lexfed.vocabulary import word
from lexfed.vocabulary.pretrained import load_tokenizer
from lexfed.vocabulary.reading import PrivateReader, Reader, SharedReader, initial_rows
from lexfed.vocabulary.tables import vectors
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.vocabulary.word import UNKNOWN, Tokenizer, Words, WordTokenizer


class Noisy(Protocol):
    """The tables that say who takes part, what is sent, and how much noise goes with it."""

    @property
    def rounds(self) -> int: ...
    @property
    def cohort(self) -> Cohort: ...
    @property
    def train(self) -> Train: ...
    @property
    def privacy(self) -> Privacy: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def aggregation(self) -> Aggregation: ...
    @property
    def secure(self) -> Crowd: ...


class Tables(Noisy, Protocol):
    """What is read of a configuration."""

    @property
    def data(self) -> Data: ...
    @property
    def vocabulary(self) -> Words: ...
    @property
    def model(self) -> ModelOptions: ...
    @property
    def server(self) -> ServerOptimizer: ...
    @property
    def defences(self) -> Defences: ...
    @property
    def evaluation(self) -> Evaluation: ...


def parts(tables: Tables, people: Population, entry: Entry) -> Parts:
    check(tables.defences, entry.has("own words"), registry.entry(tables.model.name).reads_words)
    people = _checked(tables, people)
    if entry.has("pooled"):
        people = people.pooled()
    public = vectors.load(tables.vocabulary.vectors) if tables.vocabulary.vectors else None
    model = registry.build(tables.model, people.classes, tables.defences.embedding_dropout)
    tokenizer = _tokenizer(tables, people, public, entry)
    mechanism, account, promised = privacy(tables, len(people))
    mechanism = _naming_rows(mechanism, tables)
    if promised is not None:
        promised = _of_words(promised, tables, people, common=tokenizer is not None)
    if entry.has("alone"):
        _nothing_to_defend(tables, entry)
    return Parts(
        task=Task(
            model=model,
            reader=_reader(tokenizer, tables.train.max_length),
            options=tables.train,
            classes=people.classes,
            rounds=tables.rounds,
            init=_init(tables.model, model, tokenizer, public),
        ),
        sampler=Everyone()
        if entry.has("alone")
        else sampler_of(tables.cohort, len(people), tables.secrets == "system"),
        mechanism=mechanism,
        optimizer=tables.server,
        rounds=tables.rounds,
        public=public,
        shared_words=tables.vocabulary.size - 1,
        account=account,
        tokenizer=tokenizer,
        defences=tables.defences,
        people=people,
        study=ClassifierStudy(
            tables.evaluation, people, tokenizer, tables.vocabulary.corpus == "clients"
        ),
        promise=promised,
    )


def _naming_rows(mechanism: Mechanism, tables: Tables) -> Mechanism:
    """Uploads may leave out rows of a table that did not move, but not everywhere: noise and masks
    cover whether a row moved at all, a robust rule wants to see everybody's, and rounding has its
    own form.
    """
    plain = tables.aggregation.rule == "mean" and tables.train.upload == "fp32"
    if not isinstance(mechanism, NoPrivacy) or tables.secure.sums or not plain:
        return mechanism
    return replace(mechanism, rows=True)


def privacy(
    tables: Noisy, users: int, groups: int = 1
) -> tuple[Mechanism, Account, Promise | None]:
    if tables.privacy.placement != "none" and tables.train.upload != "fp32":
        raise ConfigError(
            "rounding would lengthen a clipped update: set train.upload = 'fp32', or "
            "privacy.placement = 'none'"
        )
    sampling = tables.cohort.sampling
    mechanism, account, promised = promise.build(
        tables.privacy, tables.rounds, sampling, tables.secrets, groups,
        lambda: shares(tables.secure, sampling, tables.cohort.size, users, groups),
    )  # fmt: skip
    if isinstance(mechanism, NoPrivacy):
        mechanism = NoPrivacy(tables.aggregation.most_texts)
    return mechanism, account, promised


def _of_words(promised: Promise, tables: Tables, people: Population, common: bool) -> Promise:
    """What the common word list, or the public table, does to a promise: both are told as they
    are.
    """
    words, users = tables.vocabulary, tables.data.name
    if not registry.entry(tables.model.name).reads_words:
        return promised.noting(not_theirs(tables.model.name))
    if words.vectors is not None and not words.vectors.startswith(vectors.HASHED):
        return promised.noting(not_theirs(words.vectors))
    if words.vectors is not None:
        made = Made("word list", f"vocabulary.vectors = '{words.vectors}'", vectors.HASHED_TEXT)
        return of_text(promised, made, users, people)
    if not common:
        return promised
    source = word.public_text(users) if words.corpus == "public" else words.corpus
    made = Made("word list", f"vocabulary.corpus = '{source}'", source)
    return of_text(promised, made, users, people)


@dataclass(frozen=True)
class Made:
    """A list that was made of a text, and is told as it is."""

    what: str
    setting: str  # that says so
    source: str  # the text's name


def of_text(promised: Promise, made: Made, users: str, people: Population) -> Promise:
    """The promise, without an epsilon if the text is the users' own: by its name, or because it
    holds their texts.
    """
    if (
        made.source == "oracle"
        or word.holds(users, made.source)
        or overlap.common(people.train, made.source).notable
    ):
        return promised.tainted(
            f"the {made.what} was made from the users' own texts without noise ({made.setting})"
        )
    return promised if made.source in CATALOGUE else promised.noting(not_theirs(made.source))


def not_theirs(file: str) -> str:
    """What lexfed can't see of a file."""
    return f"'{file}' was not made from these users' texts"


def _checked(tables: Tables, people: Population) -> Population:
    """The population, scored on as many texts as the configuration says; refused where nothing
    could be scored.
    """
    people = people.sampled(tables.evaluation.limit)
    if not people.here:  # each organisation is scored on what it holds out itself
        return people
    if len(people.common_test) == 0:
        raise ConfigError("data.test must be above 0: without a test set nothing can be scored")
    if tables.evaluation.split == "validation" and len(people.common_validation) == 0:
        raise ConfigError(
            "evaluation.split = 'validation' needs a validation set: set data.validation above 0"
        )
    return people


def _nothing_to_defend(tables: Tables, entry: Entry) -> None:
    if tables.privacy.placement != "none":
        raise ConfigError(
            f"{entry.name} sends nothing that noise could hide: set privacy.placement = 'none'"
        )
    if tables.defences != UNDEFENDED:
        raise ConfigError(
            f"[defences] is for classifiers that are averaged, not for method = '{entry.name}'"
        )


def _tokenizer(
    tables: Tables, people: Population, public: PublicTable | None, entry: Entry
) -> Tokenizer | None:
    # a pretrained model's tokenizer and table belong together
    if not registry.entry(tables.model.name).reads_words:
        return load_tokenizer(resolve(tables.model.name), tables.train.max_length)
    if entry.has("own words"):  # there is no common word list, and none is made
        return None
    words = public.words if public else None
    return WordTokenizer(word.build(tables.vocabulary, people.seen_text, words, tables.data.name))


def _reader(tokenizer: Tokenizer | None, limit: int) -> Reader:
    """Without a common word list, who has no words of its own knows none."""
    return (
        PrivateReader((UNKNOWN,), None, limit)
        if tokenizer is None
        else SharedReader(tokenizer, limit)
    )


def _init(
    options: ModelOptions,
    model: Classifier,
    tokenizer: Tokenizer | None,
    public: PublicTable | None,
) -> Callable[[Seed], Params]:
    """The model as training begins; its word table from the public vectors, where there are
    some.
    """
    words = tokenizer.vocabulary.tokens if isinstance(tokenizer, WordTokenizer) else ()
    if words and public is not None and public.dimension != options.embedding:
        raise ConfigError(
            f"the word vectors have {public.dimension} dimensions: set model.embedding = "
            f"{public.dimension}"
        )

    def init(seed: Seed) -> Params:
        params = dict(model.init(len(words), seed))
        if words and public is not None and TABLE in params:
            generator = torch_generator(derive(seed, "table"))
            random = torch.randn(len(words), public.dimension, generator=generator)
            params[TABLE] = initial_rows(words, public, random)
        return params

    return init


CLASSIFIER = Kind(
    "classifier",
    parts,
    reads=(
        "data", "vocabulary", "model", "cohort", "train", "server", "privacy", "defences",
        "self_audit", "aggregation", "malice", "evaluation.every", "evaluation.clients",
        "evaluation.last", "evaluation.split", "evaluation.limit", "audit", "secure",
    ),
    tells={"evaluation.samples": "a classifier writes no texts"},
    labels=True,
    on_devices=True,
)  # fmt: skip
