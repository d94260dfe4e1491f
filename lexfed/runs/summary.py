"""summary.json: the figures of a run. Every key of the contract is there, null where it has no
meaning.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lexfed.core.figures import ON_THE_WAY, PUBLISHED, SUMMARY
from lexfed.core.params import count
from lexfed.experiment.assembly import Assembly
from lexfed.federation import ServerState
from lexfed.learning.holding_back import held_back
from lexfed.privacy.accounting import to_json
from lexfed.records.rundir import Record, RunDir
from lexfed.runtime.store import Store

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
        **_privacy(assembly, state),
        **_held_back(assembly, directory, state),
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


def _privacy(assembly: Assembly, state: ServerState) -> Figures:
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
    }
