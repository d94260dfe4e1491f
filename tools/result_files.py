"""Committed result files, and Markdown tables."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"


def results(name: str) -> Any:
    """experiments/NAME.json, or from the repository's folder."""
    path = EXPERIMENTS / f"{name}.json"
    return json.loads((path if path.is_file() else ROOT / f"{name}.json").read_text())


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
