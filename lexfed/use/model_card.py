"""The card of an exported model: what it is, what it was made of, what is promised about it, how
good it is, and how it can be made again.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from lexfed import __version__
from lexfed.core.figures import LABELS, counted, human, shown
from lexfed.corpus.catalogue import CATALOGUE
from lexfed.experiment import config as configuration
from lexfed.experiment import reads, toml
from lexfed.experiment.config import Config
from lexfed.language.language_parts import LANGUAGE_MODEL
from lexfed.models import registry
from lexfed.vocabulary.word import public_text

EPSILONS = ("epsilon_this_run", "epsilon_deployment")
NOTHING = (
    "Nothing is promised to those whose texts it was trained on: it may give away what they wrote."
)
OWN = (
    "Nothing is promised for this file: it holds what was fitted to a client's texts without noise."
)


def card(
    config: Config, summary: Mapping[str, Any], what: str, use: str, private: bool = False
) -> str:
    """`private`: the model is a client's own, whatever is promised of the one that all share."""
    parts = {
        "Use": use,
        "Data": _data(config),
        "Method": _method(config, summary),
        "Privacy": OWN if private else _privacy(config, summary),
        "Figures": _figures(summary, private),
        "Repeat": _repeat(config, summary),
    }
    sections = "\n".join(f"## {title}\n\n{text.rstrip()}\n" for title, text in parts.items())
    return f"# {config.name}\n\n{what}\n\n{sections}"


def _data(config: Config) -> str:
    entry = CATALOGUE.get(config.data.name)
    about = f": {entry.about}" if entry is not None else ""
    lines = [f"Trained on `{_public(config.data.name)}`{about}.", f"Licence: {_licence(config)}."]
    return "\n".join([*lines, *_began_with(config)])


def _began_with(config: Config) -> Iterator[str]:
    """What else it was made of."""
    words, kind = config.vocabulary, config.entry.kind
    if kind is LANGUAGE_MODEL:
        start = config.tokenizer.start
        text = config.tokenizer.public if start == "public" else start
        yield f"The tokenizer it began with is of `{_public(text)}`."
    elif kind.labels and not registry.entry(config.model.name).reads_words:
        start = "began with" if config.model.pretrained else "has the form of"
        yield f"It {start} `{_public(config.model.name)}`."
    elif kind.labels and words.vectors is not None:
        yield f"Its word vectors began with `{_public(words.vectors)}`."
    elif kind.labels and not config.entry.has("own words"):
        public = words.corpus == "public"
        source = public_text(config.data.name) if public else words.corpus
        yield f"Its word list is of `{_public(source)}`."


def _licence(config: Config) -> str:
    entry = CATALOGUE.get(config.data.name)
    return "unknown" if entry is None else entry.licence


def _public(value: Any) -> Any:
    """A file by its name alone: where it lies on somebody's disk is nobody's business."""
    if isinstance(value, list | tuple):
        return [_public(entry) for entry in value]
    if isinstance(value, str) and (os.path.isabs(value) or value.startswith("~")):
        return Path(value).name
    return value


def _method(config: Config, summary: Mapping[str, Any]) -> str:
    """The first paragraph of the method's own file."""
    words = sys.modules[config.entry.build.__module__].__doc__ or ""
    paper = " ".join(words.strip().split("\n\n")[0].split())
    size = f"{counted(summary['clients'], 'client')}, {counted(summary['rounds'], 'round')}"
    return f"`{config.entry.name}`: {paper}\n\n{size}; made with lexfed {__version__}."


def _privacy(config: Config, summary: Mapping[str, Any]) -> str:
    promise = summary.get("promise")  # an earlier lexfed did not say what takes one away
    if promise is None:
        return NOTHING
    lines = [summary["privacy"], *(f"It holds if {note}." for note in promise["notes"])]
    if config.secrets == "seed":
        lines.append(
            "This was a simulation: who has its seed can take the noise off again. The seed is not "
            "told here, but it is a small number that can be tried out. In a deployment, noise "
            "comes from the operating system."
        )
    return "\n".join(lines if holds_for_this(promise) else [*lines, NOTHING])


def holds_for_this(promise: Mapping[str, Any]) -> bool:
    """Whether it covers this very model, not only a deployment that a simulation speaks of."""
    return bool(promise["holds"]) and promise.get("holds_for", "this run") == "this run"


def _figures(summary: Mapping[str, Any], private: bool) -> str:
    """As the report shows them. Under a promise, those that were made of users' texts without noise
    are left out.
    """
    hidden = {*(summary.get("experimenter") or ()), *(EPSILONS if private else ())}
    known = [key for key in shown("k") if summary.get(key) is not None and key not in hidden]
    rows = "".join(f"| {LABELS[key]} | {human(key, summary[key])} |\n" for key in known)
    left_out = "Scores and counts were made of users' texts without noise, and are not published.\n"
    table = f"| | |\n|---|---|\n{rows}\n" if rows else ""
    return table + (left_out if summary.get("experimenter") else "")


def _repeat(config: Config, summary: Mapping[str, Any]) -> str:
    table = tomli_w.dumps(_table(dict(_settings(config, summary))))
    return (
        f"With `pip install lexfed=={__version__}` and this as `config.toml`:\n\n"
        f"```toml\n{table}```\n\n```\nlexfed run config.toml\n```\n"
    )


def _settings(config: Config, summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What was set, and is not the method's default."""
    usual = configuration.parse({"method": config.method})
    values = toml.flat(configuration.as_table(config))
    yield "name", config.name
    yield "method", config.method
    yield "data.name", _public(config.data.name)
    told = {"name", "method", "data.name"}
    # with its seed, the noise of a simulation could be taken off again
    secret = {"seed"} if summary.get("privacy") else set()
    if not secret:
        yield "seed", config.seed
        told.add("seed")
    for key in configuration.differences(usual, config):
        known = key not in told | secret and values.get(key) is not None
        if known and _is_read(config, key):
            yield key, _public(values[key])


def _is_read(config: Config, key: str) -> bool:
    """Whether the method reads it: not another method's table."""
    table, dot, _ = key.partition(".")
    mine = not dot or table in (*reads.COMMON, config.entry.name)
    return mine and reads.by_method(config.entry, key)


def _table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the top first: TOML wants it so."""
    table: dict[str, Any] = {key: value for key, value in settings.items() if "." not in key}
    for key, value in settings.items():
        name, dot, last = key.partition(".")
        if dot:
            table.setdefault(name, {})[last] = value
    return table
