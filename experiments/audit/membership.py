"""Who was trained on? The loss threshold and LiRA against released models, without and with
differential privacy.

    LEXFED_DATA=DIR python experiments/audit/membership.py [plain] [private] [--seed 0]

AG News, a small BiLSTM on public word vectors (GloVe, in LEXFED_DATA), FedAvg. The plain models are
of ten clients that
all train in every round: useful, and they remember. The private ones are those of thousands of
clients, each with few texts,
and noise added by the server; an epsilon for clients bounds what is told of a text.
Every model is a target once; figures are means over the targets, and intervals are for other texts,
not for other models.
Each run's figures go into membership.results.json beside this file as it ends, and are printed.
CPU: 8 and 5 minutes.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lexfed.audits.membership.lira import report
from lexfed.audits.membership.released import limit, studied
from lexfed.audits.membership.shadows import SCORES, ShadowStudy
from lexfed.core.seeds import Seed, derive, root
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import parse

VECTORS = "glove_6b_100d_top100k.npz"
RUNS: dict[str, dict[str, Any]] = {
    "plain": {
        "rounds": 6,
        "data": {
            "name": "ag_news",
            "clients": 10,
            "partition": "iid",
            "validation": 0.0,
            "limit": 8000,
        },
        "vocabulary": {"vectors": VECTORS, "size": 10_000},
        "model": {"embedding": 100, "hidden": 32, "dropout": 0.0},
        "cohort": {"sampling": "everyone"},
        "train": {"optimizer": "adam", "lr": 5e-3, "batch": 64, "epochs": 2, "max_length": 30},
        "audit": {"shadows": 16},
    },
    "private": {
        "rounds": 12,
        "data": {"name": "ag_news", "clients": 3600, "partition": "iid", "validation": 0.0},
        "vocabulary": {"vectors": VECTORS, "size": 4000},
        "model": {"embedding": 100, "hidden": 16, "dropout": 0.0},
        "cohort": {"size": 360, "sampling": "poisson"},
        "train": {"optimizer": "sgd", "lr": 3.0, "batch": 16, "epochs": 3, "max_length": 20},
        "server": {"optimizer": "sgd", "lr": 6.0, "average": 0.5},
        "privacy": {"placement": "central", "clip": 1.0, "epsilon": 2.0, "delta": 1e-4},
        "audit": {"shadows": 4},
    },
}


def figures(study: ShadowStudy, seed: Seed) -> dict[str, Any]:
    targets = range(len(study.phi))
    counted = torch.stack([study.matched(target, seed) for target in targets])
    accuracy, right = float(study.accuracy.mean()), study.phi > 0
    attacks = {
        name: asdict(
            report(
                torch.stack([attack(study, target) for target in targets]),
                study.inside,
                accuracy,
                seed,
                counted,
            )
        )
        for name, attack in SCORES.items()
    }
    return {
        "accuracy": accuracy,
        "accuracies": study.accuracy.tolist(),
        "majority": study.majority,
        "members_more_likely_than_not": float(right[study.inside].double().mean()),
        "others_more_likely_than_not": float(right[~study.inside].double().mean()),
        "epsilon_this_run": study.epsilon,
        "delta": study.delta,
        "dp_limit_at_1pct": limit(study),
        **attacks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="*", default=list(RUNS), help="which of: plain, private (default: both)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".results.json")
    for run in arguments.runs:
        started, seed = time.process_time(), derive(root(arguments.seed), run)
        study = studied(assemble(parse(RUNS[run])), seed)
        spent = round(time.process_time() - started)
        results = json.loads(file.read_text()) if file.exists() else {}
        results[run] = {
            "seed": arguments.seed,
            "config": RUNS[run],
            **figures(study, seed),
            "cpu_seconds": spent,
        }
        file.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps({run: results[run]}, indent=1))


if __name__ == "__main__":
    main()
