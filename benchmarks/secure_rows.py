"""Word vectors under secure sums beside the plain sparse path: bytes, loss, seconds.

    python benchmarks/secure_rows.py [CONFIG]      writes benchmarks/secure_rows.json and .md

Each row is a run of `experiments/quick/agreed.toml` (or another configuration) with one setting
changed. Which rows an organisation moved are its words: so under secure sums everybody sends the
same rows.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lexfed

HERE = Path(__file__).parent
NOBODY, MASKS = {"agreement.trust": "nobody"}, {"secure.sums": True}
RUNS: dict[str, dict[str, Any]] = {
    "plain: touched rows, int8": NOBODY,
    "plain: touched rows, fp32": {**NOBODY, "word2vec.upload": "fp32"},
    "secure: all rows": {**MASKS, "word2vec.upload": "fp32"},
    "secure: rows that two moved": {**MASKS, "word2vec.upload": "fp32", "secure.rows": "held"},
    "secure: a block of 2,000 rows": {**MASKS, "word2vec.upload": "fp32", "secure.rows": "block"},
}
KEYS = ("vocabulary_size", "heldout_loss", "alone_heldout_loss", "centralised_heldout_loss")


def main(config: Path) -> None:
    rows = []
    for name, settings in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            started, cpu = time.perf_counter(), time.process_time()
            run = lexfed.run(config, settings=settings, out=Path(folder) / "run", quiet=True)
            spent = time.perf_counter() - started, time.process_time() - cpu
            records = run.directory.records()
            per_round = [r["bytes_up"] / r["clients"] for r in records if r["clients"]]
            rows.append(
                {
                    "sum": name,
                    **{key: run.summary[key] for key in KEYS},
                    "up_per_client_and_round": sum(per_round) / len(per_round),
                    "seconds": spent[0],
                    "cpu_seconds": spent[1],
                }
            )
        print(json.dumps(rows[-1]), flush=True)
    (HERE / "secure_rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "secure_rows.md").write_text(table(rows, config))


def table(rows: list[dict[str, Any]], config: Path) -> str:
    first = rows[0]
    lines = [
        "# Word vectors under secure sums",
        "",
        f"`{config.name}`, {first['vocabulary_size']:,} words; held-out loss of the best alone "
        f"{first['alone_heldout_loss']:.3f}, of all text in one place "
        f"{first['centralised_heldout_loss']:.3f}.",
        "`python benchmarks/secure_rows.py` makes this table.",
        "",
        "| sum | held-out loss | up, per client and round | CPU s |",
        "|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['sum']} | {row['heldout_loss']:.3f} "
            f"| {row['up_per_client_and_round'] / 1e6:.2f} MB | {row['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    here = HERE.parent / "experiments/quick/agreed.toml"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
