"""Where the time of the three papers' methods goes, as text: benchmarks/profiles/*.txt.

    LEXFED_DATA=... python benchmarks/profiles.py

The quick experiments, in one process, under Python's own profiler, which makes small functions
look dearer than they are. benchmarks/profiles/README.md says what was found.
"""

import cProfile
import io
import pstats
import re
import tempfile
from pathlib import Path

import lexfed

HERE = Path(__file__).parent
QUICK = HERE.parent / "experiments" / "quick"
METHODS = {
    "fedevocab": "private.toml",
    "federated_word2vec": "agreed.toml",
    "tokenizer_for_free": "learned.toml",
}
SHOWN = 30


def main() -> None:
    (HERE / "profiles").mkdir(exist_ok=True)
    for name, file in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            profile = cProfile.Profile()
            profile.enable()
            lexfed.run(QUICK / file, out=out, quiet=True)
            profile.disable()
        (HERE / "profiles" / f"{name}.txt").write_text(text(profile))
        print(f"benchmarks/profiles/{name}.txt")


def text(profile: cProfile.Profile) -> str:
    """By the time within each function, then by the time below each of lexfed's own."""
    page = io.StringIO()
    stats = pstats.Stats(profile, stream=page)
    stats.sort_stats("tottime").print_stats(SHOWN)
    stats.sort_stats("cumtime").print_stats("lexfed/", SHOWN)
    # where lexfed, Python and its packages lie is this machine's business
    return re.sub(r"\S*/(lexfed/|site-packages/|lib/python3\.\d+/)", r"\1", page.getvalue())


if __name__ == "__main__":
    main()
