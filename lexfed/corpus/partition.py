"""Who holds which text: laws that part the rows of a corpus among clients. Disjoint, complete,
deterministic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lexfed.core.errors import DataError
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.corpus.text import IntArray

Parts = Sequence[IntArray]
FloatArray = npt.NDArray[np.float64]


def equal_sizes(examples: int, clients: int) -> IntArray:
    """As equal as whole numbers allow."""
    return np.full(clients, examples // clients, dtype=np.int64) + (
        np.arange(clients) < examples % clients
    )


@dataclass(frozen=True, eq=False)
class Pieces(Sequence[IntArray]):
    """Parts that lie one after the other, each made when it is asked for: a million lists of two
    rows are larger than the rows.
    """

    order: IntArray
    starts: IntArray  # (clients + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[one] for one in range(len(self))[client]]
        one = range(len(self))[client]
        return self.order[self.starts[one] : self.starts[one + 1]]


def pieces(parts: Parts) -> Pieces:
    """Any parts as one order of rows, and where each begins in it."""
    if isinstance(parts, Pieces):
        return parts
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return Pieces(np.concatenate(list(parts)), starts)


def iid(examples: int, clients: int, seed: Seed) -> Parts:
    order = numpy_generator(seed).permutation(examples).astype(np.int64)
    return Pieces(order, np.concatenate([[0], np.cumsum(equal_sizes(examples, clients))]))


def dirichlet(labels: IntArray, clients: int, alpha: float, prior: str, seed: Seed) -> Parts:
    """Label shift: client k draws class shares p_k ~ Dir(alpha * prior) and gets texts by them, all
    clients equally many.

    `prior` "class" is the corpus's own class shares (FedNLP's way: a small Dirichlet weight per
    class, strong skew); "uniform" is 1 for every class (the symmetric Dirichlet, much milder).
    There are only so many texts of a class, so the shares of all clients are fitted to them
    together (alternately scaling rows and columns): no client is left with the leavings of the
    others. A fixed number of passes: this ends at any alpha.
    """
    rng = numpy_generator(seed)
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.array([len(pool) for pool in pools], dtype=np.int64)
    base = left / left.sum() if prior == "class" else (left > 0).astype(np.float64)
    sizes = equal_sizes(len(labels), clients)
    alpha = max(alpha, 1e-100)  # below, its products with class shares would be no numbers
    shares = np.stack([_shares(rng, alpha * base) for _ in range(clients)])
    parts, carried = [], np.zeros(classes)
    for size, wanted in zip(sizes, _fitted(shares, sizes, left), strict=True):
        taken = _whole(wanted + carried, int(size), left)
        carried += wanted - taken  # what rounding took from a class, the next client gives back
        parts.append(
            np.concatenate([pools[c][left[c] - n : left[c]] for c, n in enumerate(taken)]).astype(
                np.int64
            )
        )
        left = left - taken
    return parts


def _fitted(shares: FloatArray, sizes: IntArray, available: IntArray) -> FloatArray:
    """How many texts of each class each client should get, (K, C): as close to its shares as the
    totals allow.
    """
    wanted = np.maximum(shares, 1e-9) * (available > 0)
    for _ in range(100):
        wanted *= available / np.maximum(wanted.sum(0), 1e-300)
        wanted *= (sizes / wanted.sum(1))[:, None]
    return np.asarray(wanted, dtype=np.float64)


def _whole(wanted: FloatArray, size: int, left: IntArray) -> IntArray:
    """Whole numbers near `wanted` that add up to `size`, never more than are left."""
    taken = np.clip(np.floor(wanted), 0, left).astype(np.int64)
    while (missing := size - int(taken.sum())) != 0:
        if missing > 0:
            c = int(np.argmax(np.where(taken < left, wanted - taken, -np.inf)))
            taken[c] += min(missing, max(1, int(wanted[c] - taken[c])), int(left[c] - taken[c]))
        else:  # only by what was carried over
            taken[int(np.argmax(np.where(taken > 0, taken - wanted, -np.inf)))] -= 1
    return taken


def _shares(rng: np.random.Generator, weights: FloatArray) -> FloatArray:
    """A Dirichlet draw that survives tiny weights: gamma(a) = gamma(a + 1) * u^(1/a), kept in
    logarithms.
    """
    logs = np.full(len(weights), -np.inf)  # a class of weight 0 gets nothing
    some = weights > 0
    logs[some] = (
        np.log(rng.gamma(weights[some] + 1))
        + np.log1p(-rng.random(int(some.sum()))) / weights[some]
    )
    # alpha so small that even logarithms overflow: all the mass on one class
    if not np.isfinite(logs.max()):
        logs[rng.choice(np.flatnonzero(some), p=weights[some] / weights[some].sum())] = 0.0
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def quantity(examples: int, clients: int, alpha: float, seed: Seed) -> Parts:
    """Size skew: sizes ~ Dir(alpha) over clients, at least one text each; which texts is random."""
    rng = numpy_generator(seed)
    spare = rng.multinomial(examples - clients, _shares(rng, np.full(clients, max(alpha, 1e-100))))
    order = rng.permutation(examples).astype(np.int64)
    return np.split(order, np.cumsum(1 + spare)[:-1])


def by_user(users: list[str | None], clients: int, seed: Seed, apart: bool = False) -> Parts:
    """A client is a user: `clients` of them by chance, each with all of its texts. Texts of nobody
    are left out. Apart, users come in the order of their own hashes: one more moves only who comes
    last.
    """
    groups = _groups(users)
    names = sorted(groups)
    if len(names) < clients:
        raise DataError(f"{clients} clients but only {len(names)} users; lower data.clients")
    if apart:
        return [groups[name] for name in sorted(names, key=lambda n: derive(seed, n))[:clients]]
    chosen = numpy_generator(seed).choice(len(names), clients, replace=False)
    return [groups[names[i]] for i in chosen]


def by_source(sources: list[str | None], clients: int, share: bool, seed: Seed) -> Parts:
    """A client's texts are of one source: sources in turn, each parted evenly among its clients.

    Texts of no source are left out, or (`share`) parted evenly among all.
    """
    groups = _groups(sources)
    names = sorted(groups)
    if len(names) > clients:
        raise DataError(
            f"{len(names)} sources need at least as many clients, not {clients}; raise data.clients"
        )
    parts: list[IntArray] = [np.empty(0, dtype=np.int64)] * clients
    for number, name in enumerate(names):
        owners = range(number, clients, len(names))
        if len(groups[name]) < len(owners):
            raise DataError(
                f"source '{name}' has {len(groups[name])} texts for {len(owners)} clients; lower "
                "data.clients"
            )
        for owner, part in zip(
            owners, iid(len(groups[name]), len(owners), derive(seed, name)), strict=True
        ):
            parts[owner] = groups[name][part]
    if share:
        rest = np.array([i for i, name in enumerate(sources) if name is None], dtype=np.int64)
        extra = iid(len(rest), clients, derive(seed, "sourceless"))
        parts = [
            np.sort(np.concatenate([part, rest[more]]))
            for part, more in zip(parts, extra, strict=True)
        ]
    return parts


def _groups(names: list[str | None]) -> dict[str, IntArray]:
    groups: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        if name is not None:
            groups.setdefault(name, []).append(position)
    return {name: np.array(positions, dtype=np.int64) for name, positions in groups.items()}
