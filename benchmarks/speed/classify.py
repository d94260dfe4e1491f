"""The second work: a BiLSTM classifier of texts, averaged by FedAvg; 10 of 100 clients a round.

    python classify.py FOLDER write
    python classify.py FOLDER lexfed [--rounds 20]
    python classify.py FOLDER floor  [--rounds 20]

lexfed runs first and writes what each client's batches were; the bare loop of torch and Flower
(`run_flower.py`) repeat them from the same weights. All leave their weights after the first round,
which must agree. What peers need of this file needs no lexfed.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import work as shared
from torch import nn

VOCABULARY, WIDTH, HIDDEN, CLASSES = 20_000, 100, 64, 4
CLIENTS, TEXTS, LENGTH, COHORT, BATCH, LR, ROUNDS = 100, 101, 32, 10, 32, 0.5, 20
NAMES = {"embedding.weight": "emb.weight", "output.weight": "fc.weight", "output.bias": "fc.bias"}
CONFIG = "classify.toml"


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
    (folder / CONFIG).write_text(
        f"""name = "classify"
rounds = {ROUNDS}
method = "fedavg"
[data]
name = {json.dumps(str((folder / "users.jsonl").resolve()))}
partition = "user"
clients = {CLIENTS}
test = 0.01
validation = 0.0
[vocabulary]
corpus = {json.dumps(str((folder / "public.jsonl").resolve()))}
size = {VOCABULARY}
[model]
embedding = {WIDTH}
hidden = {HIDDEN}
dropout = 0.0
[cohort]
size = {COHORT}
[train]
optimizer = "sgd"
lr = {LR}
batch = {BATCH}
"""
    )


# --- lexfed ---------------------------------------------------------------------------------------


def run_lexfed(options: argparse.Namespace) -> None:
    """The rounds of a run, from one state of the server to the next, in this process; then the
    batches of every client are written down.
    """
    from lexfed.core.memory import give_back, keep_blocks
    from lexfed.core.seeds import derive, root
    from lexfed.experiment import config as configuration
    from lexfed.experiment.assembly import assemble
    from lexfed.federation import ServerState
    from lexfed.federation.sums import tapped
    from lexfed.runtime.meter import Tally, metered
    from lexfed.runtime.simulation import simulate, site_of
    from lexfed.runtime.store import Store

    folder = options.folder
    keep_blocks()  # as a run does
    assembly = assemble(configuration.load(folder / CONFIG, [f"rounds={options.rounds}"]))
    asked: list[tuple[int, list[int]]] = []
    wall, cpu, tally = [], [], Tally()
    with tempfile.TemporaryDirectory() as store:
        federation = tapped(
            metered(simulate(site_of(assembly, Store(Path(store)))), tally),
            lambda verb, requests: asked.append(
                (int(next(iter(requests.values())).meta["step"]), list(requests))
            ),
        )
        server = assembly.method.server(federation, derive(root(0), "server"), ServerState())
        state = next(server)
        _save(folder / "cls-start.npz", state.params)
        began = shared.began()
        clock = time.perf_counter(), shared.own_cpu()
        for after in server:
            give_back()
            wall.append(time.perf_counter() - clock[0])
            cpu.append(shared.own_cpu() - clock[1])
            if len(wall) == 1:
                _save(folder / "cls-lexfed.npz", after.params)
            clock = time.perf_counter(), shared.own_cpu()
    _write_plan(folder, assembly, asked)
    clients = sum(len(cohort) for _, cohort in asked)
    report("lexfed, one process", folder, wall, cpu, tally.bytes_up / clients, began)


def _write_plan(folder: Path, assembly, asked: list[tuple[int, list[int]]]) -> None:  # type: ignore[no-untyped-def]
    from lexfed.core.seeds import derive
    from lexfed.models.model import shuffled

    reader, plan = assembly.parts.task.reader, {}
    for number, (step, cohort) in enumerate(asked):
        for place, client in enumerate(cohort):
            person = assembly.population.client(client)
            seed = derive(derive(person.secret, "train", step, 0), "epoch", 0)
            batches = list(shuffled(reader.read(person.train).examples, BATCH, seed))
            plan[f"{number}/{place}/x"] = torch.cat([batch.ids for batch in batches]).numpy()
            plan[f"{number}/{place}/y"] = torch.cat([batch.labels for batch in batches]).numpy()
    np.savez(folder / "cls-plan.npz", **plan)
    test = reader.read(assembly.population.common_test).examples
    (whole,) = shuffled(test, len(assembly.population.common_test), derive(b"any order"))
    np.savez(folder / "cls-test.npz", x=whole.ids.numpy(), y=whole.labels.numpy())


# --- for the others -------------------------------------------------------------------------------


class BiLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(self.emb(x))[0].mean(1))


def begun(folder: Path) -> BiLSTM:
    """The model with the weights that lexfed begins with."""
    net = BiLSTM()
    with np.load(folder / "cls-start.npz") as start:
        net.load_state_dict({NAMES.get(n, n): torch.from_numpy(start[n]) for n in start})
    return net


def train(net: BiLSTM, x: torch.Tensor, y: torch.Tensor) -> None:
    """An epoch of plain SGD in the order that is given."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for at in range(0, len(x), BATCH):
        optimizer.zero_grad()
        F.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH]).backward()
        optimizer.step()


def ours(weights: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Under lexfed's names."""
    names = {theirs: name for name, theirs in NAMES.items()}
    return {names.get(n, n): value.detach().numpy() for n, value in weights.items()}


@cache
def _plan(folder: Path):  # type: ignore[no-untyped-def]
    return np.load(folder / "cls-plan.npz")


def client(folder: Path, number: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The texts and labels of one client of one round, in the order it trains on them."""
    x, y = (_plan(folder)[f"{number}/{place}/{kind}"] for kind in "xy")
    return torch.from_numpy(x), torch.from_numpy(y)


def rounds(folder: Path, most: int | None = None) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    names = [name.split("/") for name in _plan(folder).files if name.endswith("x")]
    places: dict[int, list[int]] = {}
    for number, place, _ in names:
        places.setdefault(int(number), []).append(int(place))
    return [[client(folder, n, place) for place in places[n]] for n in sorted(places)[:most]]


def steps(folder: Path, played: int) -> int:
    """Local steps in the rounds after the first, which warms up and does not count."""
    counted = rounds(folder, played)[1:]
    return sum(-(-len(x) // BATCH) for one_round in counted for x, _ in one_round)


@torch.no_grad()
def accuracy(net: BiLSTM, folder: Path) -> float:
    with np.load(folder / "cls-test.npz") as test:
        x, y = torch.from_numpy(test["x"]), torch.from_numpy(test["y"])
    return float((net(x).argmax(1) == y).float().mean())


def dense_bytes() -> int:
    return 4 * sum(value.numel() for value in BiLSTM().parameters())


# --- the floor ------------------------------------------------------------------------------------


def run_floor(options: argparse.Namespace) -> None:
    net, planned = begun(options.folder), rounds(options.folder, options.rounds)
    common = {name: value.clone() for name, value in net.state_dict().items()}
    wall, cpu, began = [], [], shared.began()
    for one_round in planned:
        clock = time.perf_counter(), shared.own_cpu()
        total: dict[str, torch.Tensor] = {}
        texts = 0
        for x, y in one_round:
            net.load_state_dict(common)
            train(net, x, y)
            for name, value in net.state_dict().items():
                weighted = value * float(len(x))
                total[name] = total[name] + weighted if name in total else weighted
            texts += len(x)
        common = {name: value / texts for name, value in total.items()}
        wall.append(time.perf_counter() - clock[0])
        cpu.append(shared.own_cpu() - clock[1])
        if len(wall) == 1:
            np.savez(options.folder / "cls-floor.npz", **ours(common))
    report("bare loop, one thread", options.folder, wall, cpu, dense_bytes(), began)


# --- all ------------------------------------------------------------------------------------------


def _save(path: Path, params: Mapping[str, torch.Tensor]) -> None:
    np.savez(path, **{name: value.detach().numpy() for name, value in params.items()})


def report(
    runner: str,
    folder: Path,
    wall: list[float],
    cpu: list[float],
    bytes_up: float,
    more: Mapping[str, float],
) -> None:
    """One line of JSON; the first round warms up and does not count."""
    done = steps(folder, len(wall))
    found = {
        "runner": runner,
        "work": "classifier",
        "steps": done,
        "cpu_ms_per_step": 1e3 * sum(cpu[1:]) / done if done else None,
        "wall_s_per_round": float(np.median(wall[1:])) if done else None,
        "bytes_up_per_client": bytes_up,
        **more,
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("verb", choices=("write", "lexfed", "floor"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.verb == "write":
        write(options.folder)
    else:
        (run_lexfed if options.verb == "lexfed" else run_floor)(options)


if __name__ == "__main__":
    main()
