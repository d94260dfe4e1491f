"""FedeVocab's Table 1 of the data sets as we have them: how many texts, how many labels.

LEXFED_DATA=DIR python experiments/papers/data_sizes.py
"""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq

NAMES = ("20news", "ag_news", "sst2")


def sizes(name: str) -> dict[str, int]:
    rows = pq.read_table(
        Path(os.environ["LEXFED_DATA"]) / f"{name}.parquet", columns=["split", "label"]
    )
    splits = rows["split"].to_pylist()
    labels = set(rows["label"].to_pylist())
    return {"train": splits.count("train"), "test": splits.count("test"), "labels": len(labels)}


def main() -> None:
    found = {name: sizes(name) for name in NAMES}
    Path(__file__).with_suffix(".results.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
