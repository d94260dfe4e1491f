"""The second work: a BiLSTM classifier of texts, averaged by FedAvg; 10 of 100 clients a round.

    python classify.py FOLDER write
    python classify.py FOLDER lexfed [--workers 0] [--rounds 8]
    python classify.py FOLDER floor  [--rounds 8]

lexfed runs first and writes what each client's batches were; the bare loop of torch repeats them
from the same weights. Both leave their weights after the first round, which must agree.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import work as shared
from torch import nn

VOCABULARY, WIDTH, HIDDEN, CLASSES = 20_000, 100, 64, 4
CLIENTS, TEXTS, LENGTH, COHORT, BATCH, LR = 100, 101, 32, 10, 32, 0.5
NAMES = {"embedding.weight": "emb.weight", "output.weight": "fc.weight", "output.bias": "fc.bias"}


def write(folder: Path) -> None:
    """A quarter of the words of a text are of its class, so that it can be learned."""
    folder.mkdir(parents=True, exist_ok=True)
    draws, words = np.random.default_rng(1234), VOCABULARY - 1  # one is the unknown word
    with (folder / "users.jsonl").open("w") as file:
        for user in range(CLIENTS):
            labels = draws.integers(0, CLASSES, TEXTS)
            texts = draws.integers(0, words, (TEXTS, LENGTH))
            own = LENGTH // 4
            texts[:, :own] = labels[:, None] * 50 + draws.integers(0, 50, (TEXTS, own))
            for text, label in zip(texts, labels, strict=True):
                row = {"user": f"u{user}", "label": int(label)}
                row["text"] = " ".join(f"w{word}" for word in text)
                file.write(json.dumps(row) + "\n")
    every = " ".join(f"w{word}" for word in range(words))
    (folder / "public.jsonl").write_text(json.dumps({"text": every}) + "\n")


# --- lexfed ---------------------------------------------------------------------------------------


def run_lexfed(options: argparse.Namespace) -> None:
    from run_lexfed import _cpu

    from lexfed.core.memory import give_back, keep_blocks
    from lexfed.core.seeds import derive, root
    from lexfed.experiment import config as configuration
    from lexfed.experiment.assembly import assemble
    from lexfed.federation import ServerState
    from lexfed.federation.sums import tapped
    from lexfed.models.model import shuffled
    from lexfed.runtime.meter import Tally, metered
    from lexfed.runtime.simulation import simulate, site_of
    from lexfed.runtime.store import Store
    from lexfed.runtime.workers import workers

    folder = options.folder
    config = configuration.parse(
        {
            "name": "classify", "rounds": options.rounds, "method": "fedavg",
            "data": {
                "name": str(folder / "users.jsonl"), "partition": "user", "clients": CLIENTS,
                "test": 0.01, "validation": 0.0,
            },
            "vocabulary": {"corpus": str(folder / "public.jsonl"), "size": VOCABULARY},
            "model": {"embedding": WIDTH, "hidden": HIDDEN, "dropout": 0.0},
            "cohort": {"size": COHORT},
            "train": {"optimizer": "sgd", "lr": LR, "batch": BATCH},
        }
    )  # fmt: skip
    keep_blocks()  # as a run does
    assembly = assemble(config)
    asked: list[tuple[int, list[int]]] = []
    wall, cpu, tally = [], [], Tally()
    with tempfile.TemporaryDirectory() as store, ExitStack() as stack:
        site = site_of(assembly, Store(Path(store)))
        federation = simulate(site)
        if options.workers:
            federation = stack.enter_context(workers(site, config, options.workers))
        federation = tapped(
            metered(federation, tally),
            lambda verb, requests: asked.append(
                (int(next(iter(requests.values())).meta["step"]), list(requests))
            ),
        )
        server = assembly.method.server(federation, derive(root(0), "server"), ServerState())
        state = next(server)
        _save(folder / "cls-start.npz", state.params)
        clock = time.perf_counter(), _cpu()
        for after in server:
            give_back()
            wall.append(time.perf_counter() - clock[0])
            cpu.append(_cpu() - clock[1])
            if len(wall) == 1:
                _save(folder / f"cls-lexfed-{options.workers}.npz", after.params)
            clock = time.perf_counter(), _cpu()
    plan = {}
    for number, (step, cohort) in enumerate(asked):
        for place, client in enumerate(cohort):
            person = assembly.population.client(client)
            examples = assembly.parts.task.reader.read(person.train).examples
            seed = derive(derive(person.secret, "train", step, 0), "epoch", 0)
            batches = list(shuffled(examples, BATCH, seed))
            plan[f"{number}/{place}/x"] = torch.cat([batch.ids for batch in batches]).numpy()
            plan[f"{number}/{place}/y"] = torch.cat([batch.labels for batch in batches]).numpy()
    np.savez(folder / "cls-plan.npz", **plan)
    who = f"lexfed, {options.workers} workers" if options.workers else "lexfed, one process"
    _report(who, folder, wall, cpu, tally.bytes_up / len(plan) * 2)


# --- the floor ------------------------------------------------------------------------------------


class BiLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(self.emb(x))[0].mean(1))


def run_floor(options: argparse.Namespace) -> None:
    net, planned = BiLSTM(), _rounds(options.folder)
    with np.load(options.folder / "cls-start.npz") as start:
        common = {NAMES.get(n, n): torch.from_numpy(start[n]) for n in start}
    wall, cpu = [], []
    for one_round in planned:
        clock = time.perf_counter(), shared.own_cpu()
        total: dict[str, torch.Tensor] = {}
        texts = 0
        for x, y in one_round:
            net.load_state_dict(common)
            optimizer = torch.optim.SGD(net.parameters(), lr=LR)
            for at in range(0, len(x), BATCH):
                optimizer.zero_grad()
                F.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH]).backward()
                optimizer.step()
            for name, value in net.state_dict().items():
                weighted = value * float(len(x))
                total[name] = total[name] + weighted if name in total else weighted
            texts += len(x)
        common = {name: value / texts for name, value in total.items()}
        wall.append(time.perf_counter() - clock[0])
        cpu.append(shared.own_cpu() - clock[1])
        if len(wall) == 1:
            ours = {theirs: name for name, theirs in NAMES.items()}
            _save(options.folder / "cls-floor.npz", {ours.get(n, n): v for n, v in common.items()})
    dense = 4 * sum(value.numel() for value in common.values())
    _report("bare loop, one thread", options.folder, wall, cpu, dense)


def _rounds(folder: Path) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    with np.load(folder / "cls-plan.npz") as plan:
        found: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for name in plan.files:
            number, place, kind = name.split("/")
            if kind == "x":
                pair = plan[name], plan[f"{number}/{place}/y"]
                found.setdefault(int(number), []).append(
                    (torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))
                )
    return [found[number] for number in sorted(found)]


# --- both -----------------------------------------------------------------------------------------


def _save(path: Path, params: "dict[str, torch.Tensor]") -> None:
    np.savez(path, **{name: value.detach().numpy() for name, value in params.items()})


def _report(
    runner: str, folder: Path, wall: list[float], cpu: list[float], bytes_up: float
) -> None:
    """The first round warms up and does not count."""
    steps = sum(-(-len(x) // BATCH) for one_round in _rounds(folder)[1:] for x, _ in one_round)
    found = {
        "runner": runner,
        "work": "classifier",
        "steps": steps,
        "cpu_ms_per_step": 1e3 * sum(cpu[1:]) / steps,
        "wall_s_per_round": float(np.median(wall[1:])),
        "peak_mb": shared.peak_mb(),
        "bytes_up_per_client": bytes_up,
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("verb", choices=("write", "lexfed", "floor"))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.verb == "write":
        write(options.folder)
    else:
        (run_lexfed if options.verb == "lexfed" else run_floor)(options)


if __name__ == "__main__":
    main()
