"""Run every block of code of a page of the documentation, in order, as a reader would.

    python tools/run_blocks.py README.md docs/own-data.md    each in a new folder
    python tools/run_blocks.py --small README.md             quickly: the same commands, on small
                                                             experiments and files of texts,
                                                             without a new process for each
    python tools/run_blocks.py --list docs/*.md              what would run, and what would not

The folder has the files of the repository, and `lexfed` on the path. Blocks are of these kinds:

    bash       one script; it fails with its first command that does
    console    every line after `$ ` is a command, the others are what it prints
    python     goes on where the block before it ended; one that begins with `# name.py` is
               written to that file first, and run by itself
    toml       read by lexfed's own strict reader; one that begins with `# name.toml` is written
               to that file; the rest of a configuration is left at its defaults

Comments that a reader does not see say the rest:

    <!-- not run: on another machine -->     the next block is left out, for this reason
    <!-- setup: ... -->                      a bash script that is run here, for what follows
    <!-- where: /var/lib is var/lib -->      written so in what is run
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("bash", "console", "python", "toml")
PARTS = re.compile(
    r"<!-- (?P<word>not run|setup|where):\s+(?P<said>.*?)\s*-->"
    r"|^(?P<indent> *)```(?P<kind>[a-z]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
LEFT_OUT = {".git", ".venv", "runs", "site", ".notebooks"}
# what a quick experiment is made of where only its commands are tested, table by table
SMALL: Mapping[str, Mapping[str, Any]] = {
    "": {"rounds": 2},
    "data": {"limit": 600, "clients": 8},
    "evaluation": {"limit": 40, "every": 0},
    "word2vec": {"dimension": 8},
    "agreement": {"minimum": 5},
    "tokenizer": {"size": 400},
    "tokenizer_for_free": {"switch": [1], "sample_words": 1000},
    "language_model": {"width": 8},
    "audit": {"sentences": [2], "clients": 1, "candidates": 500},
}


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int  # of the page
    why_not: str = ""  # a reason not to run it


@dataclass(frozen=True)
class Page:
    path: Path
    blocks: tuple[Block, ...]
    where: Mapping[str, str]


def read(path: Path) -> Page:
    """A reason stands just before its block."""
    text = path.read_text()
    blocks, where, why_not = [], {}, ""
    for part in PARTS.finditer(text):
        line = text[: part.start()].count("\n") + 1
        if part["word"] == "not run":
            why_not = part["said"]
        elif part["word"] == "setup":
            blocks.append(Block("bash", part["said"], line))
        elif part["word"] == "where":
            here, _, there = part["said"].partition(" is ")
            where[here] = there
        elif part["kind"] in KINDS:
            body = re.sub(f"^{part['indent']}", "", part["text"], flags=re.M)
            blocks.append(Block(part["kind"], body, line, why_not))
            why_not = ""
    if why_not:
        raise SystemExit(f"{path}: no block follows 'not run: {why_not}'")
    return Page(path, tuple(blocks), where)


def furnish(folder: Path, small: bool) -> dict[str, str]:
    """The files of the repository, and an environment in which `lexfed` is this one."""
    for item in ROOT.iterdir():
        if item.name not in LEFT_OUT and not (small and item.name == "experiments"):
            (folder / item.name).symlink_to(item)
    if small:
        quick = folder / "experiments" / "quick"
        quick.mkdir(parents=True)
        for path in (ROOT / "experiments" / "quick").glob("*.toml"):
            (quick / path.name).write_text(shrunk(path.read_text()))
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in {"lexfed": "-m lexfed", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "activate").write_text("")
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }


def shrunk(text: str) -> str:
    """A configuration of the same kind that takes seconds; only keys that it has are changed."""
    import tomli_w

    config = tomllib.loads(text)
    for name, values in SMALL.items():
        table = config if not name else config.get(name, {})
        table.update({key: value for key, value in values.items() if key in table})
    if config.get("data", {}).get("partition") == "user":
        config["data"].update(clients=60, unseen=8)
    return tomli_w.dumps(config)


def run(page: Page, small: bool) -> Iterator[tuple[Block, float]]:
    """Run a page's blocks; yields each with the seconds it took, and ends with the first that
    fails.
    """
    with tempfile.TemporaryDirectory(prefix="lexfed-page-") as name:
        folder = Path(name)
        environment = furnish(folder, small)
        os.chdir(folder)
        os.environ.update(environment)
        sys.path.insert(0, str(folder))
        session: dict[str, Any] = {"__name__": "__main__"}
        for block in page.blocks:
            started = time.perf_counter()
            if not block.why_not:
                one(block, page, session, small)
            yield block, time.perf_counter() - started
        os.chdir(ROOT)


def one(block: Block, page: Page, session: dict[str, Any], small: bool) -> None:
    text = block.text
    for written, meant in page.where.items():
        text = text.replace(written, meant)
    named = re.match(r"# (\w+\.(?:py|toml))\n", text)
    if named:
        Path(named[1]).write_text(text)
    if block.kind == "bash":
        shell(text)
        if small:
            shorten(Path())
    elif block.kind == "console":
        for command in commands(text):
            (here if small and command.startswith(".venv/bin/lexfed ") else shell)(command)
    elif block.kind == "toml":
        configured(text)
    elif named:
        shell(f"python {named[1]}")
    else:
        exec(compile(text, f"{page.path}:{block.line}", "exec"), session)


def commands(text: str) -> list[str]:
    """Of a console: what stands after `$ `, with the lines that it goes on in."""
    return [found[1] for found in re.finditer(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", text, re.M)]


def shell(script: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BlockError(f"{script}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")


def here(command: str) -> None:
    """A lexfed command in this process: torch takes seconds to import."""
    from lexfed import cli

    sys.argv = ["lexfed", *shlex.split(command)[1:]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cli.main()
    except SystemExit as end:
        if end.code:
            raise BlockError(f"{command}\nexit code {end.code}\n{said.getvalue()}") from end


def shorten(folder: Path, lines: int = 200) -> None:
    """The tables of texts that a page has made."""
    for path in folder.glob("*.csv"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


class BlockError(Exception):
    pass


def configured(text: str) -> None:
    """A configuration of an experiment, or else of a site."""
    from lexfed.experiment import config, toml
    from lexfed.layers.self_audit import SelfAudit
    from lexfed.site.policy import Policy
    from lexfed.site.site_file import Door

    table = tomllib.loads(text)
    tables = {"door": Door, "policy": Policy, "self_audit": SelfAudit}
    if table.keys() <= tables.keys():  # a part of site.toml
        for name, keys in table.items():
            toml.read(tables[name], keys, f"{name}.")
    else:
        config.parse(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    for path in [path.resolve() for path in options.pages]:
        page, name = read(path), os.path.relpath(path, ROOT)
        if options.list:
            told: Iterator[tuple[Block, float]] = ((block, 0.0) for block in page.blocks)
        else:
            told = run(page, options.small)
        line = 0
        try:
            for block, seconds in told:
                line = block.line
                how = f"not run: {block.why_not}" if block.why_not else f"{seconds:.1f} s"
                print(f"{name}:{line} {block.kind} {how}", flush=True)
        except Exception as error:
            after = next((block.line for block in page.blocks if block.line > line), line)
            raise SystemExit(f"{name}:{after} failed: {error}") from error


if __name__ == "__main__":
    main()
