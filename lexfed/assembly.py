"""From a configuration to a method and its clients. Workers and nodes rebuild both from it, so it is all they are sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lexfed.config import Config
from lexfed.corpus import population
from lexfed.corpus.population import Population
from lexfed.errors import DataError
from lexfed.federation import Method
from lexfed.methods.centralised import centralised
from lexfed.methods.fedavg import fedavg
from lexfed.methods.local_only import local_only
from lexfed.methods.parts import Parts
from lexfed.methods.training import Task
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.privacy import sampling
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.seeds import derive, root
from lexfed.vocabulary import word
from lexfed.vocabulary.word import WordTokenizer

METHODS: Mapping[str, Callable[[Config, Parts], Method]] = {
    "fedavg": lambda config, parts: fedavg(parts),
    "local_only": lambda config, parts: local_only(parts, config.local_only),
    "centralised": lambda config, parts: centralised(parts, config.centralised),
}


@dataclass(frozen=True)
class Assembly:
    config: Config
    population: Population
    method: Method
    tokenizer: WordTokenizer


def assemble(config: Config) -> Assembly:
    secret = root(config.seed)
    data = config.data
    if config.method == "centralised":  # one client that holds everything
        data = replace(data, clients=1, unseen=0, partition="iid")
    everyone = population.build(data, derive(secret, "data")).sampled(config.evaluation.limit)
    if everyone.classes == 0:
        raise DataError(f"{data.name} has no label column '{data.label}'; set data.label")
    tokenizer = WordTokenizer(word.build(config.vocabulary, everyone.seen_text))
    parts = Parts(
        task=Task(BiLSTMClassifier(config.model, everyone.classes), tokenizer, config.train),
        classes=everyone.classes,
        sampler=sampling.Everyone() if len(everyone) == 1 else sampling.build(config.cohort, len(everyone)),
        mechanism=NoPrivacy(),
        optimizer=config.server,
        rounds=config.rounds,
    )
    return Assembly(config, everyone, METHODS[config.method](config, parts), tokenizer)
