"""From a configuration to a method and its clients. Workers and nodes rebuild both from it, so it
is all they are sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lexfed.core.devices import CPU
from lexfed.core.errors import ConfigError
from lexfed.core.seeds import derive, root
from lexfed.corpus import population
from lexfed.corpus.organisations import ELSEWHERE, elsewhere
from lexfed.corpus.population import Population
from lexfed.experiment import building
from lexfed.experiment.config import Config
from lexfed.experiment.promised import promised
from lexfed.experiment.reads import of_kind
from lexfed.federation import Entry, Layer, Method
from lexfed.federation.sampling import build as sampler_of
from lexfed.layers.malice import malice
from lexfed.layers.minimum_text import counting, minimum_text
from lexfed.layers.mishaps import mishaps
from lexfed.layers.self_audit import OFF, self_audit
from lexfed.models import registry
from lexfed.privacy.accounting import Ledger
from lexfed.privacy.mechanism import UNPAID, Account
from lexfed.privacy.promise import Promise
from lexfed.vocabulary.word import Tokenizer


@dataclass(frozen=True)
class Assembly:
    config: Config
    population: Population
    method: Method
    parts: Any  # what the method was built from, by its kind
    promise: Promise | None = None
    # the names of all parameters, where some are private: the gate looks for them
    parameters: frozenset[str] = frozenset()
    device: torch.device = CPU  # where clients compute

    @property
    def entry(self) -> Entry:
        return self.config.entry

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The one that all share; None: there is no common word list."""
        return getattr(self.parts, "tokenizer", None)

    @property
    def scored(self) -> bool:
        """Whether clients are asked for figures: no noise covers them, so only the experimenter of
        a simulation may see them. Where users are promised something and secrets are real, nobody
        asks.
        """
        return self.promise is None or self.config.secrets == "seed"

    def planned(self) -> Ledger:
        """What the whole run will have charged, as its method says: of local noise, at most."""
        users = len(self.population)
        if self.method.planned is not None:
            return self.method.planned()
        alone = self.entry.has("alone")
        expected = users if alone else sampler_of(self.config.cohort, users).expected_size(users)
        payer: Account = getattr(self.parts, "account", UNPAID)
        return payer.plan((), expected, users, self.method.rounds)


def liars(config: Config, people: Population) -> Sequence[Layer]:
    """What a simulation puts around its clients: some lie. It hangs from the clients' secret, as
    they have it: with `secrets = "system"` no seed tells who it is.
    """
    return [malice(config.malice, people)] if config.malice.clients else []


def chance(config: Config, people: Population) -> Sequence[Layer]:
    """And around that: something goes wrong, where it may."""
    cohort = config.cohort
    may = cohort.dropout or cohort.lost or cohort.stale
    return [mishaps(cohort, people.secret)] if may else []


def assemble(
    config: Config, people: Population | None = None, device: torch.device = CPU
) -> Assembly:
    """`people`: the clients as a party of a deployment knows them; default: all of them, here.
    `device`: where they compute, if their kind can do it elsewhere than on the CPU.
    """
    entry = config.entry
    _check(config, entry)
    if people is None and config.data.name == ELSEWHERE:  # of a run between organisations
        people = elsewhere(config.data, {}, entry.kind.labels)
    if people is None:
        people = population.build(
            config.data,
            derive(root(config.seed), "data"),
            labels=entry.kind.labels,
            apart=config.apart,
        )
    parts = entry.kind.parts(config, _held_out(config, people), entry)
    if entry.kind.on_devices:
        parts = replace(parts, task=replace(parts.task, device=device))
    if config.self_audit != OFF:
        parts = replace(parts, layer=self_audit(config.self_audit))
    method = _with_layers(building.build(config, parts), config, parts)
    names = building.parameters(config, method, parts)
    if method.study is None:
        method = replace(method, study=parts.study)
    promise = promised(parts.promise, config, method, parts.people)
    return Assembly(config, parts.people, method, parts, promise, names, device)


def _held_out(config: Config, people: Population) -> Population:
    """Where a method knows of one held-out set only, an organisation takes the one that is
    named.
    """
    if people.here or config.evaluation.split == "test":
        return people
    if of_kind(config.entry, "evaluation.split"):  # its requests say which
        return people
    return replace(people, common_test=people.common_validation)


def _with_layers(method: Method, config: Config, parts: Any) -> Method:
    """The method, its uploads counted and, where that is asked for, held back by those who have
    little text.
    """
    layers: list[Layer] = []
    if config.defences.minimum_words:
        layers.append(minimum_text(config.defences.minimum_words, parts.mechanism))
    if config.defences.minimum_words or config.self_audit.limit is not None:
        layers.append(counting)
    client = dict(method.client)
    for layer in layers:
        client = {verb: layer(verb, handler) for verb, handler in client.items()}
    return replace(method, client=client)


PROTECTING = ("privacy", "defences", "self_audit", "aggregation", "server.average")


def _check(config: Config, entry: Entry) -> None:
    """Refuse what could not do what it says."""
    for name in PROTECTING:
        table, _, key = name.partition(".")
        mine, usual = getattr(config, table), getattr(Config(), table)
        differs = getattr(mine, key) != getattr(usual, key) if key else mine != usual
        if differs and not of_kind(entry, name):
            why = entry.kind.tells.get(name, "it would do nothing")
            what = name if key else f"[{table}]"
            raise ConfigError(f"{what} can't be used with method = '{entry.name}': {why}")
    if config.self_audit.limit is not None:
        _check_self_audit(config, entry)
    if config.aggregation.rule != "mean" and config.privacy.placement != "none":
        raise ConfigError(
            "noise is made for a sum, which a robust rule is not: set aggregation.rule = 'mean' "
            "(a clipped sum bounds every client already), or privacy.placement = 'none'"
        )
    if config.malice.clients:
        _check_malice(config, entry)
    if config.secure.sums:
        _check_secure(config, entry)


def _check_secure(config: Config, entry: Entry) -> None:
    if entry.has("alone") or entry.has("pooled"):
        raise ConfigError(
            f"[secure] can't be used with method = '{entry.name}': nothing is added up"
        )
    if config.aggregation.rule != "mean":
        raise ConfigError(
            "a robust rule looks at single updates, which nobody sees behind masks: set "
            "aggregation.rule = 'mean', or secure.sums = false"
        )
    asked = {"data.clients": config.data.clients}
    if config.cohort.sampling != "everyone":
        asked["cohort.size"] = config.cohort.size
    if of_kind(entry, "evaluation.clients"):
        asked["evaluation.clients"] = config.evaluation.clients
    for key, clients in asked.items():
        if clients < config.secure.least:
            raise ConfigError(
                f"{key} is {clients}, and nobody takes part in a secure sum of fewer than "
                f"secure.least = {config.secure.least}"
            )
    if entry.has("word list") and config.agreement.trust != "nobody":
        raise ConfigError(
            "behind masks the server is told sums alone, but an agreement on a word list tells it "
            "who holds which hashes: set agreement.trust = 'nobody'"
        )
    if config.train.upload != "fp32":
        raise ConfigError(
            "what is added up under masks is rounded to their own steps: set train.upload = "
            "'fp32' (secure.bits says how many bits travel)"
        )


def _check_self_audit(config: Config, entry: Entry) -> None:
    words = registry.entry(config.model.name).reads_words
    if not entry.has("self-audit"):
        raise ConfigError(
            "[self_audit] is for method = 'fedevocab', 'fedavg' and 'fedavg_finetune', not for "
            f"'{entry.name}'"
        )
    if entry.has("own words") and not words:
        raise ConfigError(f"[self_audit] with method = '{entry.name}' needs model.name = 'bilstm'")


def _check_malice(config: Config, entry: Entry) -> None:
    options, clients = config.malice, 1 if entry.has("pooled") else config.data.clients
    if options.clients > clients or entry.has("pooled"):
        raise ConfigError(
            f"malice.clients is {options.clients}, but the number of clients is {clients}; lower it"
        )
    if options.kind == "stuff_vocabulary" and not entry.has("word list"):
        raise ConfigError(
            f"{entry.name} agrees on no word list that could be stuffed: choose another malice.kind"
        )
    if options.kind == "flip_labels" and not entry.kind.labels:
        raise ConfigError(f"{entry.name} trains without labels: choose another malice.kind")
