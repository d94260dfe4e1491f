"""The part of a configuration that a run has read."""

import tomllib

import tomli_w

from lexfed.core.errors import LexfedError
from lexfed.experiment import reads
from lexfed.experiment.known_methods import METHODS
from lexfed.records.rundir import RunDir


def used(run: RunDir) -> str:
    """As TOML. All of it, if the method is not there any more to say what it reads."""
    text = run.config_file.read_text(encoding="utf-8")
    try:
        entry = run.config().entry
    except LexfedError:
        return text
    others = {*METHODS} - {entry.name}
    kept = {}
    for name, value in tomllib.loads(text).items():
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if reads.by_method(entry, f"{name}.{k}")}
        if value != {} and name not in others and name not in ("format", "audit"):
            kept[name] = value
    return tomli_w.dumps(kept)
