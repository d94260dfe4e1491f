"""From a configuration to a method and its clients. Workers and nodes rebuild both from it, so it is all they are sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from lexfed.config import Config
from lexfed.corpus import population
from lexfed.corpus.population import Population
from lexfed.errors import ConfigError, DataError
from lexfed.federation import Method
from lexfed.methods import defences, self_audit
from lexfed.methods.centralised import centralised
from lexfed.methods.fedavg import fedavg, fedavg_finetune
from lexfed.methods.fedevocab import fedevocab
from lexfed.methods.fedprox import fedprox
from lexfed.methods.fedrecon import fedrecon
from lexfed.methods.lg_fedavg import lg_fedavg
from lexfed.methods.local_only import local_only
from lexfed.methods.parts import Parts
from lexfed.methods.training import Task
from lexfed.models.bilstm import TABLE, BiLSTMClassifier
from lexfed.models.model import Classifier
from lexfed.models.transformer import load_encoder, resolve
from lexfed.params import Params
from lexfed.privacy import promise, sampling
from lexfed.privacy.mechanism import Account, Mechanism
from lexfed.privacy.promise import Promise
from lexfed.seeds import Seed, derive, root, torch_generator
from lexfed.vocabulary import vectors, word
from lexfed.vocabulary.reading import SharedReader, initial_rows
from lexfed.vocabulary.subword import load_tokenizer
from lexfed.vocabulary.vectors import PublicTable
from lexfed.vocabulary.word import Tokenizer, WordTokenizer


@dataclass(frozen=True)
class Assembly:
    config: Config
    population: Population
    method: Method
    tokenizer: Tokenizer
    promise: Promise | None = None


METHODS: Mapping[str, Callable[[Config, Parts, Tokenizer], Method]] = {
    "fedavg": lambda config, parts, _: fedavg(parts, audit=config.self_audit),
    "fedavg_finetune": lambda config, parts, _: fedavg_finetune(parts, config.fedavg_finetune, config.self_audit),
    "fedprox": lambda config, parts, _: fedprox(parts, config.fedprox),
    "lg_fedavg": lambda config, parts, _: lg_fedavg(parts, config.lg_fedavg),
    "fedrecon": lambda config, parts, tokenizer: fedrecon(parts, config.fedrecon, tokenizer.vocabulary.tokens),
    "fedevocab": lambda config, parts, _: fedevocab(parts, config.fedevocab, config.defences, config.self_audit),
    "local_only": lambda config, parts, _: local_only(parts, config.local_only),
    "centralised": lambda config, parts, _: centralised(parts, config.centralised),
}


def assemble(config: Config) -> Assembly:
    vectors_named = bool(config.vocabulary.vectors or config.fedevocab.vectors)
    defences.check(config.defences, config.method, config.model.name, vectors_named)
    self_audit.check(config.self_audit, config.method, config.model.name)
    people = population.build(config.data, derive(root(config.seed), "data"))
    kinds = {"federated_word2vec": _word_vectors, "tokenizer_for_free": _language}
    if config.server.average and config.method in kinds:
        raise ConfigError(f"server.average is for classifiers, not for method = '{config.method}'")
    return kinds.get(config.method, _classifier)(config, people)


def _language(config: Config, people: Population) -> Assembly:
    from lexfed.methods import language_scores as scores  # the tokenizers' library: only where it is used
    from lexfed.methods.heavy_hitting import handlers
    from lexfed.methods.language import LanguageTask
    from lexfed.methods.parts import loop
    from lexfed.methods.tokenizer_for_free import tokenizer_for_free
    from lexfed.methods.tokenizer_source import source
    from lexfed.models import language

    if people.unseen == 0:
        raise ConfigError("a language model is scored on users who never train: set data.unseen above 0")
    options, texts = config.tokenizer_for_free, config.tokenizer
    mechanism, account, promised = _privacy(config)
    model = language.build(config.language_model)
    task = LanguageTask(model, config.language_model.context, config.train, texts, config.rounds)
    sampler = sampling.build(config.cohort, len(people) // (2 if options.protocol == "from_scratch" else 1))
    rounds = loop(sampler, mechanism, config.server, account)
    method = tokenizer_for_free(task, options, rounds, mechanism, source(texts, config.heavy_hitters, people))
    method = replace(
        method,
        client={**method.client, **handlers(config.heavy_hitters, texts)},
        score=scores.LanguageScores(texts, people, config.evaluation, options.sample_words),
        artifacts=scores.write_artifacts,
        summarise=scores.switch_figures,
    )
    return Assembly(config, people, method, WordTokenizer(word.of_list((), size=1)), promised)


def _word_vectors(config: Config, people: Population) -> Assembly:
    from lexfed.methods.federated_word2vec import federated_word2vec  # compiled code: only where it is used
    from lexfed.methods.replica import Replica
    from lexfed.methods.word2vec_scores import Scores, write_artifacts

    if config.privacy.placement != "none":
        raise ConfigError(
            "word vectors are trained by organisations: noise per user has no meaning; see agreement.rule = 'dp'"
        )
    options = config.word2vec
    replica = Replica(options.dimension, options.subsample)
    sampler = sampling.build(config.cohort, len(people))
    method = federated_word2vec(sampler, options, config.agreement, config.rounds, replica)
    method = replace(method, score=Scores(options, people, replica, config.rounds), artifacts=write_artifacts)
    return Assembly(config, people, method, WordTokenizer(word.of_list((), size=1)))


def _classifier(config: Config, people: Population) -> Assembly:
    people = people.sampled(config.evaluation.limit)
    if len(people.common_test) == 0:
        raise ConfigError("data.test must be above 0: without a test set nothing can be scored")
    if people.classes == 0:
        raise DataError(f"{config.data.name} has no label column '{config.data.label}'; set data.label")
    if config.evaluation.split == "validation" and len(people.common_validation) == 0:
        raise ConfigError("evaluation.split = 'validation' needs a validation set: set data.validation above 0")
    if config.method == "centralised":
        people = people.pooled()
    public = vectors.load(config.vocabulary.vectors) if config.vocabulary.vectors else None
    tokenizer = _tokenizer(config, people, public)
    model = _model(config, people.classes)
    task = Task(
        model=model,
        reader=SharedReader(tokenizer, config.train.max_length),
        options=config.train,
        classes=people.classes,
        rounds=config.rounds,
        init=_init(config, model, tokenizer, public),
    )
    alone = config.method in ("local_only", "centralised")  # whatever the cohort: everyone
    mechanism, account, promised = _privacy(config)
    if alone and promised is not None:
        raise ConfigError(f"{config.method} sends nothing that noise could hide: set privacy.placement = 'none'")
    parts = Parts(
        task=task,
        sampler=sampling.Everyone() if alone else sampling.build(config.cohort, len(people)),
        mechanism=mechanism,
        optimizer=config.server,
        rounds=config.rounds,
        public=public,
        shared_words=config.vocabulary.size - 1,
        account=account,
    )
    method = METHODS[config.method](config, parts, tokenizer)
    method = defences.layered(method, config.defences, config.self_audit.limit is not None, mechanism)
    return Assembly(config, people, method, tokenizer, promised)


def _privacy(config: Config) -> tuple[Mechanism, Account, Promise | None]:
    if config.privacy.placement != "none" and config.train.upload != "fp32":
        raise ConfigError(
            "rounding would lengthen a clipped update: set train.upload = 'fp32', or privacy.placement = 'none'"
        )
    return promise.build(config.privacy, config.rounds, config.cohort.sampling)


def _model(config: Config, classes: int) -> Classifier:
    if config.model.name == "bilstm":
        return BiLSTMClassifier(config.model, classes, config.defences.embedding_dropout)
    return load_encoder(config.model.name, classes, config.model.pretrained)


def _tokenizer(config: Config, people: Population, public: PublicTable | None) -> Tokenizer:
    if config.model.name != "bilstm":  # a pretrained model's tokenizer and table belong together
        return load_tokenizer(resolve(config.model.name), config.train.max_length)
    if config.method == "fedevocab":  # there is no common word list, and none is made
        return WordTokenizer(word.of_list((), size=1))
    vocabulary = word.build(config.vocabulary, people.seen_text, public.words if public else None)
    return WordTokenizer(vocabulary)


def _init(config: Config, model: Classifier, tokenizer: Tokenizer, public: PublicTable | None) -> Callable[[Seed], Params]:
    """The model as training begins; its word table from the public vectors, where there are some."""
    size = len(tokenizer.vocabulary) if isinstance(tokenizer, WordTokenizer) else 0
    wide = public is not None and public.dimension != config.model.embedding and not config.fedevocab.vectors
    if wide and config.model.name == "bilstm" and public is not None:
        raise ConfigError(f"the word vectors have {public.dimension} dimensions: set model.embedding = {public.dimension}")

    def init(seed: Seed) -> Params:
        params = dict(model.init(size, seed))
        if public is not None and TABLE in params and public.dimension == config.model.embedding:
            generator = torch_generator(derive(seed, "table"))
            random = torch.randn(len(tokenizer.vocabulary), public.dimension, generator=generator)
            params[TABLE] = initial_rows(tokenizer.vocabulary.tokens, public, random)
        return params

    return init
