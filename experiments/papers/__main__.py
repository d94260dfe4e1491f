"""The papers' tables and figures.

    python -m experiments.papers --scale quick               # minutes; embedded text
    python -m experiments.papers --scale machine --price     # what would it cost?
    python -m experiments.papers --only fedevocab-table4-sst2
    python -m experiments.papers --scale quick --check       # the same bits again?

Runs go to runs/, results beside their configurations (quick and paper: experiments/papers/SCALE).
Then `make results` writes RESULTS.md.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from experiments.papers.catalogue import SCALES, CatalogueError, load
from experiments.papers.check import check
from experiments.papers.driver import Job, bill, forget, jobs, run, trial


def options_of(options: argparse.Namespace) -> list[str]:
    """Where it runs: passed on to `lexfed run`, and without a say in the result."""
    words = ["--workers", str(options.workers)]
    words += ["--device", options.device] if options.device else []
    return words + (["--ray", options.ray] if options.ray else [])


def checked(found: list[Job], where: list[str]) -> int:
    kept = [job for job in found if job.done and not job.runs.command]
    with tempfile.TemporaryDirectory() as folder:
        answers = [check(job, where, Path(folder)) for job in kept]
    print("\n".join(said for _, said in answers) or "nothing of this was committed")
    return 0 if kept and all(good for good, _ in answers) else 1


def chosen_again(options: argparse.Namespace) -> Callable[[Job], bool]:
    """What is run although it is done."""
    return lambda job: options.again or (options.unrecorded and not job.recorded)


def everything(
    found: list[Job],
    do: Callable[[Job, list[str]], None],
    where: list[str],
    again: Callable[[Job], bool],
) -> int:
    """One that fails (a data set that is not here) says why, and the others go on."""
    failed = []
    for job in found:
        if job.done and not again(job):
            print(f"done: {job.name}")
            continue
        try:
            if again(job) and do is run:  # a trial leaves no result: what there is stays
                forget(job)
            do(job, where)
        except (SystemExit, subprocess.CalledProcessError) as fault:
            if isinstance(fault, SystemExit) and isinstance(fault.code, str):
                print(fault.code, file=sys.stderr)
            failed.append(job.name)
    if failed:
        print("failed: " + "; ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", choices=SCALES, default="machine")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="entries, or runs")
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="of those, these rows")
    parser.add_argument("--price", action="store_true", help="say what it would cost, run nothing")
    parser.add_argument("--check", action="store_true", help="run again what was committed")
    parser.add_argument("--try", dest="trial", action="store_true", help="three rounds of each row")
    parser.add_argument(
        "--again", action="store_true", help="also what is done, from the beginning"
    )
    parser.add_argument(
        "--unrecorded",
        action="store_true",
        help="also what no commit of this history is recorded of",
    )
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--ray", metavar="ADDRESS")
    options = parser.parse_args()
    where = options_of(options)
    try:
        found = jobs(load(), options.scale, options.only)
    except CatalogueError as error:
        print(f"papers: {error}", file=sys.stderr)
        return 2
    found = [job for job in found if not options.rows or job.row in options.rows]
    if options.price:
        print(bill(found))
        return 0
    if options.check:
        return checked(found, where)
    return everything(found, trial if options.trial else run, where, chosen_again(options))


if __name__ == "__main__":
    raise SystemExit(main())
