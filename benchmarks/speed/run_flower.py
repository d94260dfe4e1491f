"""The classifier in Flower's simulation: ServerApp, ClientApp, its own FedAvg, Ray with two CPUs.

python run_flower.py FOLDER [--rounds 20] [--workers 2] [--agree FILE]

As Flower's own examples have it: a model is made for every message, and nothing is kept between
them but the file with the batches. The server says in its message which batches of the round are
meant, because it does not know which of its nodes holds which texts.
"""

import argparse
import os
import time
from pathlib import Path

import classify
import numpy as np
import torch
import watching
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    told = message.content["config"]
    model = classify.BiLSTM()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = classify.client(_folder(), int(told["server-round"]) - 1, int(told["place"]))
    classify.train(model, x, y)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
    )
    return Message(content=content, reply_to=message)


class Placed(FedAvg):
    """FedAvg that tells each node of a cohort its place in it."""

    def configure_train(self, server_round, arrays, config, grid):  # type: ignore[no-untyped-def]
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for place, message in enumerate(messages):
            told = ConfigRecord({**config, "place": place})
            message.content = RecordDict({"arrays": arrays, "config": told})
        return messages


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    clock = Clock()
    strategy = Placed(
        fraction_train=classify.COHORT / classify.CLIENTS,
        fraction_evaluate=0.0,
        min_train_nodes=classify.COHORT,
        min_available_nodes=classify.CLIENTS,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(classify.begun(_folder()).state_dict()),
        num_rounds=int(os.environ["SPEED_ROUNDS"]),
        evaluate_fn=clock.stamp,  # it is called before the first round and after each
    )
    model = classify.BiLSTM()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    np.savez(os.environ["SPEED_WEIGHTS"], **classify.ours(model.state_dict()))
    share = classify.accuracy(model, _folder())
    classify.report(
        "Flower simulation, two workers", _folder(), clock.wall, clock.cpu,
        classify.dense_bytes(), {**clock.began, "accuracy": share},
    )  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.began: dict[str, float] = {}
        self.before = (0.0, 0.0)

    def stamp(self, server_round: int, arrays: ArrayRecord) -> None:
        now = time.perf_counter(), watching.tree_cpu()
        if server_round:
            self.wall.append(now[0] - self.before[0])
            self.cpu.append(now[1] - self.before[1])
        else:
            self.began = {"start_s": watching.age(), "start_cpu_s": now[1]}
        self.before = time.perf_counter(), watching.tree_cpu()


def _folder() -> Path:
    return Path(os.environ["SPEED_FOLDER"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=classify.ROUNDS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--agree", type=Path, help="one round; its weights go here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # what the actors of Ray are told, they are told by their environment
    os.environ |= {
        "SPEED_FOLDER": str(options.folder),
        "SPEED_ROUNDS": str(1 if options.agree else options.rounds),
        "SPEED_WEIGHTS": str(options.agree or options.folder / "cls-flower-last.npz"),
    }
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=classify.CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": options.workers},
        },
    )


if __name__ == "__main__":
    import run_flower  # by its name: what is defined in a script, the actors can't import

    run_flower.main()
