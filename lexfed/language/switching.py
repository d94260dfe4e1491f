"""Switching the tokenizer of a trained model: sample from it, learn from the sample, carry the rows
over.

    text        <- sample(M)                                  [Alg. 1, SAMPLE]
    tokenizer'  <- learned from text                          [TRAINTOKENIZER]
    row of a new token <- mean of the rows of its pieces      [REMAP]

Options beside the paper's: what the output bias becomes, whether the server optimizer's slots come
along, whether the model learns from what the old one writes before users see it (`teach_words`,
`language/teaching.py`), and for comparison random rows, or teaching without another tokenizer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lexfed.core.devices import placed
from lexfed.core.errors import ConfigError, DivergedError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive
from lexfed.federation import ServerState
from lexfed.federation.server_optimizer import AVERAGE, released
from lexfed.language.language_task import TOKENIZER, LanguageTask, tokenizer_of
from lexfed.language.soft_targets import Teacher, taught_softly
from lexfed.language.teaching import Lesson, Written, taught
from lexfed.models.language_model import (
    BIAS,
    TOKEN_ROWS,
    LanguageModel,
    adam_rate,
    expected_tokens,
    sample,
)
from lexfed.vocabulary import remap
from lexfed.vocabulary.learned import Learned, learn
from lexfed.vocabulary.splitting import words_with_stray_bytes
from lexfed.vocabulary.stray_bytes import whole
from lexfed.vocabulary.tokenizer import Kind


@dataclass(frozen=True)
class TokenizerForFree:
    """The `[tokenizer_for_free]` table."""

    switch: tuple[int, ...] = ()  # after these rounds; none: the first tokenizer stays
    # continue: carry the rows over (Algorithm 1); from_scratch: a new model on the other half of
    # the users (Table 2)
    protocol: Literal["continue", "from_scratch"] = "continue"
    sample_words: int = 300_000  # words that are sampled from the model
    sample_length: int = 100  # tokens of a sampled text at most
    temperature: float = 1.0  # of sampling; 1: as the model has learned
    # what the new tokenizer is learned from; same: the old one stays, and teaching is all that
    # happens (for comparison)
    new: Literal["sampled", "same"] = "sampled"
    kind: Kind | None = None  # of the new tokenizer; default: as the old one's
    rows: Literal["mean", "random"] = "mean"  # of tokens that are new; random: for comparison
    # of the output: of a token's pieces; as often as the sample has it; or moved until the model
    # expects it that often
    bias: Literal["mean", "unigrams", "calibrated"] = "calibrated"
    slots: Literal["remap", "reset"] = "remap"  # of the server's optimizer
    # words that the old model writes for the new one to learn from before users see it; 0: none
    teach_words: int = 0
    # what is learned where a word begins: the old model's chances of all tokens there
    # (language/soft_targets.py), or the token that was drawn
    teach_targets: Literal["soft", "hard"] = "soft"
    teach_epochs: int = 1  # passes over these words
    # Adam's learning rate in teaching, after a short warm-up; it falls to 0. None: the model's own
    # (LSTM 8e-3, transformer 1e-3)
    teach_lr: float | None = None
    teach_batch: int = 32  # windows of a step of teaching

    def __post_init__(self) -> None:
        if list(self.switch) != sorted(set(self.switch)) or any(place < 1 for place in self.switch):
            raise ConfigError(
                "tokenizer_for_free.switch lists rounds from 1 on, each once, in order"
            )
        if self.protocol == "from_scratch" and len(self.switch) > 1:
            raise ConfigError(
                "tokenizer_for_free.protocol = 'from_scratch' has one switch at most: users are "
                "parted in two halves"
            )
        if min(self.sample_words, self.sample_length) < 1 or not self.temperature > 0:
            raise ConfigError(
                "tokenizer_for_free.sample_words, sample_length and temperature must be above 0"
            )
        if self.teach_words < 0:
            raise ConfigError("tokenizer_for_free.teach_words must be at least 0")
        rate = 1.0 if self.teach_lr is None else self.teach_lr
        if min(self.teach_epochs, self.teach_batch) < 1 or not rate > 0:
            raise ConfigError(
                "tokenizer_for_free.teach_epochs, teach_batch and teach_lr must be above 0"
            )
        if self.teach_words and self.protocol == "from_scratch":
            raise ConfigError(
                "tokenizer_for_free.teach_words is for protocol = 'continue': 'from_scratch' "
                "begins with a model that has learned nothing"
            )
        if self.new == "same" and (not self.teach_words or self.kind is not None):
            raise ConfigError(
                "tokenizer_for_free.new = 'same' keeps the tokenizer and teaches: it needs "
                "teach_words above 0, and no kind"
            )

    def lesson(self, model: LanguageModel) -> Lesson:
        rate = adam_rate(model) if self.teach_lr is None else self.teach_lr
        return Lesson(self.teach_epochs, rate, self.teach_batch)

    @property
    def groups(self) -> int:
        """In how many groups, that have nobody in common, users take part."""
        return 2 if self.protocol == "from_scratch" else 1


def switched(
    task: LanguageTask, options: TokenizerForFree, state: ServerState, seed: Seed
) -> ServerState:
    """UPDATE of Algorithm 1, and teaching: a function of the model, its tokenizer and public
    options, of nothing else.
    """
    after = _remapped(task, options, state, seed) if options.new == "sampled" else state
    if options.slots == "reset":
        after = replace(after, opt_state={})
    if not options.teach_words:
        return after
    here, teacher = derive(seed, "teach"), released(state.params, state.opt_state)
    drawn, old, new = derive(here, "sample"), tokenizer_of(state), tokenizer_of(after).tokenizer
    text = written(task, options, teacher, old, drawn, options.teach_words)
    lesson = options.lesson(task.model)
    if options.teach_targets == "soft":
        model = placed(teacher, task.device)
        writer = Teacher(task.model, model, old.tokenizer, options.temperature)
        params = taught_softly(task, after.params, text, new, writer, lesson, here)
    else:
        params = taught(task, after.params, text, new, lesson, here)
    # a mean of models begins anew with the one that was taught
    slots = {name: held for name, held in after.opt_state.items() if name != AVERAGE}
    return replace(after, params=params, opt_state=slots)


def told(options: TokenizerForFree) -> str:
    """Before it begins, for who waits."""
    done = "switching the tokenizer and teaching" if options.new == "sampled" else "teaching"
    passes = {1: "once", 2: "twice"}.get(options.teach_epochs, f"{options.teach_epochs} times")
    return f"{done}: {options.teach_words:,} words of the model's own, read {passes}"


def _remapped(
    task: LanguageTask, options: TokenizerForFree, state: ServerState, seed: Seed
) -> ServerState:
    """The model and the server optimizer's slots with a new tokenizer."""
    text, new = new_tokenizer(task, options, state, seed)
    pieces = remap.pieces(new.tokenizer, tokenizer_of(state).tokenizer)
    # tied models have no output rows of their own
    names = [name for name in TOKEN_ROWS if name in state.params]
    params = dict(remap.remap_params(state.params, names, pieces))
    if options.rows == "random":
        fresh = task.model.init(len(pieces), derive(seed, "rows"))
        changed = torch.tensor([len(parts) != 1 for parts in pieces])
        params |= {name: _where(changed, fresh[name], params[name]) for name in names}
    if options.bias == "unigrams":
        params[BIAS] = _follow(params[BIAS], remap.unigram_bias(new.tokenizer, text))
    if options.bias == "calibrated":
        sequences = [new.tokenizer.sequence(words) for words in text[:CALIBRATION]]
        params[BIAS] = _calibrated(task, params, sequences)
    slots = remap.remap_slots(state.opt_state, names, pieces)
    return replace(state.with_blob(TOKENIZER, new.to_bytes()), params=params, opt_state=slots)


def new_tokenizer(
    task: LanguageTask, options: TokenizerForFree, state: ServerState, seed: Seed
) -> tuple[list[list[str]], Learned]:
    """SAMPLE and TRAINTOKENIZER: the sampled text, and the tokenizer that was learned from it."""
    old = tokenizer_of(state)
    drawn = derive(seed, "sample")
    texts = written(task, options, state.params, old, drawn, options.sample_words)
    text = [one.words for one in texts]
    kind, size = options.kind or old.tokenizer.kind, len(old.tokenizer.tokens)
    return text, learn(map(whole, text), kind, size, "sampled")


def written(
    task: LanguageTask,
    options: TokenizerForFree,
    params: Params,
    old: Learned,
    seed: Seed,
    enough: int,
) -> Iterator[Written]:
    """Texts that the model writes, in words, until there are enough of them."""
    tokenizer, words, part, params = old.tokenizer, 0, 0, placed(params, task.device)
    # what it expects of its first token: without numbers, no token is drawn at all
    first = expected_tokens(task.model, params, [[tokenizer.bos, tokenizer.eos]])
    if not bool(torch.isfinite(first).all()):
        raise DivergedError(
            "the model has left the numbers, and nothing can be sampled from it: lower train.lr or "
            "server.lr"
        )
    while words < enough:
        drawn = sample(
            task.model,
            params,
            # a token is a word at most: there may have to be another part
            count_tokens=enough - words,
            length=options.sample_length,
            bos=tokenizer.bos,
            eos=tokenizer.eos,
            temperature=options.temperature,
            seed=derive(seed, part),
        )
        part += 1
        for ids in drawn:
            text = words_with_stray_bytes(tokenizer.decode_bytes(ids), task.texts.lowercase)
            words += max(len(text), 1)  # a model that writes nothing must not keep us for ever
            if text:
                yield Written(text, len(ids) < options.sample_length, ids)


def _follow(bias: torch.Tensor, unigrams: torch.Tensor) -> torch.Tensor:
    """The unigrams' logarithms, at the level of the bias that was: only differences count, but
    drift would not be nice.
    """
    return unigrams + (bias.mean() - unigrams.mean())


CALIBRATION = 1_000  # texts: enough for the tokens that matter


def _calibrated(task: LanguageTask, params: Params, sequences: list[list[int]]) -> torch.Tensor:
    """Move the bias until the model expects each token as often as the texts have it: log(counted /
    expected), thrice.

    One occurrence more of each: a byte that the sample lacks must stay possible, for users who
    write in other scripts.
    """
    counted = (
        torch.bincount(
            torch.tensor([t for ids in sequences for t in ids[1:]]), minlength=len(params[BIAS])
        )
        + 1
    )
    params = placed(params, task.device)
    bias = params[BIAS]
    for _ in range(3):
        expected = expected_tokens(task.model, {**params, BIAS: bias}, sequences) + 1
        bias = bias + torch.log(counted.to(bias.device) / expected)
    return bias.cpu()


def _where(changed: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(changed.reshape(-1, *[1] * (one.ndim - 1)), one, other)
