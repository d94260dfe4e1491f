"""A table of a paper: every row of CONFIG.rows.json with every seed, then means and spreads.

    python experiments/table.py experiments/fedevocab/table4-sst2.toml [--seeds 0 1 2] [--rows
    NAME ...] [--workers 2]

Runs go to runs/NAME/ROW-SEED; one that is finished is not run again, one that was killed is
resumed. One that other settings have made than the row's is refused, and never collected. The
figures are written beside the configuration, as CONFIG.results.json, and printed as a Markdown
table; runs that an earlier file tells of and that lie here no more are kept. Each run says who made
it: the configuration's fingerprint, the commit, torch, the processor and the command. A setting
`from=ROW/kept/000100` forks the run of that row with the same seed at a round that it kept; if that
run does not lie here, it is run first.
"""

import argparse
import glob
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lexfed.core.errors import LexfedError
from lexfed.experiment.config import FILES, as_table, differences, load
from lexfed.metrics.perplexity import TextScore, paired_difference
from lexfed.records.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
MADE_BY = "made-by.json"
Results = dict[str, list[dict[str, Any]]]  # row -> its runs, by seed
CURVES = ("global_accuracy", "local_accuracy", "heldout_loss", "word_perplexity", "scored_clients")

# what a table shows: of the key's runs, mean and spread over seeds
COLUMNS = {
    "global_accuracy": "global", "local_accuracy": "local", "local_majority_accuracy": "majority",
    "unseen_accuracy": "unseen", "macro_f1": "macro F1",
    "heldout_loss": "held-out loss", "centralised_heldout_loss": "all text in one place",
    "alone_heldout_loss": "best alone", "gain": "share of the gain, %", "better_off": "organisations better off",
    "wordsim353": "WordSim353", "centralised_wordsim353": "in one place", "vocabulary_size": "words",
    "simlex999": "SimLex-999", "centralised_simlex999": "SimLex-999 in one place",
    "analogies": "analogies", "centralised_analogies": "analogies in one place",
    "single_source_words": "of one alone",
    "word_perplexity": "perplexity per word", "worst_tenth_perplexity": "worst tenth of users",
    "word_accuracy": "word accuracy", "tokens_per_word": "tokens per word", "oov_rate": "unknown words",
    "unigram_kld": "KL divergence", "before_switch": "before the switch", "after_switch": "right after the switch",
}  # fmt: skip
PERCENT = (
    "global_accuracy",
    "local_accuracy",
    "local_majority_accuracy",
    "unseen_accuracy",
    "macro_f1",
    "gain",
    "word_accuracy",
    "oov_rate",
)


def run(
    config: Path, settings: Sequence[str], seed: int, out: Path, options: Sequence[str] = ()
) -> None:
    """One run, or the rest of one; `options` say where it runs, and change no result."""
    there = begun_already(out) or (out / "summary.json").exists()
    if there and (differs := stale(config, settings, seed, out)):
        raise SystemExit(f"{_made_otherwise(out, differs)}: move it away, or take it away")
    if (out / "summary.json").exists():
        return
    begun = started_with(settings, seed, out)
    note_maker(out, f"lexfed run {shlex.join([shown(config), *begun])}")
    print(out.name, flush=True)
    whole = not begun_already(out)
    command = [sys.executable, "-m", "lexfed.cli", "run", *arguments(config, begun, out), *options]
    before = os.times()
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if whole and in_one_process(options):
        note_spent(out, before)
    if code and not (out / "summary.json").exists():  # with one it diverged: a figure too
        raise SystemExit(code)


def arguments(config: Path, begun: Sequence[str], out: Path) -> list[str]:
    """To begin it, or to go on with what was killed."""
    if begun_already(out):
        return [str(out), "--resume"]
    return [str(config), "--out", str(out), *begun]


def begun_already(out: Path) -> bool:
    return (out / "config.toml").exists()


def run_row(
    config: Path,
    rows: Mapping[str, Sequence[str]],
    row: str,
    seed: int,
    folder: Path,
    options: Sequence[str] = (),
) -> Path:
    """And first the row that it is forked from, if its run does not lie here."""
    out = run_folder(folder, row, seed)
    base = forked_from(rows[row])
    if base and not begun_already(out):
        if base not in rows:
            raise SystemExit(f"'{row}' is forked from '{base}', which is not run here")
        run_row(config, rows, base, seed, folder, options)
    run(config, rows[row], seed, out, options)
    return out


def forked_from(settings: Iterable[str]) -> str:
    """A row; empty: it begins at the beginning."""
    forks = [one.removeprefix("from=") for one in settings if one.startswith("from=")]
    return forks[0].partition("/")[0] if forks else ""


def started_with(settings: Sequence[str], seed: int, out: Path) -> list[str]:
    options = [("--set", f"seed={seed}"), *(_option(setting, out, seed) for setting in settings)]
    return [word for option in options for word in option]


def _option(setting: str, out: Path, seed: int) -> tuple[str, str]:
    if not setting.startswith("from="):
        return "--set", setting
    row, _, rest = setting.removeprefix("from=").partition("/")
    return "--from", str(run_folder(out.parent, row, seed) / rest)


def run_folder(folder: Path, row: str, seed: int) -> Path:
    return folder / f"{row.replace(' ', '_')}-{seed}"


# --- is it the row's? -----------------------------------------------------------------------------


def stale(config: Path, settings: Sequence[str], seed: int, out: Path) -> str:
    """In which keys a run directory is another run than the row's; empty: in none."""
    plain = [one for one in settings if not one.startswith("from=")]
    try:
        wanted, there = load(config, [f"seed={seed}", *plain]), RunDir(out).config()
    except LexfedError as error:  # a key that is gone, a format of another time
        return str(error)
    left, right = as_table(wanted), as_table(there)
    differ = [key for key in differences(wanted, there) if not _same(left, right, key)]
    note = note_of(out)
    known = json.loads(note.read_text()).get("command") if note.is_file() else None
    if known and _source(shlex.split(known)) != _source(started_with(settings, seed, out)):
        differ.append("--from")
    return ", ".join(differ)


def _same(left: Mapping[str, Any], right: Mapping[str, Any], key: str) -> bool:
    """A run may have any name; and a file lies in another folder on another machine."""
    name, _, last = key.partition(".")
    if key not in FILES:
        return key == "name"
    return _file_names(left[name][last]) == _file_names(right[name][last])


def _file_names(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) else [_file_names(one) for one in value or ()]


def _source(words: Sequence[str]) -> tuple[str, ...]:
    """What is forked: the run and the round, wherever its folder lies."""
    return next((Path(b).parts[-3:] for a, b in pairwise(words) if a == "--from"), ())


def _made_otherwise(out: Path, differs: str) -> str:
    return f"{out} was run with other settings ({differs}) than its row has now"


# --- who made it --------------------------------------------------------------------------------


def note_of(out: Path) -> Path:
    """Beside the run directory: `lexfed run` wants to make that itself."""
    return out.with_name(f"{out.name}.{MADE_BY}")


def note_maker(out: Path, command: str) -> None:
    beside = note_of(out)
    known = next((json.loads(f.read_text()) for f in (out / MADE_BY, beside) if f.is_file()), None)
    here = commit_here()
    if known is None:
        note = {**here, **machine(), "command": command}
    elif known.get("commit") in (here["commit"], None):
        return
    else:
        note = {**known, "resumed": [*known.get("resumed", []), here["commit"]]}
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(json.dumps(note) + "\n")


def in_one_process(options: Sequence[str]) -> bool:
    """Workers' seconds are their own: of a run that has some, the clock is nearer the truth."""
    given = dict(pairwise(options))
    return given.get("--workers", "0") == "0" and "--ray" not in given


def note_spent(out: Path, before: os.times_result) -> None:
    """CPU seconds of a run from begin to end."""
    note(out, {"cpu_seconds": round(children_seconds(before), 1)})


def note(out: Path, more: Mapping[str, Any]) -> None:
    """Also this, of how a run was made."""
    beside = note_of(out)
    known = json.loads(beside.read_text()) if beside.is_file() else {}
    beside.write_text(json.dumps({**known, **more}) + "\n")


def children_seconds(before: os.times_result) -> float:
    now = os.times()
    return now.children_user + now.children_system - before.children_user - before.children_system


def commit_here() -> dict[str, Any]:
    """Which code runs: the commit, and whether it is as that commit has it."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "lexfed", "experiments/*.py")
        return {"commit": commit, "clean": not changed}
    except (OSError, subprocess.CalledProcessError):  # not a checkout
        return {"commit": None, "clean": None}


@cache
def in_history(commit: str) -> bool:
    """Whether anybody can look up what ran. (A branch that was never merged is gone with its
    commits.)
    """
    try:
        _git("merge-base", "--is-ancestor", commit, "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> dict[str, str]:
    """What the last bit of a figure hangs from, besides the code."""
    said = Path("/proc/cpuinfo")
    return {
        "torch": version("torch"),
        "cpu": processor(said.read_text() if said.is_file() else "") or platform.processor(),
    }


def processor(cpuinfo: str) -> str:
    """With its generation: machines that are lent out call processors of several by one name, and
    compiled loops add up in another order on each.
    """
    first = cpuinfo.partition("\n\n")[0]
    known = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", first, re.M))
    told = [known.get("model name", "")]
    told += [f"{key} {known[key]}" for key in ("cpu family", "model") if key in known]
    return ", ".join(one for one in told if one)


def made(run: Path) -> dict[str, Any]:
    """What is known of how a run was made; what was never written down is left out."""
    beside = note_of(run)
    notes = [json.loads(f.read_text()) for f in (run / MADE_BY, beside) if f.is_file()]
    known = {key: value for note in notes for key, value in note.items() if value is not None}
    return {"fingerprint": RunDir(run).fingerprint(), "model": model_hash(run)} | known


def model_hash(run: Path) -> str:
    """Of all numbers of the released model. Not of its file: safetensors leaves the order of its
    notes to chance.
    """
    digest = blake2b(digest_size=16)
    for path in sorted((run / "artifacts").glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                numbers = file.get_tensor(name).contiguous()
                digest.update(f"{path.name} {name} {numbers.dtype} {list(numbers.shape)}".encode())
                digest.update(numbers.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def shown(path: Path) -> str:
    """As seen from the repository: no machine's folders in a result."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


# --- what it found ------------------------------------------------------------------------------


def derived(summary: dict[str, Any]) -> dict[str, Any]:
    """Of word vectors: how much of what centralised training gains over none, and who gained by
    joining.
    """
    if isinstance(summary.get("after_switch"), dict):
        moments = ("before_switch", "after_switch")
        return {**summary, **{key: summary[key]["word_perplexity"] for key in moments}}
    loss, central = summary.get("heldout_loss"), summary.get("centralised_heldout_loss")
    if loss is None or central is None or "organisations" not in summary:
        return summary
    untrained, own = summary["untrained_heldout_loss"], summary["organisations"]
    own = [one for one in own if one["heldout_loss"] is not None]  # who said how it fares
    better = sum(one["heldout_loss"] < one["alone_heldout_loss"] for one in own)
    return {
        **summary,
        "gain": (untrained - loss) / (untrained - central),
        "better_off": f"{better} of {len(own)}",
    }


def cell(key: str, values: list[Any]) -> str:
    if not values:
        return "–"
    if isinstance(values[0], str):
        return ", ".join(dict.fromkeys(values))
    scale, digits = (
        (100, 1)
        if key in PERCENT
        else (1, 0 if isinstance(values[0], int) or values[0] > 100 else 3)
    )
    mean = f"{scale * statistics.mean(values):,.{digits}f}"
    return f"{mean} ± {scale * statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean


def table(figures: dict[str, list[dict[str, Any]]]) -> str:
    runs = [derived(run) for rows in figures.values() for run in rows]
    keys = [key for key in COLUMNS if any(run.get(key) is not None for run in runs)]
    if "heldout_loss" not in keys:
        keys = [key for key in keys if key != "vocabulary_size"]
    heads = ("row", "seeds", *(COLUMNS[key] for key in keys), "up per client and round", "seconds")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, rows in figures.items():
        if rows:
            values = {
                key: [run[key] for run in map(derived, rows) if run.get(key) is not None]
                for key in keys
            }
            sent = statistics.mean(run["bytes_up_per_client_round"] for run in rows)
            cells = [
                name,
                str(len(rows)),
                *(cell(key, values[key]) for key in keys),
                f"{sent / 1e6:.2f} MB",
            ]
            lines.append(
                "| "
                + " | ".join([*cells, f"{statistics.mean(run['seconds'] for run in rows):.0f}"])
                + " |"
            )
    return "\n".join(lines)


def figures_of(run: Path) -> dict[str, Any]:
    """The summary without what it does not know, the way there, and who made it."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    known = {key: value for key, value in summary.items() if value is not None}
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    return {**known, "curve": curve(records), "made": made(run)}


def curve(records: Sequence[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """At each round that was scored: the figure, and how much had been sent up by then."""
    found: dict[str, list[list[float]]] = {}
    sent = 0
    for record in records:
        sent += record["bytes_up"]
        scored = [key for key in CURVES if record["metrics"].get(key) is not None]
        for key in scored:
            point = [record["round"], float(f"{record['metrics'][key]:.6g}")]
            found.setdefault(key, []).append(point)
        if scored:
            found.setdefault("bytes_up", []).append([record["round"], sent])
    return found


def collected(
    folder: Path,
    config: Path,
    rows: Mapping[str, Sequence[str]],
    old: Results,
    only: Iterable[str] | None = None,
) -> Results:
    """What lies in the run directories (of all rows, or only these), over what an earlier result
    file knows. What is left out is named.
    """
    found, looked_at = {}, set(rows if only is None else only)
    for row, settings in rows.items():
        runs = {run["seed"]: run for run in old.get(row, [])}
        for seed, out in _finished(folder, row) if row in looked_at else ():
            if differs := stale(config, settings, seed, out):
                print(f"{_made_otherwise(out, differs)}: left out", file=sys.stderr)
            else:
                runs[seed] = figures_of(out)
        found[row] = [runs[seed] for seed in sorted(runs)]
    if gone := [repr(row) for row in old if row not in rows]:
        where = config.with_suffix(".rows.json").name
        print(f"no row of {where} any more, left out: {', '.join(gone)}", file=sys.stderr)
    return found


def _finished(folder: Path, row: str) -> list[tuple[int, Path]]:
    """The finished runs of a row that lie here, by seed."""
    start = row.replace(" ", "_") + "-"
    there = folder.glob(f"{glob.escape(start)}[0-9]*/summary.json")
    seeds = {path.parent.name.removeprefix(start): path.parent for path in there}
    return sorted((int(seed), out) for seed, out in seeds.items() if seed.isdigit())


def read_results(path: Path) -> Results:
    found: Results = json.loads(path.read_text()) if path.is_file() else {}
    return found


def write_results(path: Path, results: Results) -> None:
    """A run on a line: a new seed is a new line in the history."""
    rows = [
        f" {json.dumps(row)}: [" + "".join(f"\n  {json.dumps(run)}," for run in runs)[:-1] + "\n ]"
        for row, runs in results.items()
        if runs
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def of_users(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float, float] | None:
    """The difference of log perplexities over the same test users, and its standard error. None: an
    older run was scored on others.
    """
    if [words for _, words in mine["users"]] != [words for _, words in theirs["users"]]:
        return None
    scores = (
        [TextScore(nll, words, 0, 0, 0) for nll, words in run["users"]] for run in (mine, theirs)
    )
    return paired_difference(*scores)


def pairs(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Language models on the same test users: the ratio of two rows' perplexities, and its
    standard error over users.
    """
    rows = {
        name: {run["seed"]: run for run in runs if run.get("users")}
        for name, runs in figures.items()
    }
    lines = []
    for name, runs in rows.items():
        for other in [
            other for other in ("oracle", "wiki", "baseline") if rows.get(other) and other != name
        ]:
            for seed in sorted(runs.keys() & rows[other].keys()):
                if (pair := of_users(runs[seed], rows[other][seed])) is None:
                    continue
                difference, error = pair
                percent = 100 * (math.exp(difference) - 1)
                users = len(runs[seed]["users"])
                lines.append(
                    f"{name} against {other}, seed {seed}: {percent:+.2f} % ± {100 * error:.2f}, {users} users"
                )
    return "\n".join(lines)


def rows_of(config: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(config.with_suffix(".rows.json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--collect", action="store_true", help="run nothing, read what was run")
    options = parser.parse_args()
    rows, folder = rows_of(options.config), Path("runs") / options.config.stem
    file = options.config.with_suffix(".results.json")
    wanted = [row for row in rows if not options.rows or row in options.rows]
    # all rows of one seed first: a table that is cut short is still a table
    for seed, row in product([] if options.collect else options.seeds, wanted):
        where = ["--workers", str(options.workers)]
        run_row(options.config, rows, row, seed, folder, where)
    figures = collected(folder, options.config, rows, read_results(file))
    write_results(file, figures)
    print(table(figures))
    print(pairs(figures))


if __name__ == "__main__":
    main()
