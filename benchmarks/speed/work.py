"""The work that lexfed and its peers are timed on: a private language model of many small users.

Users' texts are words drawn by Zipf's law; the model is an LSTM with a tied softmax. lexfed says
once who is in which round and what each client's batches are (`plan.npz`), and everybody trains on
those: the same initial weights, the same batches, the same clip. Needs numpy, and torch for the
model; no lexfed.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import watching

NOISE_COHORT = 20_000  # the noise on the mean is that of a cohort of so many


@dataclass(frozen=True)
class Work:
    name: str
    vocabulary: int
    width: int
    variable: bool = False  # texts of a user: geometric with mean 8, at most 64; else 8
    users: int = 1_000
    texts: int = 8
    length: int = 20  # tokens of a text that are predicted
    cohort: int = 50
    batch: int = 16
    lr: float = 0.1
    server_lr: float = 0.01
    clip: float = 0.5
    noise: float = 1.0
    seed: int = 0


WORKS = {
    work.name: work
    for work in (
        Work("one-step", 10_000, 128),
        Work("variable", 10_000, 128, variable=True),
        Work("small", 1_000, 32),
    )
}


def write(work: Work, folder: Path) -> None:
    """The users' texts, and public ones that name every word in the order of its rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "work.json").write_text(json.dumps(asdict(work)))
    draws = np.random.default_rng(work.seed)
    words = work.vocabulary - 4  # four tokens are special
    law = 1.0 / np.arange(1, words + 1)
    counts = np.full(work.users + 1, work.texts)  # the last one never trains: it is there to score
    if work.variable:
        counts = np.minimum(64, draws.geometric(1.0 / work.texts, size=work.users + 1))
    with (folder / "users.jsonl").open("w") as file:
        for user, texts in enumerate(counts):
            chosen = draws.choice(words, size=(texts, work.length - 1), p=law / law.sum())
            for row in chosen:
                text = " ".join(f"w{word}" for word in row)
                file.write(json.dumps({"user": f"u{user}", "text": text}) + "\n")
    with (folder / "public.jsonl").open("w") as file:
        for repeats in (2, 1):  # the first half more often than the second
            text = " ".join(f"w{word}" for word in range(words * repeats // 2))
            file.write(json.dumps({"text": text}) + "\n")


def read(folder: Path) -> Work:
    return Work(**json.loads((folder / "work.json").read_text()))


# --- what lexfed plans, for the others to repeat --------------------------------------------------


def rounds(folder: Path) -> list[list[np.ndarray]]:
    """Of each round each client's windows (n, length + 1), in the order it trains on them."""
    with np.load(folder / "plan.npz") as plan:
        ids, sizes, cohorts = plan["ids"], plan["sizes"], plan["cohorts"]
    ends = np.cumsum(sizes)
    clients = [ids[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    starts = np.concatenate([[0], np.cumsum(cohorts)])
    return [clients[a:b] for a, b in pairwise(starts)]


def save_plan(folder: Path, planned: list[list[np.ndarray]]) -> None:
    clients = [client for one_round in planned for client in one_round]
    np.savez(
        folder / "plan.npz",
        ids=np.concatenate(clients),
        sizes=np.array([len(client) for client in clients]),
        cohorts=np.array([len(one_round) for one_round in planned]),
    )


def steps(work: Work, one_round: list[np.ndarray]) -> int:
    return sum(-(-len(client) // work.batch) for client in one_round)


# --- the model, for those who do not bring their own ----------------------------------------------


def model(work: Work, folder: Path):  # type: ignore[no-untyped-def]
    """The same model in plain torch, with the weights that lexfed begins with."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(work.vocabulary, work.width)
            self.lstm = nn.LSTM(work.width, work.width, batch_first=True)
            self.bias = nn.Parameter(torch.zeros(work.vocabulary))

        def loss(self, x, y, eval=False):  # type: ignore[no-untyped-def]
            hidden, _ = self.lstm(self.embedding(x))
            logits = F.linear(hidden, self.embedding.weight, self.bias)
            return F.cross_entropy(logits.reshape(-1, work.vocabulary), y.reshape(-1))

        @torch.no_grad()
        def metrics(self, x, y, eval=False):  # type: ignore[no-untyped-def]
            from pfl.metrics import Weighted

            return {"loss": Weighted(self.loss(x, y).item() * y.numel(), y.numel())}

    made = LanguageModel()
    with np.load(folder / "start.npz") as start:
        made.load_state_dict({OURS.get(n, n): torch.from_numpy(start[n]) for n in start})
    return made


OURS = {"output.bias": "bias"}  # lexfed's names of the model's parameters


def begun():  # type: ignore[no-untyped-def]
    """What a peer is told on its command line, its work, and the model to begin with."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--agree", type=Path, help="one round without noise; its weights go here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = read(options.folder)
    return options, work, model(work, options.folder)


def save_weights(path: Path, weights: dict[str, np.ndarray]) -> None:
    theirs = {name: ours for ours, name in OURS.items()}
    np.savez(path, **{theirs.get(name, name): value for name, value in weights.items()})


# --- clocks ---------------------------------------------------------------------------------------


def own_cpu() -> float:
    return time.process_time()


def began() -> dict[str, float]:
    """How long this process has been at it when its first round begins."""
    return {"start_s": watching.age(), "start_cpu_s": own_cpu()}


def report(
    runner: str, folder: Path, wall: list[float], cpu: list[float], start: dict[str, float]
) -> None:
    """One line of JSON; the first round warms up and does not count."""
    planned, work = rounds(folder), read(folder)
    counted = [steps(work, one_round) for one_round in planned[1 : len(wall)]]
    done = sum(counted)
    found = {
        "runner": runner,
        "work": work.name,
        "steps": done,
        "cpu_ms_per_step": 1e3 * sum(cpu[1:]) / done if done else None,
        "cpu_ms_per_step_best": min(1e3 * c / n for c, n in zip(cpu[1:], counted, strict=True))
        if done
        else None,
        "wall_s_per_round": float(np.mean(wall[1:])) if done else None,
        **start,
    }
    print(json.dumps(found), flush=True)
