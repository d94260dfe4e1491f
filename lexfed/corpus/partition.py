"""Who holds which text: laws that part the rows of a corpus among clients. Disjoint, complete, deterministic."""

import numpy as np
import numpy.typing as npt

from lexfed.corpus.text import IntArray
from lexfed.errors import DataError
from lexfed.seeds import Seed, derive, numpy_generator

Parts = list[IntArray]


def equal_sizes(examples: int, clients: int) -> IntArray:
    """As equal as whole numbers allow."""
    return np.full(clients, examples // clients, dtype=np.int64) + (np.arange(clients) < examples % clients)


def iid(examples: int, clients: int, seed: Seed) -> Parts:
    order = numpy_generator(seed).permutation(examples).astype(np.int64)
    return np.split(order, np.cumsum(equal_sizes(examples, clients))[:-1])


def dirichlet(labels: IntArray, clients: int, alpha: float, prior: str, seed: Seed) -> Parts:
    """Label shift: client k draws its class shares p_k ~ Dir(alpha * prior), then its texts by them.

    `prior` "class" is the corpus's own class shares (FedNLP's way: a small Dirichlet weight per class, strong skew);
    "uniform" is 1 for every class (the symmetric Dirichlet, much milder). Clients have equal sizes. Texts are drawn
    without replacement: where a class runs out, a client's shares are re-scaled over the classes that are left. Every
    client draws once, so this ends at any alpha.
    """
    rng = numpy_generator(seed)
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.array([len(pool) for pool in pools], dtype=np.int64)
    base = left / left.sum() if prior == "class" else np.ones(classes)
    parts = []
    for size in equal_sizes(len(labels), clients):
        taken = _draw(rng, int(size), _shares(rng, alpha * base), left)
        parts.append(np.concatenate([pools[c][left[c] - n : left[c]] for c, n in enumerate(taken)]).astype(np.int64))
        left = left - taken
    return parts


def _shares(rng: np.random.Generator, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A Dirichlet draw that survives tiny weights: gamma(a) = gamma(a + 1) * u^(1/a), kept in logarithms."""
    logs = np.full(len(weights), -np.inf)  # a class of weight 0 gets nothing
    some = weights > 0
    logs[some] = np.log(rng.gamma(weights[some] + 1)) + np.log1p(-rng.random(int(some.sum()))) / weights[some]
    if not np.isfinite(logs.max()):  # alpha so small that even logarithms overflow: all the mass on one class
        logs[rng.choice(np.flatnonzero(some), p=weights[some] / weights[some].sum())] = 0.0
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def _draw(rng: np.random.Generator, size: int, shares: npt.NDArray[np.float64], left: IntArray) -> IntArray:
    """How many of each class: multinomial by `shares`, never more than are left. Each pass fills a class or ends."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        open_ = taken < left
        weights = np.where(open_, shares, 0.0)
        if weights.sum() <= 0:  # only classes this client did not want are left
            weights = np.where(open_, left - taken, 0).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(missing, weights / weights.sum()), left)
    return taken


def quantity(examples: int, clients: int, alpha: float, seed: Seed) -> Parts:
    """Size skew: sizes ~ Dir(alpha) over clients, at least one text each; which texts is random."""
    rng = numpy_generator(seed)
    spare = rng.multinomial(examples - clients, _shares(rng, np.full(clients, alpha)))
    order = rng.permutation(examples).astype(np.int64)
    return np.split(order, np.cumsum(1 + spare)[:-1])


def by_user(users: list[str | None], clients: int, seed: Seed) -> Parts:
    """A client is a user: `clients` of them by chance, each with all of its texts. Texts of nobody are left out."""
    groups = _groups(users)
    names = sorted(groups)
    if len(names) < clients:
        raise DataError(f"{clients} clients but only {len(names)} users; lower data.clients")
    chosen = numpy_generator(seed).choice(len(names), clients, replace=False)
    return [groups[names[i]] for i in chosen]


def by_source(sources: list[str | None], clients: int, seed: Seed) -> Parts:
    """A client's texts are of one source: sources in turn, each parted evenly among its clients."""
    groups = _groups(sources)
    names = sorted(groups)
    if len(names) > clients:
        raise DataError(f"{len(names)} sources need at least as many clients, not {clients}; raise data.clients")
    parts: Parts = [np.empty(0, dtype=np.int64)] * clients
    for number, name in enumerate(names):
        owners = range(number, clients, len(names))
        if len(groups[name]) < len(owners):
            raise DataError(f"source '{name}' has {len(groups[name])} texts for {len(owners)} clients; lower data.clients")
        for owner, part in zip(owners, iid(len(groups[name]), len(owners), derive(seed, name)), strict=True):
            parts[owner] = groups[name][part]
    return parts


def _groups(names: list[str | None]) -> dict[str, IntArray]:
    groups: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        if name is not None:
            groups.setdefault(name, []).append(position)
    return {name: np.array(positions, dtype=np.int64) for name, positions in groups.items()}
