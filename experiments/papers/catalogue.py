"""The catalogue: every table and figure of the three papers, and the runs that stand for them.

*Runs* are a configuration and its rows, at three scales: quick (minutes, embedded text), machine
(what our results are made of; the configuration as it stands) and paper (the paper's own sizes). A
scale is a list of settings over the configuration. An *entry* is a table or figure of a paper: what
it reports, which runs stand for it, and which claims they test. Several entries may share runs.

Whether something has been run is never written down: its results are there, or they are not.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from experiments import table
from experiments.papers.verdicts import Claim, Comparison

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
SCALES = ("quick", "machine", "paper")
PAPERS = ("fedevocab", "word2vec", "tokenizer")


class CatalogueError(Exception):
    """A sentence for who wrote the catalogue."""


@dataclass(frozen=True)
class Scale:
    set: tuple[str, ...] = ()  # settings over the configuration, after the row's own
    rows: tuple[str, ...] = ()  # none: all
    seeds: tuple[int, ...] = (0,)
    headline: tuple[str, ...] = ()  # rows that have more seeds than the others
    headline_seeds: tuple[int, ...] = (0, 1, 2)
    # settings of single rows, after all others
    of: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # settings of rows that can't take those of `set`: local training has no rounds
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def seeds_of(self, row: str) -> tuple[int, ...]:
        return self.headline_seeds if row in self.headline else self.seeds


@dataclass(frozen=True)
class Runs:
    name: str
    scales: Mapping[str, Scale]
    config: str = ""  # a TOML file below experiments/, with its .rows.json
    command: tuple[str, ...] = ()  # or programs below experiments/, with their arguments
    results: str = ""  # and the file that they write
    called: str = ""  # the data, where a table has several
    scaled: str = ""  # what is smaller than in the paper, at machine scale

    @property
    def path(self) -> Path:
        return EXPERIMENTS / self.config

    def rows(self, scale: str) -> dict[str, list[str]]:
        """What is run at a scale: each row's settings, then the scale's, then the row's own at it."""
        chosen, known = self.scales[scale], table.rows_of(self.path)
        for row in (*chosen.rows, *chosen.headline, *chosen.of, *chosen.instead):
            if row not in known:
                raise CatalogueError(f"{self.name}: {self.config} has no row '{row}'")
        return {
            row: [*settings, *chosen.instead.get(row, chosen.set), *chosen.of.get(row, ())]
            for row, settings in known.items()
            if not chosen.rows or row in chosen.rows
        }

    def results_file(self, scale: str) -> Path:
        if self.command:
            return EXPERIMENTS / self.results
        if scale == "machine":
            return self.path.with_suffix(".results.json")
        return HERE / scale / f"{self.name}.results.json"

    @property
    def made_file(self) -> Path:
        """Of a command: who made its result file, and how."""
        results = EXPERIMENTS / self.results
        return results.with_name(f"{results.name.removesuffix('.results.json')}.made.json")

    @property
    def made(self) -> dict[str, Any]:
        """Nothing where the results were written by somebody else since."""
        file = self.made_file
        found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return found if found.get("results") == self.results_digest() else {}

    def results_digest(self) -> str:
        file = EXPERIMENTS / self.results
        known = bool(self.command) and file.is_file()
        return blake2b(file.read_bytes(), digest_size=16).hexdigest() if known else ""

    def found(self, scale: str = "machine") -> table.Results:
        """Row -> its runs; nothing of a scale that these runs do not have."""
        return table.read_results(self.results_file(scale)) if scale in self.scales else {}


@dataclass(frozen=True)
class Entry:
    id: str
    paper: str
    what: str  # "Table 4, SST-2"
    shows: str  # what the paper shows there, in a sentence
    runs: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()  # of those runs; none: all
    figures: tuple[str, ...] = ()  # columns
    # the paper's numbers: row -> figure -> as it prints them
    reported: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: str = ""  # what is ours alone, or what is lacking
    claims: tuple[Claim, ...] = ()
    left_out: str = ""  # what the paper has there, and no run here stands for


@dataclass(frozen=True)
class Catalogue:
    runs: Mapping[str, Runs]
    entries: Mapping[str, Entry]

    def claim(self, name: str) -> tuple[Entry, Claim]:
        for entry in self.entries.values():
            for claim in entry.claims:
                if claim.id == name:
                    return entry, claim
        raise CatalogueError(f"no claim of the catalogue is called '{name}'")


def load(folder: Path = HERE) -> Catalogue:
    runs: dict[str, Runs] = {}
    entries: dict[str, Entry] = {}
    for name in PAPERS:
        said = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        for one, about in said.get("runs", {}).items():
            _once(runs, one)[one] = _runs(one, about)
        for about in said.get("entry", []):
            _once(entries, about["id"])[about["id"]] = _entry(about, said["paper"])
    for entry in entries.values():
        for one in entry.runs:
            if one not in runs:
                raise CatalogueError(f"{entry.id}: there are no runs called '{one}'")
    return Catalogue(runs, entries)


def _once(known: dict[str, Any], name: str) -> dict[str, Any]:
    if name in known:
        raise CatalogueError(f"'{name}' is in the catalogue twice")
    return known


def _known(kind: type, about: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    if unknown := sorted(about.keys() - names):
        raise CatalogueError(f"{where}: unknown key '{unknown[0]}'")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}


def _runs(name: str, about: Mapping[str, Any]) -> Runs:
    plain = {key: value for key, value in about.items() if key not in SCALES}
    scales = {
        scale: Scale(**_known(Scale, about.get(scale) or {}, f"{name}, {scale}"))
        for scale in SCALES
        if about.get(scale, scale == "machine") is not False
    }
    return Runs(name=name, scales=scales, **_known(Runs, plain, name))


def _entry(about: Mapping[str, Any], paper: str) -> Entry:
    where = str(about["id"])
    claims = tuple(
        Claim(
            **{
                **_known(Claim, claim, where),
                "comparisons": tuple(
                    Comparison(**_known(Comparison, one, where)) for one in claim["comparisons"]
                ),
            }
        )
        for claim in about.get("claims", [])
    )
    return Entry(**{**_known(Entry, about, where), "paper": paper, "claims": claims})
