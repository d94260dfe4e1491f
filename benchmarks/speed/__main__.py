"""How fast is lexfed beside its peers, on identical work?

    python benchmarks/speed [--repeats 3] [--only classifier start-up ...] [--fresh]

lexfed, pfl-research, Flower's simulation and bare loops of torch train the same models on the same
batches, in turn, so that all meet the same machine. First it is checked that they agree: one round
without noise, from the same weights, ends in the same weights to 1e-5. Peers live in environments
of their own, which are made here. Results: benchmarks/RESULTS.md, benchmarks/speed.json, plots.

What was interrupted goes on: parts that are finished are kept until all that were asked for are.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import parts
import pictures
import results_page
import scale_rounds
import work as shared
from parts import Measuring, Part
from peers import ROOT, Environments
from watching import CommandError

PARTS: dict[str, Callable[[Measuring], Part]] = {
    "start-up": parts.start_up,
    **{name: partial(parts.language, name) for name in shared.WORKS},
    "classifier": parts.classifier,
    "scale": scale_rounds.measured,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="default: as each work has it; the first warms")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what was interrupted")
    parser.add_argument("--envs", type=Path, default=ROOT / ".bench", help="of the peers")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks")
    options = parser.parse_args()
    if options.repeats < 1 or (options.rounds is not None and options.rounds < 2):
        parser.error("at least one repeat, and two rounds: the first does not count")
    options.envs.mkdir(parents=True, exist_ok=True)
    try:
        run(options)
    except CommandError as error:
        sys.exit(str(error))


def run(options: argparse.Namespace) -> None:
    progress = options.envs / "progress.json"
    same = {"commit": commit(), "repeats": options.repeats, "rounds": options.rounds}
    kept = {} if options.fresh else unfinished(progress, same)
    found = stored(options.out / "speed.json")
    with tempfile.TemporaryDirectory() as folder:
        envs = Environments(options.envs, Path(folder))
        for name in options.only:
            if name in kept:
                print(f"{name}: kept from what was interrupted", flush=True)
            else:
                print(f"{name}:", flush=True)
                measuring = Measuring(envs, Path(folder) / name, options.repeats, options.rounds)
                kept[name] = {"measured": about(envs, name), **PARTS[name](measuring)}
                progress.write_text(json.dumps({**same, "parts": kept}))
            found[name] = kept[name]
        ordered = {name: found[name] for name in PARTS if name in found}
        written(ordered, options.out, envs)
    progress.unlink(missing_ok=True)
    print(results_page.page(ordered))


def unfinished(progress: Path, same: dict[str, object]) -> dict[str, Part]:
    """The parts that an interrupted call with the same options, of the same code, has finished."""
    if not progress.exists():
        return {}
    before = json.loads(progress.read_text())
    return dict(before.pop("parts")) if {k: before.get(k) for k in same} == same else {}


def stored(path: Path) -> dict[str, Part]:
    """What was measured before; a file of another form is from an earlier benchmark."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return {name: part for name, part in found.items() if name in PARTS and "measured" in part}


def commit() -> str:
    """Short, and whether something stands beside it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()
    return found or "an unknown commit"


PEERS_OF = {"classifier": ("lexfed", "flower"), **dict.fromkeys(shared.WORKS, ("lexfed", "pfl"))}


def about(envs: Environments, part: str) -> Part:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    peers = PEERS_OF.get(part, ("lexfed",))
    return {
        "when": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine,
        "versions": {peer: envs.versions(peer) for peer in peers},
    }


def written(found: dict[str, Part], out: Path, envs: Environments) -> None:
    (out / "speed.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "RESULTS.md").write_text(results_page.page(found))
    drawn = pictures.bars(found)
    if "scale" in found:
        rows = found["scale"]["rows"]
        (out / "scale_rounds.json").write_text(json.dumps(rows, indent=1) + "\n")
        (out / "scale_rounds.md").write_text(scale_rounds.page(found["scale"]))
        drawn["scale-rounds"] = scale_rounds.picture(rows)
    specifications = envs.scratch / "pictures.json"
    specifications.write_text(json.dumps(drawn))
    (out / "plots").mkdir(exist_ok=True)
    envs.run("plots", [Path(__file__).parent / "draw.py", specifications, out / "plots"])


if __name__ == "__main__":
    main()
