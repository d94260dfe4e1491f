"""What was made of texts, kept for those that were read last: a client's texts are cut and numbered
once, not in each of its rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lexfed.corpus.text import Corpus

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Kept(Generic[T]):
    """Texts, and what else counts (a tokenizer), are told by which object they are: it is kept
    beside what was made of it, so that no other takes its place. It is for one thread.
    """

    room: int  # that all together may take
    takes: Callable[[T], int] = lambda made: 1
    made: dict[tuple[int, bytes, int], tuple[object, object, T]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=lambda: [0])

    def get(self, corpus: Corpus, about: object, make: Callable[[], T]) -> T:
        key = (id(corpus.texts), corpus.rows.tobytes(), id(about))
        found = self.made.pop(key, None)
        if found is None:
            found = (corpus.texts, about, make())
            if self.takes(found[2]) > self.room:  # it would throw out all others
                return found[2]
            self.taken[0] += self.takes(found[2])
        self.made[key] = found  # the last one now
        while self.taken[0] > self.room:
            _, _, oldest = self.made.pop(next(iter(self.made)))
            self.taken[0] -= self.takes(oldest)
        return found[2]
