"""What a script or a notebook calls: load texts, part them, run an experiment, read its results,
audit it.

Nothing here does any work of its own: it is the same code that the command line calls.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lexfed.audits import cells
from lexfed.core.errors import ConfigError, DataError, LexfedError
from lexfed.core.importing import look_in
from lexfed.core.seeds import derive, root
from lexfed.corpus import population, sources
from lexfed.corpus.loading import Columns
from lexfed.corpus.population import Data, Population
from lexfed.corpus.text import Corpus
from lexfed.experiment import config as configuration
from lexfed.experiment.config import Config
from lexfed.experiment.known_methods import METHODS
from lexfed.federation import Entry, Method, ServerState
from lexfed.records import rundir
from lexfed.records.rundir import RunDir
from lexfed.runs import launch
from lexfed.runtime.simulation import Site
from lexfed.runtime.simulation import simulate as in_this_process
from lexfed.runtime.store import Store
from lexfed.use import exporting, generating, predicting

Setup = Mapping[str, Any] | str | os.PathLike[str]  # a configuration: a dict, or a TOML file
Place = str | os.PathLike[str]


def load_corpus(
    source: Any, *, text: str = "text", label: str = "label", user: str = "user"
) -> Corpus:
    """Texts from a name, a file, a list, a dict of columns, a pandas frame or a Hugging Face data
    set.
    """
    return sources.load(source, Columns(text=text, label=label, user=user))


def partition(corpus: Any, clients: int = 20, *, seed: int = 0, **options: Any) -> Population:
    """Part a corpus among clients. Options are keys of the `[data]` table: `partition="user"`,
    `alpha=0.1`, `test=0.2`...
    """
    try:
        data = Data(clients=clients, **options)
    except TypeError as error:
        raise ConfigError(
            f"partition: {error}; see the [data] table in docs/configuration.md"
        ) from error
    return population.parted(load_corpus(corpus), data, derive(root(seed), "data"))


def run(
    setup: Setup,
    *,
    out: Place | None = None,
    corpus: Any = None,
    workers: int = 0,
    record_wire: Place | None = None,
    quiet: bool = False,
    settings: Mapping[str, Any] | None = None,
    device: str = "cpu",
    ray: str | None = None,
) -> "Run":
    """Run an experiment: a dict or a TOML file says which, `settings` change single keys
    (`{"train.lr": 0.01}`).

    A `corpus` (whatever `load_corpus` takes) stands in for `data.name`. It is written beside the
    run, readable by you alone, so that workers and a resumed run can read it again.

    `workers` processes of this machine share the work, or the nodes of a Ray cluster: `ray` is its
    address, "auto" or "local". Neither changes the result. `device` is where clients compute: cuda,
    cuda:N, mps, cpu or auto.
    """
    config = configure(setup, settings)
    target = Path(out) if out is not None else rundir.default_path(config)
    manner = launch.Manner(
        workers,
        Path(record_wire) if record_wire is not None else None,
        quiet=quiet,
        device=device,
        ray=ray,
    )
    if corpus is None:
        return Run(launch.begin(config, target, None, manner).path)
    rundir.refuse_existing(target)
    config = _with_corpus(config, corpus, target)
    try:
        return Run(launch.begin(config, target, None, manner).path)
    finally:
        if not RunDir(target).config_file.is_file():  # no run, no texts
            Path(config.data.name).unlink(missing_ok=True)


def resume(
    path: Place,
    *,
    rounds: int | None = None,
    workers: int = 0,
    quiet: bool = False,
    device: str = "cpu",
    ray: str | None = None,
) -> "Run":
    """Go on where a run stopped; with more rounds, if you like."""
    settings = [] if rounds is None else [f"rounds={rounds}"]
    manner = launch.Manner(workers, quiet=quiet, device=device, ray=ray)
    return Run(launch.resume(Path(path), settings, manner).path)


def open_run(path: Place) -> "Run":
    """The results of a run directory."""
    if not RunDir(Path(path)).config_file.is_file():
        raise ConfigError(f"{path} is not a run directory (no config.toml)")
    return Run(Path(path))


def audit(
    target: "Setup | Run", *, attacks: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> "Audit":
    """Attack the uploads of a configuration or a run, as a curious server could."""
    config = configure(
        target.directory.config_file if isinstance(target, Run) else target, settings
    )
    return Audit(cells.of_config(cells.only(config, attacks)))


def simulate(method: Method, people: Population, *, seed: int = 0) -> Iterator[ServerState]:
    """The states of a method's server program, with clients in this process and nothing left on
    disk.
    """
    with tempfile.TemporaryDirectory(prefix="lexfed-") as folder:
        site = Site(method, people, Store(Path(folder)))
        yield from method.server(in_this_process(site), derive(root(seed), "server"), ServerState())


def configure(setup: Setup, settings: Mapping[str, Any] | None = None) -> Config:
    """A configuration, checked. A method that is not in a module yet may be given as the entry
    itself.
    """
    words = [
        f"{key}={'none' if value is None else json.dumps(value)}"
        for key, value in (settings or {}).items()
    ]
    if not isinstance(setup, Mapping):
        return configuration.load(Path(setup), words)
    look_in(Path())
    table = dict(setup)
    if isinstance(table.get("method"), Entry):
        table["method"] = _named(table["method"])
    return configuration.parse(table, words)


def _named(entry: Entry) -> str:
    """Where an entry can be imported from; in a notebook, that is the notebook itself, and then
    there are no workers.
    """
    import sys

    for name in (entry.build.__module__, "__main__"):
        for attribute, value in vars(sys.modules.get(name, object)).items():
            if value is entry:
                place = f"{name}:{attribute}"
                return next((ours for ours, home in METHODS.items() if home == place), place)
    raise ConfigError(
        f"method '{entry.name}' must be a variable of a module, such as METHOD, so that others "
        "can import it"
    )


def _with_corpus(config: Config, corpus: Any, out: Path) -> Config:
    path = out.with_name(f"{out.name}.corpus.arrow").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    loaded = load_corpus(
        corpus, text=config.data.text, label=config.data.label, user=config.data.user
    )
    sources.Saved(path).write(loaded)
    usual = Columns()
    data = replace(
        config.data,
        name=str(path),
        text=usual.text,
        label=usual.label,
        user=usual.user,
        source=usual.source,
    )
    return replace(config, data=data)


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas frame where pandas is installed, else the rows themselves."""
    try:
        import pandas
    except ImportError:
        return list(rows)
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True)
class Run:
    """A run directory, and what it holds."""

    path: Path

    @property
    def directory(self) -> RunDir:
        return RunDir(self.path)

    @property
    def config(self) -> Config:
        return self.directory.config()

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of summary.json."""
        return self.directory.summary()

    @property
    def rounds(self) -> Any:
        """One row per round, its scores beside what was counted: a pandas frame, if pandas is
        installed.
        """
        records = self.directory.records()
        return frame(
            [{k: v for k, v in {**r, **r["metrics"]}.items() if k != "metrics"} for r in records]
        )

    @property
    def artifacts(self) -> Path:
        return self.directory.artifacts

    @property
    def report(self) -> Path:
        return self.directory.report

    def predict(
        self,
        texts: str | Iterable[str | None],
        client: int | str | None = None,
        *,
        at_home: bool = False,
    ) -> Any:
        """A row for each text: its label, and how likely each label is. With the common model, or
        with a client's own; `at_home`, as that client does with texts of its own, whose label
        shares count. A pandas frame, if pandas is installed (`frame.attrs["model"]` says whose
        model it was).
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        given = [None if text != text else text for text in given]  # what pandas has for none
        wrong = next((text for text in given if not isinstance(text, str | None)), None)
        if wrong is not None:
            raise DataError(f"texts are strings, and one of these is {type(wrong).__name__}")
        found = predicting.predict(self.path, given, client, at_home)
        rows = frame(found.rows())
        if hasattr(rows, "attrs"):
            rows.attrs["model"] = found.whose
        return rows

    def generate(
        self,
        *,
        words: int = 50,
        texts: int = 5,
        temperature: float = 1.0,
        prompt: str = "",
        seed: int = 0,
        before_switch: bool = False,
    ) -> list[str]:
        """Texts that a language model writes. Where nothing was promised, it may quote its
        users.
        """
        wish = generating.Wish(words, texts, temperature, prompt, seed, before_switch)
        return generating.generate(self.path, wish)

    def export(self, path: Place, client: int | str | None = None) -> Path:
        """A folder that other programs open, with a card; of a client's own model, if one is
        named.
        """
        exporting.export(self.path, Path(path), client)
        return Path(path)

    def __repr__(self) -> str:
        try:
            figures = self.summary
        except LexfedError:
            return f"Run({str(self.path)!r}, not finished)"
        keys = ("method_name", "global_accuracy", "heldout_loss", "word_perplexity")
        known = {key: figures[key] for key in keys if figures[key] is not None}
        listed = ", ".join(f"{key}={value}" for key, value in known.items())
        return f"Run({str(self.path)!r}, {listed})"


@dataclass(frozen=True)
class Audit:
    """What attacks found: one row per attack, attacker and cell; of those that did not run, why
    (`not_run`).
    """

    found: Sequence[Mapping[str, Any]]

    @property
    def rows(self) -> Any:
        """A pandas frame, if pandas is installed; columns that say nothing are left out."""
        said = (
            [key for key in self.found[0] if any(row[key] is not None for row in self.found)]
            if self.found
            else []
        )
        return frame([{key: row[key] for key in said} for row in self.found])
