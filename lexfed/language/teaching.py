"""Teaching after a switch: the model with the new tokenizer learns from text that the old model
writes.

    text <- sample(M)                as much as one likes: it reads the model alone and costs
                                     no privacy
    M'   <- Adam on text, cut by the new tokenizer: a short warm-up, then linear decay

Carrying rows over gives a new token the mean of its pieces, which no softmax was ever asked for.
What the old model knew is still there: it says so, in words that both tokenizers can write.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from lexfed.core.devices import at_home, placed
from lexfed.core.params import Params
from lexfed.core.seeds import Seed
from lexfed.language.language_task import LanguageTask
from lexfed.learning.task import Local
from lexfed.models.language_model import TokenBatch, pad, windows
from lexfed.vocabulary.tokenizer import TrainedTokenizer

WARM_UP = 50  # steps in which the learning rate rises, a tenth of all at most
TOGETHER = 4_096  # texts that are words at a time; of the others there are numbers only


@dataclass(frozen=True)
class Written:
    """A text that a model wrote."""

    words: list[str]
    ended: bool  # by the model; else it was cut, maybe within its last word
    drawn: Sequence[int] = ()  # the tokens that it wrote

    def sequence(self, tokenizer: TrainedTokenizer) -> list[int]:
        """As a model learns it: where a text was cut, nothing says that it ended there."""
        if self.ended:
            return tokenizer.sequence(self.words)
        return [tokenizer.bos, *tokenizer.encode_words(self.words[:-1])[0]]


@dataclass(frozen=True)
class Lesson:
    epochs: int
    lr: float  # at its highest
    batch: int  # windows of a step


def taught(
    task: LanguageTask,
    params: Params,
    texts: Iterable[Written],
    tokenizer: TrainedTokenizer,
    lesson: Lesson,
    seed: Seed,
) -> Params:
    """The model after epochs on these texts, which are read one after the other and never held."""
    pieces = read(texts, tokenizer, task.context)
    if len(pieces) == 0:  # a model that writes nothing teaches nothing
        return params
    pupil, local = prepared(task, lesson, -(-len(pieces) // lesson.batch))
    return dict(at_home(pupil.fit_windows(placed(params, task.device), pieces, local, seed).params))


def prepared(task: LanguageTask, lesson: Lesson, steps: int) -> tuple[LanguageTask, Local]:
    """Who learns, and how; `steps` are those of a pass."""
    options = replace(task.options, optimizer="adam", batch=lesson.batch, weight_decay=0.0)
    pace = schedule(lesson.epochs * steps)
    return replace(task, options=options), Local(lesson.lr, lesson.epochs, pace=pace)


def read(texts: Iterable[Written], tokenizer: TrainedTokenizer, context: int) -> TokenBatch:
    """All windows of these texts, in four bytes a token."""
    left, ids, lengths = iter(texts), [torch.zeros(0, context + 1, dtype=torch.int32)], []
    while some := list(islice(left, TOGETHER)):
        found = windows([text.sequence(tokenizer) for text in some], context)
        if not found:
            continue
        part = pad(found)
        wide = torch.zeros(len(part), context + 1, dtype=torch.int32)
        wide[:, : part.ids.shape[1]] = part.ids
        ids.append(wide)
        lengths.append(part.lengths)
    return TokenBatch(torch.cat(ids), torch.cat([torch.zeros(0, dtype=torch.int64), *lengths]))


def schedule(steps: int) -> Callable[[int], float]:
    """Times the learning rate, by step: up to 1 in a few of them, and straight down to 0."""
    warm_up = max(1, min(WARM_UP, steps // 10))
    return lambda step: min(1.0, (step + 1) / warm_up) * (1 - step / steps)
