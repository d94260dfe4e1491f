"""What FedeVocab costs beside its arithmetic: a round, and the scoring of personal models.

    LEXFED_DATA=... python benchmarks/personal_models.py [--rounds 3] [--models 10]

A BiLSTM of 300/300 on SST-2, 10 of 100 clients a round, one thread. Of a round: the share of CPU
time that is not forward, backward and optimizer. Of scoring: the CPU time of reading the common
test set with every client's own model, beside that of the bare matrix products and LSTMs on the
same batches (torch.lstm and nothing else), in turn. Results: benchmarks/personal_models.json, .md.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lexfed.core.memory import give_back, keep_blocks
from lexfed.core.seeds import derive, root
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import Federation, ServerState
from lexfed.learning import task as training
from lexfed.learning.evaluation import sums_of
from lexfed.models.model import Batch, by_length
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store

HERE = Path(__file__).parent
SETTINGS = {
    "name": "personal-models",
    "method": "fedevocab",
    "data": {"name": "sst2", "clients": 100},
    "model": {"embedding": 300, "hidden": 300},
    "cohort": {"size": 10},
    "train": {"epochs": 1, "batch": 64, "max_length": 32},
}


class Stopwatch:
    """CPU time within what it watches."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*words: Any) -> Any:
            begun = time.process_time()
            try:
                return work(*words)
            finally:
                self.seconds += time.process_time() - begun

        return watched


def watch_arithmetic(watch: Stopwatch) -> None:
    """Forward and backward are the gradient, the optimizer is a walk's steps."""
    by_autograd = training.by_autograd
    training.by_autograd = lambda loss: watch.on(by_autograd(loss))
    for name in ("_plain", "_adaptive"):
        make = getattr(training, name)

        def made(*words: Any, make: Any = make) -> Any:
            walk = make(*words)
            return training._Walk(watch.on(walk.step), watch.on(walk.last))

        setattr(training, name, made)


def rounds(server: Any, count: int, watch: Stopwatch) -> tuple[ServerState, list[float]]:
    """The state after them, and of each the share that is not arithmetic."""
    shares = []
    for _ in range(count + 1):  # the first warms up
        watch.seconds, begun = 0.0, time.process_time()
        state = next(server)
        give_back()
        shares.append(1 - watch.seconds / (time.process_time() - begun))
    return state, shares[1:]


def bare(batches: list[Batch], table: torch.Tensor, hidden: int) -> float:
    """CPU seconds of the LSTM alone, both ways, with packed sequences as the model has them."""
    lstm = torch.nn.LSTM(table.shape[1], hidden, batch_first=True, bidirectional=True)
    begun = time.process_time()
    with torch.no_grad():
        for batch in batches:
            words = table[batch.ids % len(table)]
            lstm(torch.nn.utils.rnn.pack_padded_sequence(words, batch.lengths, True, False))
    return time.process_time() - begun


def scoring(
    assembly: Assembly, federation: Federation, state: ServerState, models: int
) -> tuple[float, float]:
    """CPU seconds per model: ours, and the bare ones."""
    begun = time.process_time()
    sums_of(federation.total, state, list(range(models)), "test", 10**6)
    ours = (time.process_time() - begun) / models
    texts = assembly.population.common_test
    examples = assembly.parts.task.reader.read(texts).examples
    batches = list(by_length(examples, size=256))
    table = torch.randn(5_000, assembly.config.model.embedding)
    return ours, bare(batches, table, assembly.config.model.hidden)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_blocks()
    watch = Stopwatch()
    watch_arithmetic(watch)
    assembly = assemble(configuration.parse({**SETTINGS, "rounds": options.rounds + 2}))
    with tempfile.TemporaryDirectory() as folder:
        federation = simulate(site_of(assembly, Store(Path(folder))))
        server = assembly.method.server(federation, derive(root(0), "server"), ServerState())
        state, shares = rounds(server, options.rounds, watch)
        scored = [
            scoring(assembly, federation, state, options.models) for _ in range(options.repeats)
        ]
    found = {
        "rounds": options.rounds, "others_share": statistics.median(shares), "shares": shares,
        "texts": len(assembly.population.common_test), "models": options.models,
        "scoring_s_per_model": statistics.median(ours for ours, _ in scored),
        "bare_s_per_model": statistics.median(least for _, least in scored),
    }  # fmt: skip
    (HERE / "personal_models.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "personal_models.md").write_text(page(found))
    print(page(found))


def page(found: dict[str, Any]) -> str:
    ratio = found["scoring_s_per_model"] / found["bare_s_per_model"]
    return (
        "# FedeVocab beside its arithmetic\n\n"
        "BiLSTM 300/300, SST-2, 10 of 100 clients a round, one thread. Repeat: "
        "`python benchmarks/personal_models.py`.\n\n"
        f"- Of a round's CPU time **{100 * found['others_share']:.1f} %** is not forward, backward "
        f"and optimizer (median of {found['rounds']}; aim: under 8 %).\n"
        f"- Scoring one personal model on {found['texts']:,} texts takes "
        f"{found['scoring_s_per_model']:.2f} s of CPU. The bare LSTM on the same batches, in "
        f"torch, takes {found['bare_s_per_model']:.2f} s: **{ratio:.2f}** times the arithmetic.\n"
    )


if __name__ == "__main__":
    main()
