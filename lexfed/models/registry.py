"""Models by name: ours, one of the user's own (`package.module:MODEL`), or any Hugging Face
encoder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lexfed.core.errors import ConfigError
from lexfed.core.importing import is_own, own, takes, written
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.encoder import load_encoder
from lexfed.models.model import Classifier, ModelOptions, lacking


@dataclass(frozen=True)
class ModelEntry:
    """A model as a configuration names it: `model.name = "name"`, or `model.name =
    "package.module:MODEL"`.

    `build(options, classes)`, or `build(options, classes, word_dropout)` if it can leave out whole
    words in training. A model that reads words shares the federation's word list. One that does not
    brings a tokenizer of its own.
    """

    build: Callable[..., Classifier]
    reads_words: bool = True


def _bilstm(options: ModelOptions, classes: int, word_dropout: float = 0.0) -> BiLSTMClassifier:
    return BiLSTMClassifier(options, classes, word_dropout)


def _encoder(options: ModelOptions, classes: int) -> Classifier:
    return load_encoder(options.name, classes, options.pretrained)


MODELS: Mapping[str, ModelEntry] = {"bilstm": ModelEntry(_bilstm)}
ENCODER = ModelEntry(_encoder, reads_words=False)


def entry(name: str) -> ModelEntry:
    if not is_own(name):
        if hint := written(name):
            raise ConfigError(f"model.name = '{name}': {hint}")
        return MODELS.get(name, ENCODER)
    found: Any = own(name, "model.name")
    if not isinstance(found, ModelEntry):
        raise ConfigError(f"model.name = '{name}' is not a lexfed.ModelEntry")
    return found


def build(options: ModelOptions, classes: int, word_dropout: float) -> Classifier:
    more = {"word_dropout": word_dropout} if word_dropout else {}
    make = entry(options.name).build
    if not takes(make, options, classes, **more):
        raise ConfigError(
            f"model.name = '{options.name}': its build must take "
            f"({', '.join(('options', 'classes', *more))})"
        )
    model = make(options, classes, **more)
    if lacks := lacking(model, Classifier):
        raise ConfigError(
            f"model.name = '{options.name}': {type(model).__name__} is no Classifier: it lacks "
            f"{', '.join(lacks)}"
        )
    return model
