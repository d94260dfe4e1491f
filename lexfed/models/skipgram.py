"""Skip-gram with negative sampling (Mikolov et al., 2013): the compiled loops.

    loss of a pair (centre c, context o)
        = -log s(v_c . u_o) - sum over K negatives n of log s(-v_c . u_n)

v are rows of the input table, u of the output table. All contexts of one centre share its
negatives, so the negative term is the same for each of them: it is computed once per centre, times
the number of contexts. That is exact, and five times less work. Every loop works on touched rows
only (the caller gathers them), so its cost does not grow with the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from lexfed.core.kernels import FAST, mix

INPUT, OUTPUT = "input", "output"
Ints = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_STEP = uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True, inline="always")
def softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e^x), without overflow."""
    return max(x, 0.0) + np.log1p(np.exp(-abs(x)))


@dataclass(frozen=True, eq=False)
class Text:
    """Pieces of text as word ids, end to end; piece i is tokens[starts[i] : starts[i + 1]]."""

    tokens: Ints
    starts: Offsets


@dataclass(frozen=True, eq=False)
class Unigrams:
    """What training needs to know of word frequencies: whom to skip, and whom to draw as a
    negative.
    """

    keep: Floats  # (V,) chance that an occurrence stays (subsampling of frequent words)
    table: Ints  # each word as often as count^(3/4) says: a draw is one look-up


def unigrams(counts: npt.NDArray[np.int64], subsample: float, size: int = 1 << 20) -> Unigrams:
    share = np.maximum(counts, 1) / max(int(counts.sum()), 1)
    keep = np.sqrt(subsample / share) + subsample / share if subsample > 0 else np.ones(len(counts))
    weight = np.maximum(counts, 1) ** 0.75
    edges = np.round(np.cumsum(weight) / weight.sum() * max(size, 4 * len(counts))).astype(np.int64)
    times = np.maximum(np.diff(edges, prepend=0), 1)  # every word can be drawn
    return Unigrams(
        np.minimum(keep, 1).astype(np.float32),
        np.repeat(np.arange(len(counts), dtype=np.int32), times),
    )


@njit(nogil=True, cache=True)
def thin(tokens, starts, keep, seed):  # type: ignore[no-untyped-def]
    """The text without the occurrences that subsampling leaves out."""
    kept, ends = np.empty(len(tokens), np.int32), np.zeros(len(starts), np.int64)
    state, n = uint64(seed), 0
    for piece in range(len(starts) - 1):
        for i in range(starts[piece], starts[piece + 1]):
            state += _STEP
            if np.float32(mix(state) >> uint64(40)) * np.float32(1 / 2**24) < keep[tokens[i]]:
                kept[n] = tokens[i]
                n += 1
        ends[piece + 1] = n
    return kept[:n].copy(), ends


@njit(nogil=True, cache=True)
def draw(table, shape, seed):  # type: ignore[no-untyped-def]
    """Negatives, by count^(3/4)."""
    drawn = np.empty(shape, np.int32)
    flat, state = drawn.reshape(-1), uint64(seed)
    for i in range(len(flat)):
        state += _STEP
        flat[i] = table[mix(state) % uint64(len(table))]
    return drawn


@njit(nogil=True, cache=True)
def windows(starts, window, seed):  # type: ignore[no-untyped-def]
    """Word2vec's dynamic window: for each position, where its contexts begin and end (its own
    position included).
    """
    n = starts[-1]
    low, high = np.empty(n, np.int64), np.empty(n, np.int64)
    state = uint64(seed)
    for piece in range(len(starts) - 1):
        for i in range(starts[piece], starts[piece + 1]):
            state += _STEP
            reach = 1 + np.int64(mix(state) % uint64(window))
            low[i], high[i] = max(starts[piece], i - reach), min(starts[piece + 1], i + reach + 1)
    return low, high


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def _scores(v, table, rows, n, scores):  # type: ignore[no-untyped-def]
    """v . u of the first n rows, four at a time: v is then read once for all four."""
    whole = n // 4 * 4
    for t in range(0, whole, 4):
        a, b, c, d = table[rows[t]], table[rows[t + 1]], table[rows[t + 2]], table[rows[t + 3]]
        w, x, y, z = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for k in range(len(v)):
            w += v[k] * a[k]
            x += v[k] * b[k]
            y += v[k] * c[k]
            z += v[k] * d[k]
        scores[t], scores[t + 1], scores[t + 2], scores[t + 3] = w, x, y, z
    for t in range(whole, n):
        u, dot = table[rows[t]], np.float32(0)
        for k in range(len(v)):
            dot += v[k] * u[k]
        scores[t] = dot


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def _move(v, table, rows, n, g, step):  # type: ignore[no-untyped-def]
    """Gradients of n pairs, g times each other: the rows at once, the centre's own when all were
    met. Two rows at a time, but for a row and itself.
    """
    t = 0
    while t < n:
        a = table[rows[t]]
        if t + 1 < n and rows[t] != rows[t + 1]:
            b, g_a, g_b = table[rows[t + 1]], g[t], g[t + 1]
            for k in range(len(v)):
                step[k] += g_a * a[k] + g_b * b[k]
                a[k] += g_a * v[k]
                b[k] += g_b * v[k]
            t += 2
        else:
            g_a = g[t]
            for k in range(len(v)):
                step[k] += g_a * a[k]
                a[k] += g_a * v[k]
            t += 1


@njit(nogil=True, cache=True, inline="always")
def _meet(i, words, low, high, negatives, rows, counts):  # type: ignore[no-untyped-def]
    """The output rows of position i's contexts and negatives. A negative of a centre with six
    contexts moves its row as six pairs would.
    """
    contexts = high[i] - low[i] - 1
    for t in range(contexts):
        rows[t] = words[low[i] + t + (low[i] + t >= i)]  # all but the centre itself
        counts[rows[t]] += 1
    for q in range(negatives.shape[1]):
        rows[contexts + q] = negatives[i, q]
        counts[negatives[i, q]] += contexts


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def _pull(scores, contexts, pairs, lr, times):  # type: ignore[no-untyped-def]
    """In place, how far each pair moves: towards a context, away from a negative."""
    one = np.float32(1)
    for t in range(contexts):
        scores[t] = lr / (one + np.exp(scores[t]))  # lr * (1 - s(v . u))
    for t in range(contexts, pairs):
        scores[t] = -lr * times / (one + np.exp(-scores[t]))


@njit(nogil=True, cache=True, fastmath=FAST)
def sgd_pass(v_table, u_table, text, windows, negatives, weight, rates, counts):  # type: ignore[no-untyped-def]
    """One pass of SGD over a text, in place; the loss of every 16th centre's pairs, and how many.

    Tables hold gathered rows. `text` is the centres and the words, as places in the two; `windows`
    where contexts begin and end; `rates` the learning rate at the beginning and at the end.
    `weight` is what one drawn negative counts for. Counts are of pairs. The pairs of a centre are
    scored first, and then move their rows: contexts, then negatives.
    """
    centres, words = text
    low, high = windows
    v_counts, u_counts = counts
    n, drawn = len(centres), negatives.shape[1]
    most = drawn + (np.max(high - low) if n else 0)
    rows, scores = np.empty(most, np.int32), np.empty(most, np.float32)
    step, loss, met = np.empty(v_table.shape[1], np.float32), 0.0, 0
    for i in range(n):
        contexts = high[i] - low[i] - 1
        if contexts <= 0:
            continue
        pairs, times = contexts + drawn, np.float32(weight * contexts)
        lr, v = np.float32(rates[0] + (rates[1] - rates[0]) * i / n), v_table[centres[i]]
        _meet(i, words, low, high, negatives, rows, u_counts)
        _scores(v, u_table, rows, pairs, scores)
        if i % 16 == 0:
            for t in range(pairs):
                loss += softplus(-scores[t]) if t < contexts else times * softplus(scores[t])
            met += contexts
        _pull(scores, contexts, pairs, lr, times)
        step[:] = 0
        _move(v, u_table, rows, pairs, scores, step)
        v += step
        v_counts[centres[i]] += contexts
    return loss, met


@njit(nogil=True, cache=True)
def batch_pairs(tokens, low, high, size):  # type: ignore[no-untyped-def]
    """The first `size` pairs of a text, in its order."""
    centres, contexts = np.empty(size, np.int32), np.empty(size, np.int32)
    n = 0
    for i in range(len(tokens)):
        for j in range(low[i], high[i]):
            if j != i and n < size:
                centres[n], contexts[n] = tokens[i], tokens[j]
                n += 1
        if n == size:
            break
    return centres[:n].copy(), contexts[:n].copy()


@njit(nogil=True, cache=True, fastmath=FAST)
def batch_gradient(v_rows, u_rows, centres, contexts, negatives, weight, v_counts, u_counts):  # type: ignore[no-untyped-def]
    """Gradient of the summed loss of a batch whose pairs all share the same negatives, by gathered
    rows; and that loss.

    The negative term of all pairs of one centre word is one row of a small matrix product, times
    their number.
    """
    grad_v, grad_u = np.zeros_like(v_rows), np.zeros_like(u_rows)
    pairs, d, one, loss = len(centres), v_rows.shape[1], np.float32(1), 0.0
    for p in range(pairs):
        v, u = v_rows[centres[p]], u_rows[contexts[p]]
        dot = np.float32(0)
        for k in range(d):
            dot += v[k] * u[k]
        loss += softplus(-dot)
        g = -one / (one + np.exp(dot))
        v_counts[centres[p]] += 1
        u_counts[contexts[p]] += 1
        for k in range(d):
            grad_v[centres[p], k] += g * u[k]
            grad_u[contexts[p], k] += g * v[k]
    drawn = u_rows[negatives]  # (S, d)
    scores = np.dot(v_rows, drawn.T)  # (n, S)
    for c in range(len(v_rows)):
        share = np.float32(weight * v_counts[c])
        for s in range(len(negatives)):
            loss += weight * v_counts[c] * softplus(scores[c, s])
            scores[c, s] = share / (one + np.exp(-scores[c, s]))
    grad_v += np.dot(scores, drawn)
    moved = np.dot(scores.T, v_rows)  # (S, d)
    for s in range(len(negatives)):
        # every pair moves it, by `weight`
        u_counts[negatives[s]] += max(1, np.int64(weight * pairs))
        for k in range(d):
            grad_u[negatives[s], k] += moved[s, k]
    return grad_v, grad_u, loss


@njit(nogil=True, cache=True, fastmath=FAST)
def pair_loss(v_table, u_table, centres, contexts, negatives):  # type: ignore[no-untyped-def]
    """The summed loss of fixed pairs with fixed negatives of their own, (n,), (n,), (n, K)."""
    loss, d = 0.0, v_table.shape[1]
    for p in range(len(centres)):
        v = v_table[centres[p]]
        for q in range(-1, negatives.shape[1]):
            u = u_table[contexts[p] if q < 0 else negatives[p, q]]
            dot = np.float32(0)
            for k in range(d):
                dot += v[k] * u[k]
            loss += softplus(-dot if q < 0 else dot)
    return loss
