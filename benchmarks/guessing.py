"""What a guess costs the server and an organisation that work together against an agreement in
which nobody is trusted, and what a word costs an organisation.

    python benchmarks/guessing.py

Both are one slow hash (scrypt, r = 8, p = 1, `agreement.memory` kilobytes) of a word under the
organisations' key. Beside it stands the keyed hash of an agreement that trusts the server. Results
are printed as Markdown and written to benchmarks/guessing.json.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

from lexfed.agreement.word_list import keyed
from lexfed.agreement.word_secrets import row, secret_of, tag_of
from lexfed.core.seeds import root

HERE = Path(__file__).parent
MEMORY = (16, 64, 256, 1024, 4096)
WORDS, DICTIONARY = 20_000, 100_000
KEY = root(0)


def per_second(work: Callable[[str], object], seconds: float = 3.0) -> float:
    """How often in a second of one core, the best of three."""
    best = 0.0
    for _ in range(3):
        start, done = time.process_time(), 0
        while time.process_time() - start < seconds:
            for i in range(20):
                work(f"word{done + i}")
            done += 20
        best = max(best, done / (time.process_time() - start))
    return best


def slow(memory: int) -> dict[str, float]:
    guesses = per_second(lambda word: tag_of(secret_of.__wrapped__(word, KEY, memory)))
    offered = per_second(lambda word: row(word, 8, secret_of.__wrapped__(word, KEY, memory), 2, 1))
    return {
        "memory": memory,
        "guesses_per_cpu_second": round(guesses, 1),
        "dictionary_cpu_seconds": round(DICTIONARY / guesses, 2),
        "words_cpu_seconds": round(WORDS / offered, 2),
    }


def main() -> None:
    quick = per_second(lambda word: keyed(word, KEY), 0.5)
    table = [slow(memory) for memory in MEMORY]
    print(f"| memory (KB) | guesses / CPU s | {DICTIONARY:,} guesses | {WORDS:,} own words |")
    print("|---|---|---|---|")
    print(f"| keyed hash | {quick:,.0f} | {DICTIONARY / quick:.2f} s | |")
    for one in table:
        print(
            f"| {one['memory']} | {one['guesses_per_cpu_second']:,.0f} | "
            f"{one['dictionary_cpu_seconds']:,.0f} s | {one['words_cpu_seconds']:,.0f} s |"
        )
    figures = {
        "keyed_hash": {
            "guesses_per_cpu_second": round(quick, 1),
            "dictionary_cpu_seconds": round(DICTIONARY / quick, 3),
        },
        "slow": table,
        "dictionary": DICTIONARY,
        "words": WORDS,
    }
    (HERE / "guessing.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
