"""Who was trained on? The loss threshold and LiRA against released models, without and with differential privacy.

    LEXFED_DATA=DIR python experiments/audit/membership.py [plain] [private] [--seed 0]

Film snippets (Rotten Tomatoes), a small BiLSTM, FedAvg. The plain models start from random words and make many passes over
few texts: they learn, and remember. The private ones start from public word vectors (GloVe, in LEXFED_DATA) and have many
clients, each with few texts, and noise added by the server; an epsilon for clients bounds what is told of a text.
Each run's figures go into membership.results.json beside this file as soon as it ends, and all are printed.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexfed.assembly import Assembly
from lexfed.audit.membership import dp_limit, loss_threshold, losses, report
from lexfed.audit.shadows import Study, shadow_study
from lexfed.config import parse
from lexfed.federation import Federation
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.seeds import Seed, derive, root

PLAIN: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "rotten_tomatoes", "clients": 40, "partition": "iid", "validation": 0.0, "limit": 4200},
    "vocabulary": {"corpus": "imdb", "size": 5000},  # words of other people's text: no client shows one
    "model": {"embedding": 16, "hidden": 16, "dropout": 0.2},
    "cohort": {"size": 10},
    "train": {"optimizer": "adam", "lr": 1e-2, "batch": 32, "epochs": 3, "max_length": 25},
}
PRIVATE: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "rotten_tomatoes", "clients": 1400, "partition": "iid", "validation": 0.0},
    "vocabulary": {"vectors": "glove_6b_100d_top100k.npz", "size": 1500},
    "model": {"embedding": 100, "hidden": 8, "dropout": 0.0},
    "cohort": {"size": 70, "sampling": "poisson"},
    "train": {"optimizer": "sgd", "lr": 1.0, "batch": 8, "max_length": 25},
    "server": {"optimizer": "momentum"},
    "privacy": {"placement": "central", "clip": 0.5, "noise": 1.0, "delta": 1e-4},
}
RUNS = {"plain": (PLAIN, 8), "private": (PRIVATE, 4)}  # and how many shadows a target has
FPR = 0.01


def figures(study: Study, seed: Seed) -> dict[str, Any]:
    """Every model is a target once."""
    targets = range(len(study.phi))
    counted = torch.stack([study.matched(target, seed) for target in targets])
    accuracy = float(study.accuracy.mean())

    def scored(attack: Callable[[int], Tensor]) -> dict[str, Any]:
        scores = torch.stack([attack(target) for target in targets])
        return asdict(report(scores, study.inside, accuracy, seed, counted))

    return {
        "accuracy": accuracy,
        "majority": study.majority,
        "epsilon_this_run": study.epsilon,
        "delta": study.delta,
        "dp_limit_at_1pct": None
        if study.epsilon is None or study.delta is None
        else dp_limit(study.epsilon, study.delta, FPR),
        "threshold": scored(lambda target: loss_threshold(losses(study.phi[target]))),
        "lira_online": scored(lambda target: study.attack(target, online=True)),
        "lira_offline": scored(lambda target: study.attack(target, online=False)),
    }


def measured(table: dict[str, Any], shadows: int, seed: Seed) -> dict[str, Any]:
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:

        def runtime(assembly: Assembly) -> Federation:
            return simulate(Site(assembly, Store(Path(folder))))

        study = shadow_study(parse(table), shadows, seed, runtime)
    return {"config": table, "shadows": shadows, **figures(study, seed), "cpu_seconds": round(time.process_time() - started)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=list(RUNS), help="which of: plain, private (default: both)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".results.json")
    results = json.loads(file.read_text()) if file.exists() else {}
    for run in arguments.runs:
        seed = derive(root(arguments.seed), run)
        results[run] = {"seed": arguments.seed, **measured(*RUNS[run], seed)}
        file.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
