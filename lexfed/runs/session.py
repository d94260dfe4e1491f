"""A run: consume a method's server program, and do around it what is nobody else's business.

Checkpoints, evaluation, records, artefacts and the summary happen here, between two states of the
generator; progress and reports belong to whoever consumes the records this module yields.
"""

import math
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from lexfed.core.errors import BudgetSpent, ConfigError, DivergedError
from lexfed.core.files import OWNERS_FOLDER
from lexfed.core.memory import give_back, keep_blocks, return_large_blocks
from lexfed.core.seeds import derive, fresh, root
from lexfed.corpus.population import Population
from lexfed.experiment.assembly import Assembly
from lexfed.federation import Federation, ServerState, Steps, Study, ruled
from lexfed.federation.loop import Books, without_figures
from lexfed.federation.robust import rule_of
from lexfed.federation.server_optimizer import released
from lexfed.privacy.accounting import to_json
from lexfed.records import checkpoint
from lexfed.records.checkpoint import Checkpoint
from lexfed.records.rundir import RunDir
from lexfed.report.progress import Ahead, Events, Happened, Scoring
from lexfed.runs import summary
from lexfed.runtime.meter import Tally, metered
from lexfed.runtime.ray_cluster import ray_cluster
from lexfed.runtime.recording import Recorder, recorded, recorded_sums
from lexfed.runtime.simulation import checked, simulate, site_of
from lexfed.runtime.store import Store
from lexfed.runtime.threads import threads
from lexfed.runtime.workers import workers
from lexfed.secure.remembered import remembering
from lexfed.secure.secure_sum import secured
from lexfed.wire import left_the_numbers

Figures = dict[str, Any]
# rounds in a row in which most updates are no numbers: one such round may be that of a few liars
PATIENCE = 3


@dataclass(frozen=True)
class Run:
    """Everything a run needs. The last four change no result."""

    assembly: Assembly
    directory: RunDir
    start: Checkpoint | None = None  # where it goes on
    workers: int = 0  # 0: in this process
    record_wire: Path | None = None
    # what answers for the clients, where they are elsewhere; default: a simulation
    federation: Federation | None = None
    ray: str | None = None  # the address of a cluster

    @property
    def study(self) -> Study:
        study = self.assembly.method.study
        if study is None:
            raise ValueError("a method is studied: its kind brings a study if it does not")
        return study


def execute(run: Run) -> Events:
    """Run to the end, yielding each round's record as it is written, and before it that its scores
    are being made. The caller holds the directory's lock.
    """
    give_back()
    # small models lose with more; and bits must not depend on how many cores there are
    torch.set_num_threads(1)
    with ExitStack() as stack:
        recorder = Recorder(run.record_wire) if run.record_wire else None
        tally = Tally(**(run.start.tally if run.start else {}))
        clients = metered(_federation(run, stack, recorder), tally)
        federation = checked(clients, run.assembly.method)
        server = Server(run, federation, tally, run.directory.fingerprint())
        yield from server.rounds()
        yield from server.finish()


def _federation(run: Run, stack: ExitStack, recorder: Recorder | None) -> Federation:
    """The clients, in this process or in others, as the configuration wants them added up."""
    config, people = run.assembly.config, run.assembly.population
    federation = run.federation
    if federation is None:
        federation, people = _simulated(run, stack, recorder)
    if recorder is not None:
        federation = recorded(federation, recorder)
    if config.secure.sums:
        sums = secured(federation, config.secure, lru_cache(1 << 16)(people.pinned))
        sums = recorded_sums(sums, recorder) if recorder is not None else sums
        return remembering(sums, run.directory.checkpoint / "opened")
    rule = rule_of(config.aggregation)
    return federation if rule is None else ruled(federation, rule)


def _simulated(
    run: Run, stack: ExitStack, recorder: Recorder | None
) -> tuple[Federation, Population]:
    """The clients in this process or in others, and these clients with their secrets."""
    config = run.assembly.config
    site = site_of(run.assembly, Store(run.directory.clients), recorder)
    if config.entry.has("threads"):
        return_large_blocks()
    else:
        keep_blocks()
    if run.ray is not None:
        return stack.enter_context(ray_cluster(site, config, run.ray)), site.population
    if run.workers and config.entry.has("threads"):
        return stack.enter_context(threads(site, run.workers)), site.population
    if run.workers:
        device = run.assembly.device
        return stack.enter_context(workers(site, config, run.workers, device)), site.population
    return simulate(site), site.population


@dataclass
class Server:
    """The server's program as it runs: the last state that is kept, and how it ended."""

    run: Run
    federation: Federation
    tally: Tally
    fingerprint: str
    state: ServerState = field(default_factory=ServerState)
    stopped: str = "finished"
    exploded: int = 0  # rounds in a row

    def rounds(self) -> Events:
        start = self.run.start or Checkpoint(ServerState())
        self.state = start.state
        records = self.run.directory.truncate(self.state.step)
        if start.closes_round:
            # killed between checkpoint and record
            if not records or records[-1]["step"] < self.state.step:
                yield from self._record()
            self.tally.reset()
        config = self.run.assembly.config
        # from the operating system it is another each time: a repeated round has another cohort
        secret = fresh() if config.secrets == "system" else derive(root(config.seed), "server")
        books, federation = self._books(), without_figures(self.federation)
        asked = books.watched(federation) if books is not None else federation
        server = self.run.assembly.method.server(asked, secret, self.state)
        yield from self._ahead()
        started = time.perf_counter()
        for after in _until_it_ends(server, self.state):
            if books is not None and isinstance(after, ServerState):
                books.settle(after)
            self.tally.seconds += time.perf_counter() - started
            good = self._good(after)
            if good is None:
                break
            before, due = self.state, self._keep(good)
            yield from self._happened(before)
            if due:
                yield from self._record()
                self.tally.reset()
            yield from self._ahead()
            started = time.perf_counter()
        if books is not None:
            books.check()

    def _ahead(self) -> Iterator[Ahead]:
        ahead = self.run.assembly.method.ahead
        if ahead is not None and (work := ahead(self.state)) is not None:
            yield Ahead(self.state.round, work)

    def _happened(self, before: ServerState) -> Iterator[Happened]:
        happened = self.run.assembly.method.happened
        if happened is not None and (work := happened(before, self.state)) is not None:
            yield Happened(self.state.round, work)

    def _books(self) -> Books | None:
        """Where something is promised: what the method asks for, it pays."""
        promise = self.run.assembly.promise
        if promise is None:
            return None
        mechanism = promise.mechanism
        own_noise = mechanism.options.placement in ("local", "distributed")
        return Books(own_noise, mechanism.ahead, self.state)

    def _good(self, after: "ServerState | DivergedError | BudgetSpent") -> ServerState | None:
        """The state, if training goes on from it; None: it ends here."""
        if isinstance(after, BudgetSpent):
            self.stopped = f"budget: {after}"
            return None
        why = str(after) if isinstance(after, DivergedError) else self._wrong(after)
        if why is None and isinstance(after, ServerState):
            return after
        self.stopped = f"diverged: {why}" if why else "diverged"
        # the state before it stays, whatever was done in place
        self.state = checkpoint.load(self.run.directory.checkpoint).state
        return None

    def _wrong(self, after: ServerState) -> str | None:
        """Whether training has left the numbers (the server's own, or for too long those of most
        clients) or is of no use any more, and why; None: it goes on.
        """
        method = self.run.assembly.method
        if after.round > self.state.round:
            self.exploded = self.exploded + 1 if _exploded(self.tally) else 0
        if _no_numbers(after, self.tally) or self.exploded >= min(PATIENCE, method.rounds):
            return self._why()
        return method.diverged(after) if method.diverged is not None else None

    def _why(self) -> str:
        return (
            f"most updates were no numbers of an ordinary size ({self.exploded} rounds in a row): "
            "lower the learning rate (train.lr, word2vec.lr), or what a sum counts for "
            "(server.lr, word2vec.cap)"
            if self.exploded
            else ""
        )

    def _keep(self, after: ServerState) -> bool:
        """Write the state down, before anything derived from it leaves this process; whether a
        record is due.
        """
        closes_round = after.round > self.state.round
        due = closes_round or (after.done != self.state.done and self.run.study.due(after))
        self.state = after
        give_back()
        directory = self.run.directory
        kept = Checkpoint(after, due, asdict(self.tally), self.fingerprint)
        checkpoint.save(directory.checkpoint, kept)
        wanted = after.round in self.run.assembly.config.keep or self.run.study.due(after)
        if closes_round and wanted:  # due: the next step switches the tokenizer
            folder = directory.kept(after.round)
            folder.parent.mkdir(OWNERS_FOLDER, exist_ok=True)
            checkpoint.save(folder, kept)
            Store(directory.clients).copy_before(after.step, Store(folder / "clients"))
        return due

    def _record(self) -> Events:
        """The line of this round: what was counted, and scores if they are due."""
        state = self.state
        method, kept = self.run.assembly.method, self.run.assembly.config.keep
        last = state.round == method.rounds or state.round in kept or self.run.study.due(state)
        yield from self._scoring(last)
        started = time.perf_counter()
        scores = self._scores(last)
        self.tally.evaluation_seconds = time.perf_counter() - started
        counted = {"round": state.round, "step": state.step, **self.tally.record()}
        record = {**counted, "ledger": to_json(state.ledger), "metrics": scores}
        self.run.directory.append(record)
        yield record

    def _is_scored(self, last: bool) -> bool:
        every = self.run.assembly.config.evaluation.every
        due = last or (every > 0 and self.state.round % every == 0)
        return self.run.assembly.scored and due

    def _scoring(self, last: bool) -> Iterator[Scoring]:
        """Said before it is done: all clients' scores may take longer than their training."""
        if self._is_scored(last):
            yield Scoring(self.state.round, scored_clients(self.run.assembly, last), last)

    def _scores(self, last: bool) -> Figures:
        if self._is_scored(last):
            return dict(self.run.study.score(self.federation, self._released(), last))
        return {}

    def _released(self) -> ServerState:
        return replace(self.state, params=released(self.state.params, self.state.opt_state))

    def finish(self) -> Iterator[Scoring]:
        directory = self.run.directory
        directory.artifacts.mkdir(exist_ok=True)
        self.run.study.artifacts(self._released(), directory.artifacts)
        # who stops early has not been scored as at the end
        ended = self.state.round < self.run.assembly.method.rounds and self.stopped == "finished"
        early = (ended or self.stopped.startswith("budget")) and self.state.params
        if early:
            yield from self._scoring(last=True)
        last = self._scores(last=True) if early else None
        directory.write_summary(
            summary.of(self.run.assembly, directory, self.state, self.stopped, last)
        )


def scored_clients(assembly: Assembly, last: bool = True) -> int:
    """How many are scored, at the last round or on the way; 0: not client by client."""
    options, everyone = assembly.config.evaluation, len(assembly.population)
    if not assembly.config.entry.kind.labels:
        return 0
    return min((options.last or everyone) if last else options.clients, everyone)


def _until_it_ends(
    server: Steps, start: ServerState
) -> Iterator[ServerState | DivergedError | BudgetSpent]:
    """The states of a server program; what it returns is one too, if it was not yielded."""
    if not isinstance(server, Generator):
        raise ConfigError(
            f"Method.server is no generator (it returned {type(server).__name__}): it must yield "
            "its states"
        )
    last: ServerState | None = start
    try:
        while True:
            last = _state(next(server))
            yield last
    except StopIteration as end:
        if end.value is not None and end.value is not last:
            yield _state(end.value)
    except (DivergedError, BudgetSpent) as error:
        yield error


def _state(found: object) -> ServerState:
    if not isinstance(found, ServerState):
        raise ConfigError(
            f"Method.server yields and returns ServerStates, not {type(found).__name__}"
        )
    return found


def _exploded(tally: Tally) -> bool:
    """Most of those who answered sent what is no number, or far from any that training makes."""
    return sum(n for why, n in tally.refused.items() if left_the_numbers(why)) > tally.heard


def _no_numbers(state: ServerState, tally: Tally) -> bool:
    if tally.loss is not None and not math.isfinite(tally.loss):
        return True
    return not all(bool(torch.isfinite(value).all()) for value in state.params.values())
