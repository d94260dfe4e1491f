"""Who masks with whom: everybody with everybody in a small cohort, with a few in a large one.

SecAgg+ (Bell et al., CCS 2020): in a cohort of n put by chance on a circle, each has the k / 2
before it and the k / 2 behind it for neighbours (Harary's graph). With shares among neighbours of
which t open, three things must not happen [their Definition 3.3]:

    1. t of somebody's neighbours collude: they could open its masks        chance 2^-40 in all
    2. colluders and drop-outs part the circle: a part would be summed
       alone. That takes k / 2 of them in a row                             chance 2^-40 in all
    3. fewer than t of somebody's neighbours stay: nothing can be opened    chance 2^-20 in all

`degree` finds the smallest k for which some t will do. A neighbourhood holds its owner too, so
shares go to k + 1 clients.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lexfed.wire import ClientId

SECURITY, CORRECTNESS = 2.0**-40, 2.0**-20


@dataclass(frozen=True)
class Graph:
    """Each client's neighbours, itself among them, in one order that all know."""

    neighbours: dict[ClientId, tuple[ClientId, ...]]
    threshold: int  # of a neighbourhood: how many shares open


def complete(cohort: Sequence[ClientId], threshold: int) -> Graph:
    everybody = tuple(sorted(cohort))
    return Graph(dict.fromkeys(everybody, everybody), threshold)


def harary(cohort: Sequence[ClientId], degree: int, threshold: int) -> Graph:
    circle = list(cohort)
    secrets.SystemRandom().shuffle(circle)
    half, n = degree // 2, len(circle)
    return Graph(
        {
            client: tuple(sorted({circle[(i + d) % n] for d in range(-half, half + 1)}))
            for i, client in enumerate(circle)
        },
        threshold,
    )


@lru_cache(maxsize=16)
def degree(clients: int, colluding: float, dropping: float) -> tuple[int, int] | None:
    """The smallest even k, and a t for it; None: only the complete graph is safe enough."""
    bad, gone = (math.ceil(share * clients) for share in (colluding, dropping))
    for k in range(2, clients - 1, 2):
        if clients * _in_a_row(clients, min(clients, bad + gone), k // 2) > SECURITY:
            continue
        enough = range(k // 2 + 1, k + 2)  # more than half of a neighbourhood
        for t in enough:
            taken = clients * _at_least(t, k + 1, bad, clients)
            missing = clients * _at_least(k + 2 - t, k + 1, gone, clients)
            if taken <= SECURITY and missing <= CORRECTNESS:
                return k, t
    return None


def _in_a_row(clients: int, marked: int, row: int) -> float:
    """The chance that these places on the circle are all marked."""
    if row > marked:
        return 0.0
    return math.comb(clients - row, marked - row) / math.comb(clients, marked)


def _at_least(hits: int, draws: int, marked: int, clients: int) -> float:
    """The chance that of so many drawn at least `hits` are marked (the hypergeometric tail)."""
    most = min(draws, marked)
    ways = sum(
        math.comb(marked, i) * math.comb(clients - marked, draws - i) for i in range(hits, most + 1)
    )
    return ways / math.comb(clients, draws)
