"""The `[secure]` table, and the thresholds that follow from it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lexfed.core.errors import ConfigError
from lexfed.secure.graph import Graph, complete, degree, harary
from lexfed.wire import ClientId


@dataclass(frozen=True)
class Secure:
    """The `[secure]` table: the server learns sums alone."""

    sums: bool = False  # clients mask what they send; masks cancel in the sum
    # of a cohort, this share must stay to the end, else nothing is opened
    threshold: float = 0.67
    least: int = 3  # nobody takes part in a sum of fewer
    bits: int = 64  # of a masked number, 32 or 64
    range: float = 2.0**24  # a larger number is cut to it, and the record counts who had to
    # cohorts above this size mask with some neighbours instead of with everybody
    sparse_above: int = 100
    # the share of colluding clients that a sparse graph, and shares of noise, are made for
    colluding: float = 0.1
    dropping: float = 0.1  # and the share of clients that drop out

    # word vectors: the rows that everybody sends. All of them; a block of them each round; or, in
    # two sums, those that `held_by` organisations moved
    rows: Literal["all", "block", "held"] = "all"
    block: int = 2000  # rows = "block": how many each round
    held_by: int = 2  # rows = "held": how many must have moved a row

    def __post_init__(self) -> None:
        if min(self.block, self.held_by) < 1:
            raise ConfigError("secure.block and secure.held_by must be at least 1")
        if not 0.5 < self.threshold <= 1:
            raise ConfigError("secure.threshold must be above 0.5 and at most 1")
        if self.bits not in (32, 64):
            raise ConfigError("secure.bits must be 32 or 64")
        if not 0 < self.range < 2.0**40 or self.least < 2 or self.sparse_above < 2:
            raise ConfigError(
                "secure.range must be above 0 and below 2^40; secure.least and "
                "secure.sparse_above at least 2"
            )
        if not (self.colluding >= 0 and self.dropping >= 0) or self.colluding + self.dropping >= 1:
            raise ConfigError(
                "secure.colluding and secure.dropping must be at least 0, and together below 1"
            )

    def stay(self, clients: int) -> int:
        return survivors(self, clients)

    def collude(self, clients: int) -> int:
        """At most so many of a cohort."""
        return math.ceil(self.colluding * clients - 1e-9)


def survivors(options: Secure, clients: int) -> int:
    """How many of a cohort must stay to the end: more than half in any case."""
    return max(clients // 2 + 1, math.ceil(options.threshold * clients - 1e-9))


def graph_of(options: Secure, cohort: Sequence[ClientId]) -> Graph:
    sparse = _sparse(options, len(cohort))
    if sparse is not None:
        return harary(cohort, *sparse)
    return complete(cohort, survivors(options, len(cohort)))


def own_terms(options: Secure, clients: int) -> tuple[float, ...]:
    """What a client's own table says of a sum of so many: survivors, threshold, bits, range."""
    stay, sparse = survivors(options, clients), _sparse(options, clients)
    return stay, stay if sparse is None else sparse[1], options.bits, options.range


def _sparse(options: Secure, clients: int) -> tuple[int, int] | None:
    """Neighbours and threshold; None: everybody with everybody."""
    if clients <= options.sparse_above:
        return None
    return degree(clients, options.colluding, options.dropping)
