"""Soft targets where teacher and pupil cut words differently.

A sampled text says one word at each place; the model that wrote it had a chance for each. Both
tokenizers stop where a word begins, so there the teacher's chances p(u) of its own tokens that
begin a word can be read. With

    A[u, t]   of the words of the texts whose first old token is u: the share whose first new token
              is t

the pupil is told, at a place where the words drawn begin with u* and t*,

    target = onehot(t*) + (p - onehot(u*)) A

u* was drawn from p, so what is added is zero in the mean: the target is right in the mean whatever
A is (a control variate), and where a token is the same in both tokenizers nothing is left to
chance. Within a word, where the two need not meet, the target is the token that was drawn. p comes
from the teacher's whole text, also where the pupil's window begins in the middle of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexfed.core.devices import at_home, device_of, placed
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.language.language_task import LanguageTask
from lexfed.language.teaching import Lesson, Written, prepared
from lexfed.learning.task import descend
from lexfed.models.language_model import LanguageModel, TokenBatch, output_of, pad, windows
from lexfed.vocabulary.tokenizer import TrainedTokenizer

NEVER = -1e4  # a bias: a chance of 0
TOGETHER = 1_024  # texts whose states exist at once; windows are shuffled among them
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Pair:
    """A text in both tokenizers, and the inputs after which a word begins, or the end comes."""

    old: Ids
    new: Ids
    at_old: Ids  # (w,)
    at_new: Ids  # (w,)


def paired(text: Written, old: TrainedTokenizer, new: TrainedTokenizer) -> Pair:
    words = text.words if text.ended else text.words[:-1]  # of the last, the rest may be missing
    ids, at, told = [], [], []
    for tokenizer in (old, new):
        tokens, lengths = tokenizer.encode_words(words)
        end = [tokenizer.eos] if text.ended else []
        ids.append(np.array([tokenizer.bos, *tokens, *end], np.int32))
        at.append(np.cumsum([0, *lengths])[: len(words) + text.ended])
        # a word that a foreign tokenizer leaves out begins nowhere
        told.append(np.array([n > 0 for n in lengths] + [True] * text.ended, bool))
    both = told[0] & told[1]
    return Pair(ids[0], ids[1], at[0][both].astype(np.int32), at[1][both].astype(np.int32))


@dataclass(frozen=True)
class Teacher:
    """Who wrote the texts, and how."""

    model: LanguageModel
    params: Params
    tokenizer: TrainedTokenizer
    temperature: float

    def chances(self, states: Tensor, begin: Tensor) -> Tensor:  # (n, d), (V,) -> (V, n)
        """Of the token that comes next, as texts are sampled, if it is one that begins a word: one
        that does not would have made the word before longer.
        """
        weight, bias = output_of(self.params)
        states, bias = states / self.temperature, bias / self.temperature
        bias = torch.where(begin, bias, bias.new_full((), NEVER))
        if not _compiled(states):
            return torch.softmax(torch.addmm(bias[:, None], weight, states.t()), 0)
        from lexfed.models import loops  # compiled: loaded when first needed

        arrays = (one.contiguous().numpy() for one in (states, weight, bias))
        return torch.from_numpy(loops.chances(*arrays))

    def states(self, pairs: Sequence[Pair]) -> Tensor:
        """Those from which the pairs' words begin, pair by pair: (W, d)."""
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i].old))
        batch = pad([pairs[i].old.tolist() for i in order])
        counts = (batch.lengths - 1).clamp(min=0)
        stretches = [*self.model.read(self.params, batch.ids[:, :-1], counts)]
        found: list[Tensor] = [stretches[0][0, :0]] * len(pairs)
        for row, i in enumerate(order):
            whole = torch.cat([part[row] for part in stretches if row < len(part)])
            found[i] = whole[torch.from_numpy(pairs[i].at_old).long().to(whole.device)]
        return torch.cat(found)


@dataclass(frozen=True)
class SoftTexts:
    """Texts to learn from in the order they were written, TOGETHER at a time."""

    teacher: Teacher
    pairs: Sequence[Pair]
    tokens: int  # of the pupil
    context: int
    batch: int

    @cached_property
    def lots(self) -> list[Sequence[Pair]]:
        # of what has but one token nothing comes next
        pairs = [pair for pair in self.pairs if len(pair.new) > 1]
        return [pairs[at : at + TOGETHER] for at in range(0, len(pairs), TOGETHER)]

    @cached_property
    def steps(self) -> int:
        """Of one pass."""
        counts = (sum(-(-(len(pair.new) - 1) // self.context) for pair in lot) for lot in self.lots)
        return sum(-(-count // self.batch) for count in counts)

    @cached_property
    def spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """A where it is not 0, by t: t, u and the share."""
        drawn = [(pair.old[pair.at_old + 1], pair.new[pair.at_new + 1]) for pair in self.pairs]
        u, t = (torch.from_numpy(np.concatenate(of)).long() for of in zip(*drawn, strict=True))
        size = len(self.teacher.tokenizer.tokens)
        cells, counts = torch.unique(t * size + u, return_counts=True)
        t, u = cells // size, cells % size
        shares = counts / torch.zeros(size).index_add_(0, u, counts.float())[u]
        device = device_of(self.teacher.params)
        return t.to(device), u.to(device), shares.to(device)

    @cached_property
    def begin(self) -> Tensor:  # (V,) bool
        """Old tokens with which a word of the texts begins."""
        u = self.spread[1]
        found = torch.zeros(len(self.teacher.tokenizer.tokens), dtype=torch.bool, device=u.device)
        return found.index_fill_(0, u, True)

    def batches(self, seed: Seed) -> Iterator[TokenBatch]:
        """One pass."""
        for number, lot in enumerate(self.lots):
            yield from self._shuffled(lot, derive(seed, number))

    def _shuffled(self, lot: Sequence[Pair], seed: Seed) -> Iterator[TokenBatch]:
        pieces = pad(windows([pair.new.tolist() for pair in lot], self.context))
        told = _told(lot, self.context, len(pieces))
        states = self.teacher.states(lot)
        u = torch.from_numpy(np.concatenate([pair.old[pair.at_old + 1] for pair in lot])).long()
        for some in torch.split(
            torch.randperm(len(pieces), generator=torch_generator(seed)), self.batch
        ):
            lengths = pieces.lengths[some]
            longest = int(lengths.max())
            beside = Beside(self, states, u, told[some, : longest - 1].flatten())
            yield TokenBatch(pieces.ids[some, :longest], lengths, beside)


def _told(lot: Sequence[Pair], context: int, count: int) -> Tensor:  # (count, context)
    """Which of the lot's words begins after each input of each window; -1: none."""
    told, first, word = torch.full((count, context), -1), 0, 0
    for pair in lot:
        at = torch.from_numpy(pair.at_new).long()
        told[first + at // context, at % context] = torch.arange(word, word + len(at))
        first += -(-(len(pair.new) - 1) // context)
        word += len(at)
    return told


@dataclass(frozen=True)
class Beside:
    """(p - onehot(u*)) A at places of a batch."""

    texts: SoftTexts
    states: Tensor  # (W, d)
    drawn: Tensor  # (W,) u*
    told: Tensor  # (B T,) which of them each place is; -1: none

    def __call__(self, places: Tensor) -> Tensor:
        words = self.told[places]
        there = (words >= 0).nonzero().squeeze(1)
        words = words[there]
        device = self.states.device
        p = self.texts.teacher.chances(self.states[words.to(device)], self.texts.begin)
        p[self.drawn[words].to(device), torch.arange(len(words), device=device)] -= 1
        found, (t, u, shares) = p.new_zeros(self.texts.tokens, len(places)), self.texts.spread
        if _compiled(p):
            from lexfed.models import loops  # compiled: loaded when first needed

            arrays = (one.numpy() for one in (t, u, shares, p, there, found))
            loops.spread(*arrays)
            return found
        found[:, there.to(device)] = p.new_zeros(len(found), len(words)).index_add_(
            0, t, shares[:, None] * p[u]
        )
        return found


def _compiled(value: Tensor) -> bool:
    return value.device.type == "cpu" and value.dtype == torch.float32


def taught_softly(
    task: LanguageTask,
    params: Params,
    texts: Iterable[Written],
    tokenizer: TrainedTokenizer,
    teacher: Teacher,
    lesson: Lesson,
    seed: Seed,
) -> Params:
    """The model after epochs on these texts; all are held, in four bytes a token."""
    pairs = [paired(text, teacher.tokenizer, tokenizer) for text in texts]
    soft = SoftTexts(teacher, pairs, len(tokenizer.tokens), task.context, lesson.batch)
    if soft.steps == 0:  # a model that writes nothing teaches nothing
        return params
    pupil, local = prepared(task, lesson, soft.steps)
    start = placed(params, task.device)
    moved, _ = descend(start, soft.batches, pupil.gradient, pupil.options, local, seed)
    return dict(at_home(moved))
