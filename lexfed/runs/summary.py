"""summary.json: the figures of a run. Every key of the contract is there, null where it has no
meaning.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from lexfed.core.figures import ON_THE_WAY, PUBLISHED, SUMMARY
from lexfed.core.params import count
from lexfed.experiment.assembly import Assembly
from lexfed.federation import ServerState
from lexfed.language.language_parts import LANGUAGE_MODEL
from lexfed.language.language_study import SWITCH
from lexfed.language.language_task import TOKENIZER
from lexfed.learning.holding_back import held_back
from lexfed.privacy.accounting import epsilon, from_json, to_json
from lexfed.privacy.promise import Promise
from lexfed.records.rundir import Record, RunDir
from lexfed.runtime.store import Store
from lexfed.use.generating import Wish, generate

SHOWN = 100  # clients whose labels are told
POINTS = 10  # of the account's curve: each costs an accountant some tenths of a second

Figures = dict[str, Any]


def of(
    assembly: Assembly,
    directory: RunDir,
    state: ServerState,
    stopped: str,
    last: Mapping[str, Any] | None,
) -> Figures:
    """`last`: scores of a run that stopped early, which no record has."""
    records, study = directory.records(), assembly.method.study
    scores = last if last is not None else records[-1]["metrics"] if records else {}
    figures = {
        **(study.summary(records) if study is not None else {}),
        **{k: value for k, value in scores.items() if k not in ("scored_clients", ON_THE_WAY)},
        **_counted(assembly, state, records),
        "stopped": stopped.partition(":")[0],
        "reason": stopped.partition(": ")[2] or None,
        **_privacy(assembly, state, records),
        **_held_back(assembly, directory, state),
        **_labels(assembly),
        **_samples(assembly, directory, state),
    }
    if assembly.promise is not None:
        figures["experimenter"] = _experimenter(figures)
    return {key: figures.get(key) for key in dict.fromkeys([*SUMMARY, *figures])}


def _counted(assembly: Assembly, state: ServerState, records: list[Record]) -> Figures:
    up, clients = sum(r["bytes_up"] for r in records), sum(r["clients"] for r in records)
    return {
        "name": assembly.config.name,
        "method": assembly.config.method,
        "method_name": assembly.entry.name,
        "seed": assembly.config.seed if assembly.config.secrets == "seed" else None,
        "device": str(assembly.device),
        "rounds": state.round,
        "clients": len(assembly.population),
        "client_names": list(assembly.population.names[: len(assembly.population)]) or None,
        "seconds": sum(record["seconds"] + record["evaluation_seconds"] for record in records),
        "bytes_up": up,
        "bytes_down": sum(record["bytes_down"] for record in records),
        "bytes_up_per_client_round": up / clients if clients else None,
        "refused": dict(sum((Counter(r.get("refused", {})) for r in records), Counter())),
        "parameters_shared": count(state.params),
    }


def _held_back(assembly: Assembly, directory: RunDir, state: ServerState) -> Figures:
    """How often clients sent nothing: they keep it for themselves, and only a simulation can look.
    It never travels.
    """
    config = assembly.config
    if not config.defences.minimum_words and config.self_audit.limit is None:
        return {}
    store = Store(directory.clients)
    clients = range(len(assembly.population))
    return {"held_back": held_back(store.load(client, (state.step, 0)) for client in clients)}


def _experimenter(figures: Figures) -> list[str]:
    """Under a promise: the figures that were made of users' texts without noise, or count who took
    part. They are for who runs the simulation, not to be published with the model. What is listed
    does not depend on what was scored.
    """
    return sorted({*SUMMARY, *figures} - PUBLISHED)


def _labels(assembly: Assembly) -> Figures:
    """How the partition shared out the labels: where nobody was promised anything and no deployment
    is meant, so that all of it follows from the data and the seed.
    """
    config, people = assembly.config, assembly.population
    private = assembly.promise is not None or config.secure.sums or config.secrets == "system"
    if private or not config.entry.kind.labels or not people.classes:
        return {}
    spans = list(zip(people.starts, people.starts[1:], strict=False))[: min(SHOWN, len(people))]
    counts = [
        np.bincount(people.train.labels[start:end], minlength=people.classes).tolist()
        for start, end in spans
    ]
    return {"label_counts": {"labels": list(people.labels), "clients": counts}}


def _samples(assembly: Assembly, directory: RunDir, state: ServerState) -> Figures:
    """Texts of a language model, if they were asked for: before the last switch, and at the end."""
    config = assembly.config
    if config.entry.kind is not LANGUAGE_MODEL or not config.evaluation.samples:
        return {}
    if TOKENIZER not in state.blobs:  # it has not begun to train
        return {}
    wanted = config.evaluation.samples
    switched = any(name.startswith(SWITCH) for name in state.done)
    moments = {"before the switch of the tokenizer": True} if switched else {}
    return {
        "samples": {
            when: generate(directory.path, Wish(words=30, texts=wanted, before_switch=before))
            for when, before in {**moments, "at the end": False}.items()
        }
    }


def _by_round(promise: Promise, records: list[Record]) -> list[tuple[float | None, ...]]:
    """What had been spent after some of the rounds, the last one among them: by this run, and by
    its deployment. By RDP, which is quick and never below the printed figure.
    """
    told = [record for record in records if record.get("ledger")]
    step = max(1, -(-len(told) // POINTS))
    spent = []
    for record in told[::-1][::step][::-1]:
        ledger = from_json(record["ledger"])
        both = (ledger, promise.mechanism.deployment(ledger))
        costs = [epsilon(one, "user", promise.delta, "rdp") for one in both]
        spent.append((record["round"], *(c if math.isfinite(c) else None for c in costs)))
    return spent


def _privacy(assembly: Assembly, state: ServerState, records: list[Record]) -> Figures:
    """What was spent, against whom it holds, and where that ends."""
    promise = assembly.promise
    if promise is None:
        return {}
    said = promise.statement(state.ledger, state.forks)
    return {
        "epsilon_this_run": said.epsilon_this_run,
        "epsilon_deployment": said.epsilon_deployment,
        "delta": said.delta,
        "privacy": said.sentence,
        "promise": said.to_json(),
        "ledger": to_json(state.ledger),
        "epsilon_by_round": [] if said.taints else _by_round(promise, records),
    }
