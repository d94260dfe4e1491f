"""A run: consume a method's server program, and do around it what is nobody else's business.

Checkpoints, evaluation, records, artefacts and the summary happen here, between two states of the generator; progress and
reports belong to whoever consumes the records this module yields.
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lexfed import checkpoint
from lexfed.assembly import Assembly
from lexfed.checkpoint import Checkpoint
from lexfed.config import fingerprint
from lexfed.errors import BudgetSpent, DivergedError
from lexfed.federation import Federation, ServerState, robust
from lexfed.files import write_atomically
from lexfed.memory import give_back, return_large_blocks
from lexfed.methods.defences import held_back
from lexfed.methods.evaluation import evaluate
from lexfed.optim import released
from lexfed.params import count
from lexfed.privacy.accounting import to_json
from lexfed.privacy.robust import rule_of
from lexfed.rundir import Record, RunDir
from lexfed.runtime.meter import Tally, metered
from lexfed.runtime.recording import Recorder, recorded
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.runtime.threads import threads
from lexfed.runtime.workers import workers
from lexfed.seeds import derive, root
from lexfed.wire import Message, encode

Figures = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Everything a run needs. The last two change no result."""

    assembly: Assembly
    directory: RunDir
    start: Checkpoint | None = None  # where it goes on
    workers: int = 0  # 0: in this process
    record_wire: Path | None = None


def execute(run: Run) -> Iterator[Record]:
    """Run to the end, yielding each round's record as it is written. The caller holds the directory's lock."""
    give_back()
    torch.set_num_threads(1)  # small models lose with more; and bits must not depend on how many cores there are
    with ExitStack() as stack:
        recorder = Recorder(run.record_wire) if run.record_wire else None
        site = Site(run.assembly, Store(run.directory.clients), recorder)
        federation = simulate(site)
        if run.assembly.method.threads:
            return_large_blocks()
        if run.workers:
            team = threads if run.assembly.method.threads else workers
            federation = stack.enter_context(team(site, run.workers))
        rule = rule_of(run.assembly.config.aggregation)
        if rule is not None:
            federation = replace(federation, total=robust(federation.ask, rule))
        yield from _rounds(run, recorded(federation, recorder) if recorder else federation)


def _rounds(run: Run, runtime: Federation) -> Iterator[Record]:
    start = run.start or Checkpoint(ServerState())
    state, tally, stopped = start.state, Tally(**start.tally), "finished"
    federation = metered(runtime, tally)
    records = run.directory.truncate(state.step)
    if start.closes_round:
        if not records or records[-1]["step"] < state.step:  # killed between checkpoint and record
            yield _record(run, federation, state, tally)
        tally.reset()
    hold = run.assembly.method.hold
    if hold is not None and run.start is not None:
        hold(state, True)
    server = run.assembly.method.server(federation, derive(root(run.assembly.config.seed), "server"), state)
    started = time.perf_counter()
    for after in _until_it_ends(server):
        tally.seconds += time.perf_counter() - started
        if isinstance(after, BudgetSpent):
            stopped = f"budget: {after}"
            break
        if isinstance(after, DivergedError) or _diverged(after, tally):
            stopped = f"diverged: {after}" if isinstance(after, DivergedError) else "diverged"
            state = checkpoint.load(run.directory.checkpoint).state  # the last good state stays, whatever was done in place
            break
        closes_round = after.round > state.round
        due = closes_round or (after.done != state.done and run.assembly.method.milestone(after))
        state = after
        give_back()
        if hold is not None:
            hold(state, False)
        # before anything derived from the state leaves this process
        kept = Checkpoint(state, due, asdict(tally), fingerprint(run.assembly.config))
        checkpoint.save(run.directory.checkpoint, kept)
        if closes_round and state.round in run.assembly.config.keep:
            checkpoint.save(run.directory.kept(state.round), kept)
            Store(run.directory.clients).copy_before(state.step, Store(run.directory.kept(state.round) / "clients"))
        if due:
            yield _record(run, federation, state, tally)
            tally.reset()
        started = time.perf_counter()
    _write_artifacts(run, state)
    # who stops early has not been scored as at the end
    last = _scores(run, federation, state, last=True) if stopped.startswith("budget") and state.params else None
    _write_summary(run, state, stopped, last)


def _until_it_ends(server: Iterator[ServerState]) -> Iterator[ServerState | DivergedError | BudgetSpent]:
    try:
        yield from server
    except (DivergedError, BudgetSpent) as error:
        yield error


def _diverged(state: ServerState, tally: Tally) -> bool:
    if tally.loss is not None and not math.isfinite(tally.loss):
        return True
    return not all(bool(torch.isfinite(value).all()) for value in state.params.values())


def _record(run: Run, federation: Federation, state: ServerState, tally: Tally) -> Record:
    """The line of this round: what was counted, and scores if they are due."""
    started = time.perf_counter()
    method, kept = run.assembly.method, run.assembly.config.keep
    last = state.round == method.rounds or state.round in kept or method.milestone(state)
    scores = _scores(run, federation, state, last)
    tally.evaluation_seconds = time.perf_counter() - started
    record = {"round": state.round, "step": state.step, **asdict(tally), "ledger": to_json(state.ledger), "metrics": scores}
    run.directory.append(record)
    return record


def _scores(run: Run, federation: Federation, state: ServerState, last: bool) -> Figures:
    state = replace(state, params=released(state.params, state.opt_state))
    evaluation, people, score = run.assembly.config.evaluation, run.assembly.population, run.assembly.method.score
    if score is not None:
        due = last or (evaluation.every and state.round % evaluation.every == 0)
        return dict(score(federation, state, last)) if due else {}
    if last:
        unseen = evaluate(federation.ask, state, range(len(people), len(people) + people.unseen), evaluation.split)
        scores = evaluate(federation.ask, state, federation.clients[: evaluation.last], evaluation.split)
        return scores | ({"unseen_accuracy": unseen["global_accuracy"]} if unseen else {})
    if evaluation.every and state.round % evaluation.every == 0:
        return evaluate(federation.ask, state, federation.clients[: evaluation.clients], evaluation.split)
    return {}


def _write_artifacts(run: Run, state: ServerState) -> None:
    run.directory.artifacts.mkdir(exist_ok=True)
    if run.assembly.method.artifacts is not None:
        run.assembly.method.artifacts(state, run.directory.artifacts)
        return
    model = Message(released(state.params, state.opt_state))
    write_atomically(run.directory.artifacts / "model.safetensors", encode(model))
    if _common_words(run):
        vocabulary = "".join(f"{token}\n" for token in run.assembly.tokenizer.vocabulary.tokens)
        write_atomically(run.directory.artifacts / "vocabulary.txt", vocabulary.encode())


def _common_words(run: Run) -> int | None:
    """How many tokens everybody knows; None where every client has its own."""
    size = len(run.assembly.tokenizer.vocabulary)
    return size if size > 1 else None


def _write_summary(run: Run, state: ServerState, stopped: str, last: Figures | None) -> None:
    config, records = run.assembly.config, run.directory.records()
    up, clients = sum(r["bytes_up"] for r in records), sum(r["clients"] for r in records)
    scores: Figures = last if last is not None else dict(records[-1]["metrics"]) if records else {}
    run.directory.write_summary(
        {"vocabulary_size": _common_words(run)}
        | {key: value for key, value in scores.items() if key != "scored_clients"}
        | {
            "name": config.name,
            "method": config.method,
            "seed": config.seed,
            "rounds": state.round,
            "clients": len(run.assembly.population),
            "seconds": sum(record["seconds"] + record["evaluation_seconds"] for record in records),
            "stopped": stopped.partition(":")[0],
            "reason": stopped.partition(": ")[2] or None,
            "bytes_up": up,
            "bytes_down": sum(record["bytes_down"] for record in records),
            "bytes_up_per_client_round": up / clients if clients else None,
            "parameters_shared": count(state.params),
        }
        | _privacy(run, state)
        | _held_back(run, state)
        | dict(run.assembly.method.summarise(records) if run.assembly.method.summarise else {})
    )


def _held_back(run: Run, state: ServerState) -> Figures:
    """How often clients sent nothing: they keep it for themselves, and only a simulation can look. It never travels."""
    config = run.assembly.config
    if not config.defences.minimum_words and config.self_audit.limit is None:
        return {}
    store = Store(run.directory.clients)
    clients = range(len(run.assembly.population))
    return {"held_back": held_back(store.load(client, (state.step, 0)) for client in clients)}


def _privacy(run: Run, state: ServerState) -> Figures:
    """What was spent, against whom it holds, and where that ends."""
    promise = run.assembly.promise
    if promise is None:
        return {}
    this_run, deployment = promise.epsilons(state.ledger)
    return {
        "epsilon_this_run": this_run,
        "epsilon_deployment": deployment,
        "delta": promise.delta,
        "privacy": promise.words(this_run, deployment),
        "ledger": to_json(state.ledger),
    }
