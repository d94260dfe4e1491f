"""Time and memory of a round, by the cohort and by the population.

`lexfed run` itself, watched from outside: FedAvg with a small classifier, two short texts a client,
which lie in an Arrow file that is mapped, not read. A round takes from one of its lines to the
next, checkpoint and record included. Asked for: time linear in the cohort, flat in the population,
memory flat in both.
"""

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pictures
from parts import ROUND, Measuring, Part
from watching import EVERY, Line, Watched

TEXTS, LENGTH, WORDS, ROUNDS = 2, 8, 500, 5
CELLS = (
    (10, 100_000), (100, 100_000), (1_000, 100_000), (10_000, 100_000),
    (100, 1_000), (100, 1_000_000),
)  # fmt: skip
LARGE = 10_000  # a round of so many takes the better part of a minute: fewer of them
FLAT = 1.25  # up to this machine's noise


def write(folder: Path, clients: int) -> Path:
    """Texts piece by piece: the file is larger than what should be in memory."""
    import pyarrow as pa

    path, piece = folder / f"{clients}.arrow", 100_000
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    draws, words = np.random.default_rng(0), [f"w{n}" for n in range(WORDS)]
    schema = pa.schema([("text", pa.string()), ("label", pa.int64()), ("split", pa.string())])
    sizes = [min(piece, clients * TEXTS - at) for at in range(0, clients * TEXTS, piece)]
    with pa.ipc.new_file(str(path), schema) as file:
        for split, rows in (*(("train", rows) for rows in sizes), ("test", 50)):
            chosen = draws.integers(0, WORDS, (rows, LENGTH)).tolist()
            table = {
                "text": [" ".join(map(words.__getitem__, row)) for row in chosen],
                "label": [row[0] % 2 for row in chosen],
                "split": [split] * rows,
            }
            file.write(pa.record_batch(table, schema))
    public = json.dumps({"text": " ".join(words)}) + "\n"
    (folder / "public.jsonl").write_text(public)
    return path


def configured(folder: Path, cohort: int, population: int) -> Path:
    path = folder / "scale.toml"
    path.write_text(
        f"""name = "scale"
rounds = {ROUNDS}
method = "fedavg"
[data]
name = {json.dumps(str(write(folder, population).resolve()))}
partition = "iid"
clients = {population}
validation = 0.0
[vocabulary]
corpus = {json.dumps(str((folder / "public.jsonl").resolve()))}
size = {WORDS}
[model]
embedding = 16
hidden = 16
dropout = 0.0
[cohort]
size = {cohort}
[train]
optimizer = "sgd"
lr = 0.1
[evaluation]
last = 10
"""
    )
    return path


def measured(measuring: Measuring) -> Part:
    rows = []
    for cohort, population in CELLS:
        out = measuring.folder / "run"
        config = configured(measuring.folder, cohort, population)
        words = ["-m", "lexfed.cli", "run", config, "--out", out, "--set"]
        rounds = ROUNDS if cohort < LARGE else 3
        shutil.rmtree(out, ignore_errors=True)
        timed = measuring.envs.run("lexfed", [*words, f"rounds={rounds}"])
        shutil.rmtree(out)
        looked_at = measuring.envs.run("lexfed", [*words, "rounds=2"], EVERY)
        wall, cpu, before = of_rounds(timed)
        rows.append(
            {"cohort": cohort, "population": population, "s_per_round": wall,
             "cpu_s_per_round": cpu, "before_s": before, "peak_pss_mb": looked_at.peak_pss_mb,
             "peak_anon_mb": looked_at.peak_anon_mb}
        )  # fmt: skip
        print(f"  {json.dumps(rows[-1])}", flush=True)
    return {"rows": rows}


def of_rounds(seen: Watched) -> tuple[float, float, float]:
    """Wall and CPU of the quickest round (the others met other work on the machine), and the
    seconds before the first was over.
    """
    ends: dict[str, Line] = {}
    for line in seen.lines:
        if found := ROUND.match(line.text):
            ends.setdefault(found[1], line)
    pairs = list(pairwise(ends.values()))
    wall = min(after.wall_s - before.wall_s for before, after in pairs)
    cpu = min(after.cpu_s - before.cpu_s for before, after in pairs)
    return wall, cpu, pairs[0][0].wall_s


# --- the page -------------------------------------------------------------------------------------


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What grew, in sentences."""
    by_cohort = sorted((r for r in rows if r["population"] == 100_000), key=lambda r: r["cohort"])
    by_people = sorted((r for r in rows if r["cohort"] == 100), key=lambda r: r["population"])
    small, large = by_cohort[0], by_cohort[-1]
    few, many = by_people[0], by_people[-1]
    told = []
    for key, name in (("s_per_round", "wall"), ("cpu_s_per_round", "CPU")):
        per_client = [1e3 * row[key] / row["cohort"] for row in by_cohort]
        slower = many[key] / few[key]
        told += [
            f"Milliseconds a client ({name}), by the cohort: "
            + ", ".join(f"{c:.2f}" for c in per_client)
            + f". {_linear(per_client)}",
            f"A population of {many['population']:,} beside one of {few['population']:,}: a round "
            f"takes {slower:.2f} times as long ({name}). {_flat(slower)}",
        ]
    for key, name in (("peak_pss_mb", "All memory"), ("peak_anon_mb", "Memory of its own")):
        for what, one, other in (("cohort", small, large), ("population", few, many)):
            grown = other[key] / one[key]
            each = (other[key] - one[key]) * (1 << 20) / (other[what] - one[what])
            told.append(
                f"{name}, {what} {other[what]:,} beside {one[what]:,}: {grown:.2f} times, "
                f"{each:,.0f} bytes more for each. {_flat(grown)}"
            )
    return told


def _flat(grown: float) -> str:
    return "Flat." if grown <= FLAT else "**Not flat.**"


def _linear(per_client: Sequence[float]) -> str:
    """The fixed part of a round is shared by more clients, so a client may only become cheaper."""
    return (
        "Linear." if per_client[-1] <= FLAT * statistics.median(per_client) else "**Not linear.**"
    )


def page(part: Part) -> str:
    rows = part["rows"]
    lines = [
        "# Time and memory of a round",
        "",
        "Written by `make bench` (`benchmarks/speed/scale_rounds.py`). `lexfed run`, FedAvg, a "
        f"small classifier, {TEXTS} short texts a client, in one process; the texts lie in an "
        "Arrow file that is mapped into memory. A round's time is the quickest of "
        f"{ROUNDS - 1} (with the largest cohort of 2), checkpoint and record included. Memory is "
        "the peak of the whole run, the building of the population included: all of it (PSS), and "
        "what is its own, without files that are mapped and that the system may drop. Start is "
        "from the start of the process to the end of the first round.",
        "",
        f"Machine: {part['measured']['machine']}; lexfed at {part['measured']['commit']}.",
        "",
        "| cohort | population | s per round | CPU s | start s | memory MB | its own MB |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['cohort']:,} | {row['population']:,} | {row['s_per_round']:.3f} | "
            f"{row['cpu_s_per_round']:.2f} | {row['before_s']:.1f} | {row['peak_pss_mb']:,.0f} | "
            f"{row['peak_anon_mb']:,.0f} |"
            for row in rows
        ),
        "",
        *(f"- {verdict}" for verdict in verdicts(rows)),
        "",
        "![time and memory by cohort and population](plots/scale-rounds.svg)",
    ]
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[Mapping[str, Any]]) -> pictures.Spec:
    curves = []
    for fixed, of in (("population", 100_000), ("cohort", 100)):
        free = "cohort" if fixed == "population" else "population"
        curves += [
            {"line": f"{free} ({fixed} {of:,})", "clients": row[free],
             "seconds": row["s_per_round"], "MB": row["peak_pss_mb"]}
            for row in sorted(rows, key=lambda row: row[free]) if row[fixed] == of
        ]  # fmt: skip
    return pictures.lines(
        "A round of `lexfed run`, by the cohort and by the population",
        curves,
        {"seconds per round": ("clients", "seconds", "line"),
         "peak memory, MB": ("clients", "MB", "line")},
    )  # fmt: skip
