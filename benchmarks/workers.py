"""How much sooner do two workers finish than one? The quick FedAvg experiment with 20 clients a
round.

    python benchmarks/workers.py [--repeats 3] [--rounds 16]

One and two workers in turn, so that both meet the same machine; wall and CPU seconds of the whole
command, and of its rounds alone (without starting Python). The results must be the same bits.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def machine_cpu() -> float:
    """CPU seconds of the whole machine: workers are not our children, but a fork server's. Leave
    the machine alone.
    """
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(workers: int, rounds: int, folder: Path) -> dict[str, float]:
    settings = (
        "cohort.size=20",
        "cohort.sampling=everyone",
        f"rounds={rounds}",
        "evaluation.every=0",
    )
    command = [
        sys.executable,
        "-m",
        "lexfed.cli",
        "run",
        ROOT / "experiments/quick/fedavg.toml",
        "--out",
        folder,
    ]
    command += [
        "--workers",
        str(workers),
        *(word for setting in settings for word in ("--set", setting)),
    ]
    started, busy = time.perf_counter(), machine_cpu()
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {
        "wall": time.perf_counter() - started,
        "cpu": machine_cpu() - busy,
        "round": statistics.median(record["seconds"] for record in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    rows: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for workers in rows:
                rows[workers].append(
                    measure(workers, options.rounds, Path(folder) / f"{workers}-{repeat}")
                )
                print(
                    workers,
                    "workers:",
                    {key: round(value, 2) for key, value in rows[workers][-1].items()},
                    flush=True,
                )
        weights = {path.read_bytes() for path in Path(folder).glob("*/artifacts/model.safetensors")}
    if len(weights) != 1:
        sys.exit("the results differ")
    for key in ("wall", "cpu", "round"):
        one, two = (statistics.median(row[key] for row in rows[workers]) for workers in (1, 2))
        print(f"{key:6} one {one:6.2f} s   two {two:6.2f} s   ratio {one / two:.2f}")


if __name__ == "__main__":
    main()
