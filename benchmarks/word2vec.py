"""Federated Word2Vec beside gensim on text8, and what a FedSGD iteration costs as the vocabulary
grows.

    LEXFED_DATA=... python benchmarks/word2vec.py [--repeats 3] [--parts speed steps memory]

speed   ten federated nodes on two threads, and gensim with one and two workers, in turn: the same
        text (text8, all windows), the same 200 dimensions, window, negatives and subsampling; each
        scored on the same held-out pairs and on WordSim353. gensim makes one pass. lexfed makes
        1.75, so that its vectors are as good: words per second count all. The last column counts
        the text once, whatever it took to be as good. Both are timed from text: the turning of
        words into numbers is in lexfed's time, as it is in gensim's.
steps   FedSGD as in the paper (2,048 pairs, 64 negatives) at 50,000 and 200,000 words, in turn:
        time of an iteration, bytes.
memory  `lexfed run` with 200,000 words, ten nodes: its peak, in both modes.

Results are printed as Markdown and written to benchmarks/word2vec.json.
"""

# ruff: noqa: E402
import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lexfed.agreement.protocol import VOCABULARY
from lexfed.core.seeds import root
from lexfed.corpus.population import Client
from lexfed.experiment import config
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import ServerState
from lexfed.models.skipgram import INPUT, OUTPUT, Text
from lexfed.runtime.meter import Tally, metered
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.runtime.threads import threads
from lexfed.word2vec.passes import heldout_pairs
from lexfed.word2vec.study import Joining, VectorStudy, word_figures

HERE = Path(__file__).parent
CONFIG = HERE.parent / "experiments" / "word2vec" / "text8-all.toml"
AS_GOOD = (
    "rounds=50", "word2vec.epochs=1.75", "word2vec.lr=0.035", "word2vec.reuse=8",
    "word2vec.rule=in_turn", "word2vec.pace=1.5",
)  # fmt: skip
Figures = dict[str, Any]


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def joining(assembly: Assembly, vocabulary: bytes) -> Joining:
    """The organisations with the list that they agreed on: what they read, and are scored on."""
    study = assembly.method.study
    assert isinstance(study, VectorStudy)
    begun = study.replicas.first(vocabulary)
    return Joining(study.options, study.population, study.rounds, study.readings, begun)


def clients_of(world: Joining) -> list[Client]:
    return [world.population.client(number) for number in range(len(world.population))]


def training_texts(world: Joining) -> list[Text]:
    begun = world.begun
    return [world.readings.text(begun, c, "train", c.train) for c in clients_of(world)]


def scores(world: Joining, tables: dict[str, Any]) -> Figures:
    held = (world.readings, world.begun)
    pairs = [heldout_pairs(*held, client, world.options) for client in clients_of(world)]
    loss = sum(p.loss(tables) for p in pairs) / sum(len(p.centres) for p in pairs)
    return {
        "heldout_loss": loss,
        "wordsim353": word_figures(world.vocabulary, tables, analogies=False)["wordsim353"],
    }


def federated(settings: tuple[str, ...] = AS_GOOD) -> tuple[Joining, Figures]:
    """Agree, untimed; then everything from text to tables, timed."""
    assembly = assemble(config.load(CONFIG, settings))
    with (
        tempfile.TemporaryDirectory() as folder,
        threads(site_of(assembly, Store(Path(folder))), 2) as federation,
    ):
        server = assembly.method.server(federation, root(0), ServerState())
        agreed, _start = next(server), next(server)
        state, wall, cpu = timed(lambda: list(server)[-1])
    world = joining(assembly, agreed.blobs[VOCABULARY])
    words = sum(len(text.tokens) for text in training_texts(world))
    tables = {name: table.numpy() for name, table in state.params.items()}
    passes = assembly.config.word2vec.epochs
    return world, {
        "trainer": "lexfed, 10 nodes, 2 threads", "vocabulary": len(world.vocabulary),
        "text_words": words, "words": words * passes, "wall": wall, "cpu": cpu,
        **scores(world, tables),
    }  # fmt: skip


def corpus_file(world: Joining, folder: Path) -> Path:
    """All organisations' training text, only agreed words, pieces in random order: what gensim
    reads.
    """
    tokens = np.array(world.vocabulary.tokens, dtype=object)
    lines = [
        " ".join(tokens[t.tokens[a:b]])
        for t in training_texts(world)
        for a, b in zip(t.starts[:-1], t.starts[1:], strict=True)
    ]
    path = folder / "text8.txt"
    path.write_text("\n".join(lines[i] for i in np.random.default_rng(0).permutation(len(lines))))
    return path


def gensim(world: Joining, path: Path, workers: int) -> Figures:
    from gensim.models import Word2Vec

    model = Word2Vec(
        vector_size=200, window=5, negative=5, sg=1, min_count=1, sample=1e-3,
        workers=workers, epochs=1, seed=1,
    )  # fmt: skip
    model.build_vocab(corpus_file=str(path))
    words = model.corpus_total_words
    _, wall, cpu = timed(
        lambda: model.train(
            corpus_file=str(path), total_words=words, total_examples=model.corpus_count, epochs=1
        )
    )
    tokens = world.vocabulary.tokens
    order = np.array([model.wv.key_to_index[token] for token in tokens])
    tables = {
        INPUT: np.ascontiguousarray(model.wv.vectors[order]),
        OUTPUT: np.ascontiguousarray(model.syn1neg[order]),
    }
    return {
        "trainer": f"gensim, {workers} worker{'s' * (workers > 1)}", "vocabulary": len(tokens),
        "text_words": words, "words": words, "wall": wall, "cpu": cpu,
        **scores(world, tables),
    }  # fmt: skip


def speed(repeats: int) -> list[Figures]:
    runs: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        # compiles, and encodes the text for gensim's file
        warm, _ = federated(("rounds=1", "word2vec.epochs=0.01"))
        path = corpus_file(warm, Path(folder))
        for repeat in range(repeats):
            for work in (
                lambda: gensim(warm, path, 1),
                lambda: federated()[1],
                lambda: gensim(warm, path, 2),
            ):
                runs.append({"repeat": repeat, **work()})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return runs


STEPS = (
    "word2vec.mode=fedsgd", "word2vec.rule=row_cap", "word2vec.lr=0.05", "agreement.minimum=1",
    "agreement.holders=1", "rounds=6", "word2vec.steps=20",
)  # fmt: skip


def steps() -> list[Figures]:
    """Iterations at both sizes, in turn, round by round; not the first round, in which newcomers
    get the vocabulary.
    """
    results = []
    for upload in ("fp32", "int8"):
        assemblies = {
            size: assemble(
                config.load(CONFIG, (*STEPS, f"agreement.size={size}", f"word2vec.upload={upload}"))
            )
            for size in (50_000, 200_000)
        }
        with tempfile.TemporaryDirectory() as folder:
            programs = {}
            for size, assembly in assemblies.items():
                tally = Tally()
                site = site_of(assembly, Store(Path(folder) / str(size)))
                federation = metered(simulate(site), tally)
                server = assembly.method.server(federation, root(0), ServerState())
                next(server), next(server), next(server)
                tally.reset()
                programs[size] = (server, tally)
            for number in range(4):
                for server, tally in programs.values():
                    state, wall, cpu = timed(lambda server=server: next(server))  # type: ignore[misc]
                    count = 20 * 10  # iterations x nodes
                    dense = 4 * sum(table.numel() for table in state.params.values())
                    results.append({
                        "words": len(state.params[INPUT]), "upload": upload, "round": number,
                        "wall_ms": 1000 * wall / 20, "cpu_ms": 1000 * cpu / 20,
                        "up": tally.bytes_up / count, "down": tally.bytes_down / count,
                        "dense": dense, "loss": tally.loss,
                    })  # fmt: skip
                    tally.reset()
                    print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    return results


def memory(*mode: str) -> Figures:
    """In a process of its own: Python, torch, text and all."""
    settings = (
        "agreement.minimum=1", "agreement.holders=1", "agreement.size=200000", "rounds=3",
        "word2vec.epochs=0.075", "word2vec.baselines=false", *mode,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-c",
            MEASURED,
            "run",
            str(CONFIG),
            "--out",
            f"{folder}/run",
            "--workers",
            "2",
        ]
        command += [word for setting in settings for word in ("--set", setting)]
        out = subprocess.run(command, check=True, capture_output=True, text=True)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return {
        "words": summary["vocabulary_size"],
        "peak_mb": float(out.stderr.strip().splitlines()[-1]),
    }


MEASURED = """
import resource, sys
from lexfed import cli
try:
    cli.main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
"""


def show(results: dict[str, Any]) -> None:
    if "speed" in results:
        heads = (
            "",
            "words/s, CPU",
            "words/s, wall",
            "held-out loss",
            "WordSim353",
            "text once: words/s, CPU",
            "wall",
        )
        print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
        for trainer in dict.fromkeys(run["trainer"] for run in results["speed"]):
            runs = [run for run in results["speed"] if run["trainer"] == trainer]

            def median(value: Callable[[Figures], float], runs: list[Figures] = runs) -> float:
                return statistics.median(map(value, runs))

            cells = [
                median(lambda r: r["words"] / r["cpu"]),
                median(lambda r: r["words"] / r["wall"]),
            ]
            once = [
                median(lambda r: r["text_words"] / r["cpu"]),
                median(lambda r: r["text_words"] / r["wall"]),
            ]
            quality = (
                f"{median(lambda r: r['heldout_loss']):.3f} | "
                f"{median(lambda r: r['wordsim353']):.3f}"
            )
            print(
                f"| {trainer} | {cells[0]:,.0f} | {cells[1]:,.0f} | {quality} | {once[0]:,.0f} | "
                f"{once[1]:,.0f} |"
            )
    if "steps" in results:
        heads = (
            "words",
            "upload",
            "iteration, CPU ms",
            "wall ms",
            "up per node",
            "below dense",
            "down per node",
            "below dense",
        )
        print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
        for size, upload in dict.fromkeys(
            (run["words"], run["upload"]) for run in results["steps"]
        ):
            runs = [
                run for run in results["steps"] if (run["words"], run["upload"]) == (size, upload)
            ]
            at = {
                key: statistics.median(run[key] for run in runs)
                for key in ("cpu_ms", "wall_ms", "up", "down", "dense")
            }
            sent = (
                f"{at['up'] / 1e3:.0f} kB | {at['dense'] / at['up']:,.0f} | "
                f"{at['down'] / 1e6:.2f} MB"
            )
            time_ = f"{at['cpu_ms']:.1f} | {at['wall_ms']:.1f}"
            print(f"| {size:,} | {upload} | {time_} | {sent} | {at['dense'] / at['down']:,.0f} |")
    if "memory" in results:
        for mode, figures in results["memory"].items():
            print(
                f"\nPeak memory, {figures['words']:,} words x 200, ten nodes, {mode}: "
                f"{figures['peak_mb']:.0f} MB"
            )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("speed", "steps", "memory"),
        default=["speed", "steps", "memory"],
    )
    options = parser.parse_args()
    path = HERE / "word2vec.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    work: dict[str, Callable[[], Any]] = {
        "speed": lambda: speed(options.repeats),
        "steps": steps,
        "memory": lambda: {"fedsgd": memory(*STEPS[:3], "word2vec.steps=20"), "fedavg": memory()},
    }
    for part in options.parts:
        results[part] = work[part]()
        path.write_text(json.dumps(results, indent=1) + "\n")
    show(results)


if __name__ == "__main__":
    main()
