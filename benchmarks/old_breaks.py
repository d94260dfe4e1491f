"""What attackers got from lexfed 79332b5, and what they get now.

    python benchmarks/old_breaks.py

Checks that commit out into a worktree of its own (which is taken away again), plays every break of
`breaks_of_79332b5.py` there, runs the tests that play the same attacks today, and writes both into
`old_breaks.md`. It exits with 1 if a promise was kept then, or a test fails now.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "79332b5"
PLAYS = ROOT / "benchmarks" / f"breaks_of_{COMMIT}.py"
TABLE = ROOT / "benchmarks" / "old_breaks.md"

# What can't be repaired by code is said: the break, and where docs/threat-model.md says so.
SAID = {
    "a restored backup rolls the ledger back": "who restores an old copy of a whole run directory",
    "cohort sizes of each round are written down exactly": "they count who took part exactly",
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lexfed-old-") as folder:
        with checked_out(COMMIT, Path(folder) / "then") as checkout:
            plays = played(checkout, Path(folder))
        tests = list(dict.fromkeys(test for play in plays for test in play["now"]))
        missing = sorted(set(tests) - collected(tests))
        if missing:
            raise SystemExit("there is no such test: " + ", ".join(missing))
        results = tested(tests, Path(folder) / "tests.txt")
    page = written(plays, results)
    TABLE.write_text(page)
    print(page)
    wrong = [play["promise"] for play in plays if play["kept"] is not False]
    wrong += [test for test in tests if results.get(test) != "passed"]
    wrong += [f"docs/threat-model.md does not say: {words}" for words in unsaid()]
    if wrong:
        raise SystemExit("not as it should be:\n" + "\n".join(wrong))


# --- then -----------------------------------------------------------------------------------------


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    done = git("worktree", "add", "--detach", str(folder), commit)
    if done.returncode:
        raise SystemExit(f"{commit} can't be checked out (a shallow clone?): {done.stderr.strip()}")
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def git(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def played(checkout: Path, folder: Path) -> list[dict[str, Any]]:
    """With that code, and with numba's bounds checks: a loop that leaves its arrays raises."""
    more = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder / "numba")}
    out = folder / "plays.jsonl"
    done = python([str(PLAYS), str(out)], checkout, folder, more)
    if done.returncode:
        raise SystemExit(f"the plays did not end:\n{done.stdout}{done.stderr}")
    plays = [json.loads(line) for line in out.read_text().splitlines()]
    failed = [f"{play['promise']}:\n{play['got']}" for play in plays if play["kept"] is None]
    if failed:
        raise SystemExit("plays that can't be played:\n" + "\n".join(failed))
    return plays


def python(
    words: Sequence[str], code: Path, where: Path, more: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(code), **(more or {})}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)


# --- now ------------------------------------------------------------------------------------------

PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]


def collected(tests: Iterable[str]) -> set[str]:
    """All tests of the files that these are in, and their names without parameters."""
    files = sorted({test.partition("::")[0] for test in tests})
    done = python([*PYTEST, "--collect-only", *files], ROOT, ROOT)
    names = {line for line in done.stdout.splitlines() if "::" in line}
    return names | {name.partition("[")[0] for name in names}


def tested(tests: Sequence[str], log: Path) -> dict[str, str]:
    """How each ended; one that has parameters passed if it did with all of them."""
    done = python([*PYTEST, "-rpfEsxX", *tests], ROOT, ROOT)
    log.write_text(done.stdout)
    ends: dict[str, str] = {}
    for word, name in re.findall(
        r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (tests/.+?)(?: - .*)?$", done.stdout, re.M
    ):
        for test in {name, name.partition("[")[0]}:
            ends[test] = word.lower() if ends.get(test, "passed") == "passed" else ends[test]
    if any(end != "passed" for end in ends.values()) or not ends:
        print(done.stdout, file=sys.stderr)
    return ends


# --- the table ------------------------------------------------------------------------------------


def written(plays: Sequence[Mapping[str, Any]], results: Mapping[str, str]) -> str:
    rows = "".join(row(play, results) for play in plays)
    still = "".join(f'- {what}: "{words} ..."\n' for what, words in SAID.items())
    return (
        f"# What attackers got from {COMMIT}, and what they get now\n\n"
        "Made by `python benchmarks/old_breaks.py`, which plays each attack on that commit and\n"
        "runs the test that plays it today. Points are those of the review that found them.\n\n"
        f"| point | promise | what was got at {COMMIT} | test now | result |\n"
        "|---|---|---|---|---|\n"
        f"{rows}\nWhat no code repairs is said in the threat model:\n\n{still}"
    )


def row(play: Mapping[str, Any], results: Mapping[str, str]) -> str:
    got = "**kept**" if play["kept"] else play["got"].replace("|", "\\|")
    tests = "<br>".join(f"`{test}`" for test in play["now"])
    ends = {results.get(test, "did not run") for test in play["now"]}
    return (
        f"| {play['point']} | {play['promise']} | {got} | {tests} | {', '.join(sorted(ends))} |\n"
    )


def unsaid() -> list[str]:
    model = " ".join((ROOT / "docs/threat-model.md").read_text().split())
    return [words for words in SAID.values() if words not in model]


if __name__ == "__main__":
    main()
