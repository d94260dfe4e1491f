"""Organisations that stuff a word list: how many invented words does each rule of an agreement let
in?

    python experiments/audit/stuffing.py [--seeds 0 1]

Ten organisations share out Rotten Tomatoes evenly; some of them propose the same 1,000 invented
words and say that all
their words occur ten times as often. `lost` and `lifted` are real words that a lie pushed out of
the list, or over the
limit of occurrences. The figures go into stuffing.results.json beside this file, and are printed as
a Markdown table.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lexfed.core.seeds import derive, root
from lexfed.corpus import population
from lexfed.experiment.config import Config, parse
from lexfed.layers.malice import invented
from lexfed.runs import agreement_alone as agreeing

WORDS = 1000
RULES: dict[str, dict[str, Any]] = {
    "union": {"rule": "union", "minimum": 3},
    "intersection": {"rule": "intersection", "minimum": 3},
    "summed, 2 holders": {"minimum": 10},
    "summed, 3 holders": {"minimum": 10, "holders": 3},
    "summed, 2 holders, 2,000 words at most": {"minimum": 10, "size": 2000},
}
LIARS = (0, 1, 2)
FIGURES = ("words", "invented", "lost", "lifted")


def config(rule: str, liars: int, seed: int) -> Config:
    data = {"name": "rotten_tomatoes", "clients": 10, "partition": "iid"}
    malice = {"clients": liars, "kind": "stuff_vocabulary", "words": WORDS}
    return parse(
        {
            "seed": seed,
            "method": "federated_word2vec",
            "data": data,
            "malice": malice,
            "agreement": RULES[rule],
        }
    )


def agreed(rule: str, liars: int, seed: int) -> set[str]:
    return set(agreeing.run(config(rule, liars, seed)).vocabulary.tokens)


def rows(rule: str, seed: int) -> Iterator[dict[str, Any]]:
    people = population.build(config(rule, 0, seed).data, derive(root(seed), "data"))
    lies = set(invented(WORDS, people.client(0).common_secret))
    honest = agreed(rule, 0, seed)
    for liars in LIARS:
        got = agreed(rule, liars, seed) if liars else honest
        figures = (len(got), len(got & lies), len(honest - got), len(got - honest - lies))
        yield {
            "rule": rule,
            "liars": liars,
            "seed": seed,
            **dict(zip(FIGURES, figures, strict=True)),
        }


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| rule | liars of 10 | words | invented | real words lost | real words lifted |",
        "|---|---|---|---|---|---|",
    ]
    for rule, liars in dict.fromkeys((row["rule"], row["liars"]) for row in found):
        own = [row for row in found if (row["rule"], row["liars"]) == (rule, liars)]
        means = (f"{statistics.mean(row[key] for row in own):,.0f}" for key in FIGURES)
        lines.append(f"| {rule} | {liars} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    seeds = parser.parse_args().seeds
    found = [row for rule in RULES for seed in seeds for row in rows(rule, seed)]
    Path(__file__).with_suffix(".results.json").write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
