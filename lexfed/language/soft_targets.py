"""Soft targets where teacher and pupil cut words differently.

A sampled text says one word at each place; the model that wrote it had a chance for each. Both
tokenizers stop where a word begins, so there the teacher's chances p(u) of its own tokens that
begin a word can be read. With

    A[u, t]   of the words of the texts whose first old token is u: the share whose first new token
              is t

the pupil is told, at a place where the words drawn begin with u* and t*,

    target = onehot(t*) + (p - onehot(u*)) A

u* was drawn from p, so what is added is zero in the mean: the target is right in the mean whatever
A is (a control variate), and it varies less. A target may be below 0. Where all words that begin
with u begin with the same t, and no others do, nothing of them is left to chance. Within a word,
where the two need not meet, the target is the token that was drawn; so it is for a word that the
teacher wrote without a token that begins one. p comes from all that the teacher had written, also
where the pupil's window begins in the middle of it. Only at the end of a text that was cut is p not
quite right: a word that was not finished there is left out, and long ones more often.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

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
from lexfed.vocabulary.splitting import words_with_stray_bytes
from lexfed.vocabulary.tokenizer import TrainedTokenizer

NEVER = -1e4  # a bias: a chance of 0
LOT = 1_024  # texts whose states exist at once; windows are shuffled among them
READ = 64  # texts that the teacher reads at once
Int32s = NDArray[np.int32]


# --- texts in both tokenizers ---------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A text as it was drawn, and as the pupil reads it; and the inputs after which a word begins
    in both, or the end comes.
    """

    old: Int32s
    new: Int32s
    at_old: Int32s  # (w,)
    at_new: Int32s  # (w,)


@dataclass(frozen=True)
class Reader:
    """What the words of drawn tokens are, and where they begin."""

    tokenizer: TrainedTokenizer
    lowercase: bool
    known: dict[tuple[int, ...], int] = field(default_factory=dict)

    def words_of(self, tokens: tuple[int, ...]) -> int:
        if tokens not in self.known:
            text = self.tokenizer.decode_bytes(tokens)
            self.known[tokens] = len(words_with_stray_bytes(text, self.lowercase))
        return self.known[tokens]

    def begun(self, drawn: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
        """(place, word) wherever a token begins a word, and how many words there are."""
        begins = self.tokenizer.begins
        bounds = [0, *(i for i in range(1, len(drawn)) if begins[drawn[i]]), len(drawn)]
        found, word = [], 0
        for start, end in pairwise(bounds):
            count = self.words_of(tuple(drawn[start:end]))
            if count and begins[drawn[start]]:
                found.append((start, word))
            word += count
        return found, word


def paired(text: Written, reader: Reader, new: TrainedTokenizer) -> Pair:
    words = text.words if text.ended else text.words[:-1]  # of the last, the rest may be missing
    tokens, lengths = new.encode_words(words)
    starts = np.cumsum([0, *lengths])
    begun, count = reader.begun(text.drawn)
    # a foreign tokenizer may cut words otherwise where it reads them alone: then it is not known
    # where which begins
    sound = begun if count == len(text.words) else []
    # a word that a foreign tokenizer leaves out begins nowhere
    meet = [(at, starts[i]) for at, i in sound if i < len(words) and lengths[i]]
    ends = [(len(text.drawn), starts[-1])] if text.ended else []
    at_old, at_new = np.array(meet + ends, np.int32).reshape(-1, 2).T
    old = reader.tokenizer
    return Pair(
        np.array([old.bos, *text.drawn, *([old.eos] if text.ended else [])], np.int32),
        np.array([new.bos, *tokens, *([new.eos] if text.ended else [])], np.int32),
        at_old,
        at_new,
    )


# --- what the teacher knew ------------------------------------------------------------------------


@dataclass(frozen=True)
class Teacher:
    """Who wrote the texts, and how."""

    model: LanguageModel
    params: Params
    tokenizer: TrainedTokenizer
    temperature: float

    def chances(self, states: Tensor, begin: Tensor) -> Tensor:  # (n, d), (V,) -> (V, n)
        """Of the token that comes next, as texts are sampled, if it is one that begins a word: here
        it was.
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
        found: dict[int, Tensor] = {}
        for start in range(0, len(order), READ):
            some = order[start : start + READ]
            batch = pad([pairs[i].old.tolist() for i in some])
            parts = [*self.model.read(self.params, batch.ids[:, :-1], batch.lengths - 1)]
            for row, i in enumerate(some):
                whole = torch.cat([part[row] for part in parts if row < len(part)])
                found[i] = whole[torch.from_numpy(pairs[i].at_old).long().to(whole.device)]
        return torch.cat([found[i] for i in range(len(pairs))])


@dataclass(frozen=True)
class SoftTexts:
    """Texts to learn from in the order they were written, a lot at a time."""

    teacher: Teacher
    pairs: Sequence[Pair]
    tokens: int  # of the pupil
    context: int
    batch: int

    @cached_property
    def lots(self) -> list[Sequence[Pair]]:
        # of what has but one token nothing comes next
        pairs = [pair for pair in self.pairs if min(len(pair.old), len(pair.new)) > 1]
        return [pairs[at : at + LOT] for at in range(0, len(pairs), LOT)]

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
        which, begun = places(lot, self.context, len(pieces)), Begun.of(self, lot)
        order = torch.randperm(len(pieces), generator=torch_generator(seed))
        for some in torch.split(order, self.batch):
            lengths = pieces.lengths[some]
            longest = int(lengths.max())
            beside = Beside(self, begun, which[some, : longest - 1].flatten())
            yield TokenBatch(pieces.ids[some, :longest], lengths, beside)


@dataclass(frozen=True)
class Begun:
    """The words of a lot, pair by pair."""

    states: Tensor  # (W, d) of the teacher, before each
    drawn: Tensor  # (W,) u*
    first: Tensor  # (W,) bool: nothing was before it

    @staticmethod
    def of(texts: SoftTexts, lot: Sequence[Pair]) -> "Begun":
        drawn = np.concatenate([pair.old[pair.at_old + 1] for pair in lot])
        first = np.concatenate([pair.at_old == 0 for pair in lot])
        states = texts.teacher.states(lot)
        return Begun(states, torch.from_numpy(drawn).long(), torch.from_numpy(first))


def places(lot: Sequence[Pair], context: int, count: int) -> Tensor:  # (count, context)
    """Which of the lot's words begins after each input of each window; -1: none."""
    which, window, word = torch.full((count, context), -1), 0, 0
    for pair in lot:
        at = torch.from_numpy(pair.at_new).long()
        which[window + at // context, at % context] = torch.arange(word, word + len(at))
        window += -(-(len(pair.new) - 1) // context)
        word += len(at)
    return which


@dataclass(frozen=True)
class Beside:
    """(p - onehot(u*)) A at places of a batch."""

    texts: SoftTexts
    begun: Begun
    which: Tensor  # (B T,) of the words; -1: none

    def __call__(self, at: Tensor) -> Tensor:  # (n,) -> (V', n)
        there = (self.which[at] >= 0).nonzero().squeeze(1)
        words = self.which[at][there]
        p = self._chances(words)
        device = p.device
        p[self.begun.drawn[words].to(device), torch.arange(len(words), device=device)] -= 1
        found, (t, u, shares) = p.new_zeros(self.texts.tokens, len(at)), self.texts.spread
        if _compiled(p):
            from lexfed.models import loops  # compiled: loaded when first needed

            loops.add_spread(*(one.numpy() for one in (t, u, shares, p, there, found)))
            return found
        some = p.new_zeros(len(found), len(words)).index_add_(0, t, shares[:, None] * p[u])
        found[:, there.to(device)] = some
        return found

    def _chances(self, words: Tensor) -> Tensor:  # (n,) -> (V, n)
        """A text that ends before it begins was left out: a first word is no end."""
        teacher, states = self.texts.teacher, self.begun.states
        p = teacher.chances(states[words.to(states.device)], self.texts.begin)
        first = self.begun.first[words].nonzero().squeeze(1).to(p.device)
        some = p[:, first]
        some[teacher.tokenizer.eos] = 0
        p[:, first] = some / some.sum(0).clamp_min(torch.finfo(p.dtype).tiny)
        return p


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
    """The model after epochs on these texts, which are held as numbers of both tokenizers."""
    reader = Reader(teacher.tokenizer, task.texts.lowercase)
    pairs = [paired(text, reader, tokenizer) for text in texts]
    soft = SoftTexts(teacher, pairs, len(tokenizer.tokens), task.context, lesson.batch)
    if soft.steps == 0:  # a model that writes nothing teaches nothing
        return params
    pupil, local = prepared(task, lesson, soft.steps)
    start = placed(params, task.device)
    moved, _ = descend(start, soft.batches, pupil.gradient, pupil.options, local, seed)
    return dict(at_home(moved))
