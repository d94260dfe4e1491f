"""The same work in lexfed: its own configuration, clients and server program.

    python run_lexfed.py FOLDER plan [--rounds 6]
    python run_lexfed.py FOLDER run [--workers 0] [--agree FILE] [--profile FILE]

`plan` writes who is in which round, what each client's batches are, and the initial weights; `run`
times rounds from one state of the server to the next, as a run of `lexfed run` has them, without
checkpoints and scores (the peers write and score nothing either).
"""

import argparse
import cProfile
import multiprocessing
import pstats
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import work as shared

from lexfed.core.memory import give_back, keep_blocks
from lexfed.core.seeds import derive, root
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import Config
from lexfed.federation import Federation, Requests, ServerState, Sum
from lexfed.language.language_task import tokenizer_of
from lexfed.models.language_model import batches, pad, windows
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.runtime.workers import workers
from lexfed.vocabulary.learned import opened, texts_of
from lexfed.wire import Verb


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("verb", choices=("plan", "run"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--agree", type=Path, help="one round without noise; its weights go here")
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_blocks()  # as a run does
    if options.verb == "plan":
        plan(options.folder, options.rounds)
    else:
        run(options)


def configured(folder: Path, rounds: int, agree: bool) -> Config:
    work = shared.read(folder)
    server = (
        {"optimizer": "sgd", "lr": 1.0}
        if agree
        else {"optimizer": "adam", "lr": work.server_lr, "tau": 0.01}
    )
    return configuration.parse(
        {
            "name": "speed",
            "seed": work.seed,
            "rounds": rounds,
            "method": "tokenizer_for_free",
            "data": {
                "name": str(folder / "users.jsonl"), "partition": "user", "clients": work.users,
                "unseen": 1, "test": 0.0, "validation": 0.0,
            },
            "tokenizer": {
                "kind": "word", "size": work.vocabulary, "public": str(folder / "public.jsonl"),
            },
            "language_model": {"layers": 1, "width": work.width},
            "tokenizer_for_free": {"switch": []},
            "cohort": {"size": work.cohort, "sampling": "poisson"},
            "train": {"optimizer": "sgd", "lr": work.lr, "batch": work.batch},
            "server": server,
            "privacy": {
                "placement": "central", "clip": work.clip, "noise": 0.0 if agree else work.noise,
                "accountant": "rdp",
                **({} if agree else {
                    "noise_cohort": shared.NOISE_COHORT, "population": 10_000_000,
                }),
            },
        }
    )  # fmt: skip


def plan(folder: Path, rounds: int) -> None:
    """Play the server program with clients that say nothing, and note whom it asks for what."""
    config = configured(folder, rounds, agree=False)
    assembly = assemble(config)
    planned: list[list[np.ndarray]] = []

    def total(verb: Verb, requests: Requests) -> Sum:
        planned.append([_batches(assembly, client, requests[client]) for client in requests])
        if len(planned) == 1:
            model = next(iter(requests.values())).arrays
            start = {n.removeprefix("model/"): value.numpy() for n, value in model.items()}
            np.savez(folder / "start.npz", **start)
        return Sum()

    people = range(len(assembly.population))
    nobody = Federation(people, lambda verb, requests: iter(()), total)
    for _ in assembly.method.server(nobody, derive(root(config.seed), "server"), ServerState()):
        pass
    shared.save_plan(folder, planned)


def _batches(assembly: Assembly, number: int, message) -> np.ndarray:  # type: ignore[no-untyped-def]
    client, config = assembly.population.client(number), assembly.config
    tokenizer = opened(message.blobs["tokenizer"])
    sequences = [tokenizer.sequence(words) for words in texts_of(client.train, config.tokenizer)]
    seed = derive(client.secret, "train", message.meta["step"], message.meta["ask"])
    pieces = pad(windows(sequences, config.language_model.context))
    epoch = batches(pieces, config.train.batch, derive(seed, "epoch", 0))
    return torch.cat([batch.ids for batch in epoch]).numpy()


def run(options: argparse.Namespace) -> None:
    rounds = 1 if options.agree else len(shared.rounds(options.folder))
    config = configured(options.folder, rounds, bool(options.agree))
    assembly = assemble(config)
    wall, cpu = [], []
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        site = site_of(assembly, Store(Path(folder)))
        federation = simulate(site)
        if options.workers:
            federation = stack.enter_context(workers(site, config, options.workers))
        server = assembly.method.server(
            federation, derive(root(config.seed), "server"), ServerState()
        )
        state = next(server)  # the tokenizer, and the first model
        if not options.workers:
            _read_ahead(assembly, state)
        began = shared.began()
        if options.profile:
            next(server)
            profile.enable()
        clock = time.perf_counter(), _cpu()
        for after in server:
            give_back()  # as after every round of a run
            wall.append(time.perf_counter() - clock[0])
            cpu.append(_cpu() - clock[1])
            state = after
            clock = time.perf_counter(), _cpu()
        profile.disable()
    if options.profile:
        profile.dump_stats(options.profile)
        pstats.Stats(str(options.profile)).sort_stats("tottime").print_stats(28)
        return
    if options.agree:
        np.savez(options.agree, **{name: value.numpy() for name, value in state.params.items()})
    who = f"lexfed, {options.workers} workers" if options.workers else "lexfed, one process"
    shared.report(who, options.folder, wall, cpu, began)


def _read_ahead(assembly: Assembly, state: ServerState) -> None:
    """Cut the users' texts into tokens before the clock starts: the peers are given tokens. A run
    does it when it first meets a user, and keeps them. (Two workers do it within their time.)
    """
    tokenizer = tokenizer_of(state).data
    for number in range(len(assembly.population)):
        assembly.parts.task.read(assembly.population.client(number).train, tokenizer)


def _cpu() -> float:
    """Of this process and its workers, which are children of a fork server."""
    return shared.own_cpu() + sum(
        int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9
        for child in multiprocessing.active_children()
    )


if __name__ == "__main__":
    main()
