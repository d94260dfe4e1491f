"""Do two checkouts of lexfed give the same results, bit for bit?

    python benchmarks/same_bits.py hashes CHECKOUT OUT.json [--only NAME ...] [--all]
    python benchmarks/same_bits.py compare ONE.json OTHER.json

`hashes` runs the quick experiments with the code of a checkout and writes the SHA-256 of what each
run leaves behind: its artefacts, its records and its summary (seconds aside), its clients' stores,
and the quick audit's rows. One experiment is killed twice and resumed, one has two workers. `--all`
adds a small run of each method, defence and attack. `compare` prints a line per file, and exits
with 1 if any differs.

What a file holds is compared, not how its header is ordered; numbers of formats are left out.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

# what may differ between two equal runs
TIMES = {"seconds", "evaluation_seconds", "format", "device"}

SMALL = (
    "rounds=3",
    "data.limit=1200",
    "evaluation.limit=200",
    "local_only.epochs=1",
    "centralised.epochs=1",
)
NOISY = ("privacy.clip=1.0", "privacy.noise=0.5")
LITTLE = (
    "rounds=4",
    "data.clients=300",
    "data.unseen=20",
    "tokenizer_for_free.switch=[2]",
    "language_model.width=32",
    "tokenizer_for_free.sample_words=3000",
    "tokenizer.size=600",
)
FEW = (
    "audit.sentences=[4]",
    "audit.clients=2",
    "audit.others=100",
    "audit.candidates=2000",
    'audit.defences=["none"]',
)
METHODS = ("fedavg", "fedavg_finetune", "fedprox", "lg_fedavg", "fedrecon", "fedevocab")
WIRE = ("--record-wire", "{wire}")
TWO = ("--workers", "2")

# name: command, configuration, settings, options, kills
Case = tuple[str, str, Sequence[str], Sequence[str], int]
QUICK: dict[str, Case] = {
    "fedavg": ("run", "fedavg", (), (), 0),
    "private": ("run", "private", (), (), 0),
    "agreed": ("run", "agreed", (), (), 0),
    "learned": ("run", "learned", (), (), 0),
    "private-killed-twice": ("run", "private", (), (), 2),
    "fedavg-two-workers": ("run", "fedavg", (), TWO, 0),
    "audit": ("audit", "audit", (), (), 0),
}
MORE: dict[str, Case] = {
    **{
        f"method-{method}": ("run", "private", (f"method={method}", *SMALL), WIRE, 0)
        for method in METHODS
    },
    # these count epochs, and refuse to be told rounds
    **{
        f"method-{method}": ("run", "private", (f"method={method}", *SMALL[1:]), WIRE, 0)
        for method in ("local_only", "centralised")
    },
    "defended": (
        "run", "private",
        (*SMALL, "vocabulary.vectors=hashed:32", "fedevocab.vocabulary=own+public",
         "defences.rotation=shared", "defences.normalise=true", "defences.minimum_words=600",
         "defences.embedding_dropout=0.1", "self_audit.limit=0.9", "data.unseen=2"),
        TWO, 0,
    ),
    "first-layer": (
        "run", "private",
        (*SMALL, "defences.private_layers=first", "self_audit.limit=0.5"),
        (), 0,
    ),
    "mishaps": (
        "run", "private",
        (*SMALL, "cohort.dropout=0.2", "cohort.lost=0.2", "cohort.stale=0.2", "rounds=5",
         "train.upload=int8", "keep=[2]", "server.average=0.5"),
        (), 1,
    ),
    "robust": (
        "run", "private",
        (*SMALL, "method=fedavg", "aggregation.rule=median", "malice.clients=4",
         "malice.kind=flip_labels"),
        (), 0,
    ),
    "central-noise": (
        "run", "private",
        (*SMALL, *NOISY, "method=fedavg", "privacy.placement=central", "privacy.noise=0.3",
         "privacy.quantile=0.5", "cohort.sampling=poisson"),
        (), 0,
    ),
    "local-noise": (
        "run", "private",
        (*SMALL, *NOISY, "method=fedevocab", "privacy.placement=local"),
        (), 0,
    ),
    "minilm": (
        "run", "private",
        (*SMALL, "model.name=minilm", "data.limit=300", "train.max_length=16", "rounds=1",
         "evaluation.limit=60"),
        (), 0,
    ),
    "word2vec-dp": (
        "run", "agreed",
        ("rounds=3", "data.limit=3000", "agreement.rule=dp", "word2vec.dimension=20"),
        (*TWO, *WIRE), 0,
    ),
    "word2vec-killed": (
        "run", "agreed",
        ("rounds=4", "data.limit=3000", "word2vec.dimension=20", "malice.clients=1",
         "malice.kind=stuff_vocabulary", "cohort.sampling=fixed", "cohort.size=4"),
        (), 1,
    ),
    "learned-small": ("run", "learned", LITTLE, (*WIRE, *TWO), 1),
    "learned-sketch": (
        "run", "learned",
        (*LITTLE, "tokenizer.start=heavy_hitters", "tokenizer.kind=word"),
        (), 0,
    ),
    "learned-from-scratch": (
        "run", "learned",
        (*LITTLE, "tokenizer_for_free.protocol=from_scratch"),
        (), 0,
    ),
    "learned-transformer": (
        "run", "learned",
        (*LITTLE, "language_model.name=transformer"),
        (), 0,
    ),
    "audit-inversion": (
        "audit", "audit",
        (*FEW, "audit.inversion_steps=5"),
        ("--attack", "inversion"), 0,
    ),
    "audit-canaries": ("audit", "audit", (*FEW, "audit.canaries=2"), (), 0),
    "audit-membership": (
        "audit", "audit",
        (*FEW, "method=fedavg", "rounds=2", "audit.shadows=4", "data.limit=600",
         "audit.methods=[]"),
        ("--attack", "membership"), 0,
    ),
    "audit-agreed": ("audit", "agreed", ("data.limit=2000", "audit.clients=3"), (), 0),
    "audit-learned": ("audit", "learned", (*LITTLE, "audit.clients=3"), (), 0),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    hashing = commands.add_parser("hashes")
    hashing.add_argument("checkout", type=Path)
    hashing.add_argument("out", type=Path)
    hashing.add_argument("--only", nargs="*", default=[])
    hashing.add_argument("--all", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    words = parser.parse_args()
    if words.command == "hashes":
        hashes(words.checkout.resolve(), words.out, words.only, words.all)
    else:
        sys.exit(compare(json.loads(words.one.read_text()), json.loads(words.other.read_text())))


def hashes(checkout: Path, out: Path, only: Sequence[str], everything: bool) -> None:
    cases = {**QUICK, **(MORE if everything else {})}
    chosen = {name: {**QUICK, **MORE}[name] for name in only} or cases
    found: dict[str, dict[str, str]] = json.loads(out.read_text()) if out.exists() else {}
    for name, case in chosen.items():
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lexfed-same-") as folder:
            _run(checkout, Path(folder), case)
            found[name] = dict(_of_folder(Path(folder) / "run"))
            found[name] |= {
                f"wire/{key}": value for key, value in _of_folder(Path(folder) / "wire")
            }
        print(f"{name}: {len(found[name])} files, {time.monotonic() - started:.0f} s", flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n")


def compare(one: dict[str, dict[str, str]], other: dict[str, dict[str, str]]) -> int:
    wrong = 0
    for name in [name for name in one if name in other]:
        files = sorted({**one[name], **other[name]})
        differing = [file for file in files if one[name].get(file) != other[name].get(file)]
        digest = hashlib.sha256(json.dumps(one[name], sort_keys=True).encode()).hexdigest()[:16]
        print(
            f"{name}: {len(files)} files, {len(differing)} differ"
            + ("" if differing else f"  ({digest})")
        )
        for file in differing:
            which = "in both" if file in one[name] and file in other[name] else "in one alone"
            print(f"    {file} ({which})")
        wrong += bool(differing)
    for name in sorted(one.keys() ^ other.keys()):
        print(f"{name}: only one of the two has it")
    return int(wrong > 0)


# --- running --------------------------------------------------------------------------------------


def _run(checkout: Path, folder: Path, case: Case) -> None:
    command, config, settings, options, kills = case
    words = [
        command,
        str(checkout / "experiments" / "quick" / f"{config}.toml"),
        "--out",
        str(folder / "run"),
    ]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [option.format(wire=folder / "wire") for option in options]
    lines = 1
    for _ in range(kills):
        _killed(checkout, folder, words, lines)
        lines += 1
        words = [
            "run",
            str(folder / "run"),
            "--resume",
            *(option.format(wire=folder / "wire") for option in options),
        ]
    _finish(_started(checkout, folder, words), words)


def _started(checkout: Path, folder: Path, words: Sequence[str]) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    program = "from lexfed.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _killed(checkout: Path, folder: Path, words: Sequence[str], lines: int) -> None:
    """Start, and kill in the round after this many lines were recorded."""
    process, records = _started(checkout, folder, words), folder / "run" / "rounds.jsonl"
    while process.poll() is None:
        if records.exists() and records.read_text().count("\n") >= lines:
            time.sleep(0.1)
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    process.communicate()


def _finish(process: "subprocess.Popen[str]", words: Sequence[str]) -> None:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"lexfed {' '.join(words)}\n{output}")


# --- hashing --------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> Iterator[tuple[str, str]]:
    # what is read by people, is configuration, or says when and by whom it was written
    skipped = {
        "report.html",
        "config.toml",
        "audit.html",
        "lock",
        "workers.lock",
        "state.json",
        "format.json",
    }
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in skipped:
            name = str(path.relative_to(folder))
            yield "checkpoint/state" if path.name.startswith("state-") else name, _of_file(path)


def _of_file(path: Path) -> str:
    readers: dict[str, Callable[[Path], Any]] = {
        ".json": _json,
        ".jsonl": _lines,
        ".safetensors": _arrays,
    }
    reader = readers.get(path.suffix)
    data = (
        path.read_bytes() if reader is None else json.dumps(reader(path), sort_keys=True).encode()
    )
    return hashlib.sha256(data).hexdigest()


def _json(path: Path) -> Any:
    return _timeless(json.loads(path.read_text()))


def _lines(path: Path) -> Any:
    return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(entry) for key, entry in value.items() if key not in TIMES}
    return [_timeless(entry) for entry in value] if isinstance(value, list) else value


def _arrays(path: Path) -> Any:
    with safe_open(path, "pt") as file:
        meta = file.metadata() or {}
        entries = {}
        for name in file.keys():  # noqa: SIM118
            value = file.get_tensor(name)
            data = (
                value.contiguous().view(-1).view(dtype=__import__("torch").uint8).numpy().tobytes()
            )
            entries[name] = [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()]
    return {
        "meta": {key: value for key, value in meta.items() if key != "format"},
        "arrays": entries,
    }


if __name__ == "__main__":
    main()
