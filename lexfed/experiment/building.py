"""A method as its entry builds it, looked at before anything is written: what its author got wrong
is one line.
"""

from typing import Any

from lexfed.core.errors import ConfigError
from lexfed.core.importing import takes
from lexfed.core.params import ALL_SHARED
from lexfed.experiment.config import Config
from lexfed.federation import Entry, Method
from lexfed.models.model import BEYOND, PROJECTION, TABLE


def build(config: Config, parts: Any) -> Method:
    entry = config.entry
    if not takes(entry.build, parts, config.options):
        raise ConfigError(f"the build of method '{entry.name}' must take (parts, options)")
    method = entry.build(parts, config.options)
    if not isinstance(method, Method):
        raise ConfigError(
            f"the build of method '{entry.name}' returned {_shown(method)}, not a lexfed.Method"
        )
    if method.rounds < 1:
        raise ConfigError(
            f"method '{entry.name}' has {method.rounds} rounds: give its Method rounds=parts.rounds"
        )
    _check_study(entry, method, parts)
    if config.aggregation.rule != "mean" and not any(verb.moves for verb in method.client):
        raise ConfigError(
            f"aggregation.rule = '{config.aggregation.rule}' is for updates of the model "
            f"('delta/...'), and no verb of method '{entry.name}' sends any; set it to 'mean'"
        )
    return method


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_study(entry: Entry, method: Method, parts: Any) -> None:
    """Whoever scores the method must find the handlers that it asks."""
    study = method.study or parts.study
    if study is None:
        raise ConfigError(
            f"method '{entry.name}' needs a study: a {entry.kind.name} method brings its own "
            "(Method.study)"
        )
    for verb in getattr(study, "asks", ()):
        if verb not in method.client:
            raise ConfigError(
                f"method '{entry.name}' has no handler for '{verb.name}', by which it is scored: "
                "put one into Method.client, or give Method a study of its own"
            )


def parameters(config: Config, method: Method, parts: Any) -> frozenset[str]:
    """The names of all parameters, where some of them are private: the gate must know them.

    A method that means to keep some must find some: a split that fits no name would let all of them
    travel.
    """
    if method.split is ALL_SHARED:
        return frozenset()
    names = frozenset(getattr(parts, "names", ()))
    beside = (*method.split.beside, TABLE, BEYOND, PROJECTION)
    kept = any(method.split.is_private(name) for name in (*names, *method.split.beside))
    if names and not kept:
        raise ConfigError(
            f"method '{config.entry.name}' keeps parameters private, but model "
            f"'{_model(config)}' has none of them (it has: {', '.join(sorted(names))}); what the "
            "method adds to them it names in ParameterSplit(..., beside=...), and who keeps "
            "nothing says ALL_SHARED"
        )
    return names | set(beside)


def _model(config: Config) -> str:
    reads = config.entry.kind.reads
    return config.language_model.name if "language_model" in reads else config.model.name
