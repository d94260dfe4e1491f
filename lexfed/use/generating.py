"""Texts that a trained language model writes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lexfed.core.devices import one_thread
from lexfed.core.errors import ConfigError
from lexfed.core.seeds import derive, root
from lexfed.federation import ServerState
from lexfed.language.language_parts import LANGUAGE_MODEL
from lexfed.language.language_study import SWITCH
from lexfed.language.language_task import TOKENIZER, tokenizer_of
from lexfed.models import language_model
from lexfed.models.language_model import continued
from lexfed.records.rundir import RunDir
from lexfed.use.model_card import holds_for_this
from lexfed.use.opening import directory_of, state_of
from lexfed.vocabulary.remap import begins_words
from lexfed.vocabulary.splitting import words as split

TOGETHER = 256  # texts that are written at once
LONGEST = 16  # tokens of a word, in the mean: a model that never begins a new one must not go on


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    words: int = 50  # of a text at most, beside those of the prompt
    texts: int = 5
    temperature: float = 1.0  # 1: as the model has learned; lower: the likely more often
    prompt: str = ""
    seed: int = 0
    before_switch: bool = False  # as it was before its tokenizer was switched

    def __post_init__(self) -> None:
        if min(self.words, self.texts) < 1:
            raise ConfigError("there must be at least one word and one text")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError("the temperature must be above 0")


def generate(path: Path, wish: Wish) -> list[str]:
    directory = directory_of(path)
    config = directory.config()
    check(directory)
    state = state_of(directory)
    if wish.before_switch:
        state = before_switch(directory, state)
    if TOKENIZER not in state.blobs:
        raise ConfigError(f"{path} has not begun to train: there is no model yet")
    tokenizer, model = tokenizer_of(state).tokenizer, language_model.build(config.language_model)
    given = split(wish.prompt, config.tokenizer.lowercase, "single")
    prompt, begins = tokenizer.encode_words(given)[0], begins_words(tokenizer)

    def full(ids: Sequence[int], token: int) -> bool:
        """Whether there is no room left for this token."""
        words = sum(begins[i] for i in ids)
        return len(ids) >= LONGEST * wish.words or (begins[token] and words >= wish.words)

    def written() -> Iterator[list[int]]:
        for part, start in enumerate(range(0, wish.texts, TOGETHER)):
            rows = min(TOGETHER, wish.texts - start)
            seed = derive(root(wish.seed), "generate", part)
            ends = tokenizer.bos, tokenizer.eos
            yield from continued(
                model, state.params, prompt, rows, full, ends, wish.temperature, seed
            )

    with one_thread():
        texts = [tokenizer.decode([*prompt, *ids]) for ids in written()]
    # a model that has learned little may begin in the middle of a word, or write a blank itself
    return [" ".join(text.split()[: len(given) + wish.words]) for text in texts]


def check(directory: RunDir) -> None:
    kind = directory.config().entry.kind
    if kind is not LANGUAGE_MODEL:
        raise ConfigError(f"{directory.path} holds a {kind.name}: it writes no texts")


def before_switch(directory: RunDir, state: ServerState) -> ServerState:
    """The state right before the last switch of the tokenizer."""
    rounds = [int(name.removeprefix(SWITCH)) for name in state.done if name.startswith(SWITCH)]
    if not rounds:
        raise ConfigError(f"the tokenizer of {directory.path} was never switched")
    folder = directory.kept(max(rounds))
    if not folder.is_dir():  # what an earlier lexfed wrote
        raise ConfigError(
            f"{directory.path} did not keep its model from before the switch: run it again with "
            f"keep = [{max(rounds)}]"
        )
    return state_of(directory, folder)


def may_quote(directory: RunDir) -> bool:
    """Whether nothing keeps the model from saying what its users wrote."""
    if not directory.finished:
        return True
    promise = directory.summary().get("promise")  # an earlier lexfed wrote none
    return promise is None or not holds_for_this(promise)
