"""A run: consume a method's server program, and do around it what is nobody else's business.

Checkpoints, evaluation, records, artefacts and the summary happen here, between two states of the generator; progress and
reports belong to whoever consumes the records this module yields.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lexfed import checkpoint
from lexfed.assembly import Assembly
from lexfed.checkpoint import Checkpoint
from lexfed.federation import Federation, ServerState
from lexfed.files import write_atomically
from lexfed.methods.evaluation import evaluate
from lexfed.params import count
from lexfed.rundir import Record, RunDir
from lexfed.runtime.meter import Tally, metered
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.seeds import derive, root
from lexfed.wire import ClientId, Message, encode


@dataclass(frozen=True)
class Run:
    """Everything a run needs; `start` is where it begins or goes on."""

    assembly: Assembly
    directory: RunDir
    start: Checkpoint | None = None


def execute(run: Run) -> Iterator[Record]:
    """Run to the end, yielding each round's record as it is written."""
    torch.set_num_threads(1)  # small models lose with more; and bits must not depend on how many cores there are
    site = Site(run.assembly, Store(run.directory.clients))
    yield from _rounds(run, simulate(site))


def _rounds(run: Run, runtime: Federation) -> Iterator[Record]:
    config, method = run.assembly.config, run.assembly.method
    tally, state = Tally(), ServerState()
    stopped = "finished"
    federation = metered(runtime, tally)
    started = time.perf_counter()
    for after in method.server(federation, derive(root(config.seed), "server"), state):
        finished_round, state = after.round > state.round, after
        tally.seconds = time.perf_counter() - started
        if tally.loss is not None and not math.isfinite(tally.loss):
            stopped = "diverged"  # the last good checkpoint stays
            break
        checkpoint.save(run.directory.checkpoint, Checkpoint(state, asdict(tally)))
        if finished_round:
            yield _record(run, federation, state, tally)
            vars(tally).update(asdict(Tally()))
            started = time.perf_counter()
    _write_artifacts(run, state)
    _write_summary(run, state, stopped)


def _record(run: Run, federation: Federation, state: ServerState, tally: Tally) -> Record:
    """The line of this round: what was counted, and scores if they are due."""
    evaluation = run.assembly.config.evaluation
    last = state.round == run.assembly.method.rounds
    clients: list[ClientId] = []
    if last:
        clients = list(federation.clients)[: evaluation.last]
    elif evaluation.every and state.round % evaluation.every == 0:
        clients = list(federation.clients)[: evaluation.clients]
    scores = evaluate(federation.ask, state, clients)
    record = {"round": state.round, **asdict(tally), "scored_clients": len(clients), "metrics": scores}
    run.directory.append(record)
    return record


def _write_artifacts(run: Run, state: ServerState) -> None:
    run.directory.artifacts.mkdir(exist_ok=True)
    write_atomically(run.directory.artifacts / "model.safetensors", encode(Message(state.params)))
    vocabulary = "".join(f"{token}\n" for token in run.assembly.tokenizer.vocabulary.tokens)
    write_atomically(run.directory.artifacts / "vocabulary.txt", vocabulary.encode())


def _write_summary(run: Run, state: ServerState, stopped: str) -> None:
    config, records = run.assembly.config, run.directory.records()
    up, clients = sum(r["bytes_up"] for r in records), sum(r["clients"] for r in records)
    figures: dict[str, Any] = dict(records[-1]["metrics"]) if records else {}
    run.directory.write_summary(
        {key: value for key, value in figures.items() if not key.endswith("_spread")}
        | {
            "name": config.name,
            "method": config.method,
            "seed": config.seed,
            "rounds": state.round,
            "clients": len(run.assembly.population),
            "seconds": sum(record["seconds"] for record in records),
            "stopped": stopped,
            "bytes_up": up,
            "bytes_down": sum(record["bytes_down"] for record in records),
            "bytes_up_per_client_round": up / clients if clients else None,
            "parameters_shared": count(state.params),
            "vocabulary_size": len(run.assembly.tokenizer.vocabulary),
        }
    )
