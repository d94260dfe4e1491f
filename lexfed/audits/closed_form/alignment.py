"""A secret rotation, found from uploads and public files alone. What every client turns by the same
Q keeps its lengths and angles: whoever sees many turned vectors can look for the public words that
fit.

    covariance  second moments of what moved are Q^T C Q, with C that of public words as often as
                text uses them: their axes, laid on each other, are Q up to signs, and the means
                tell these. Only axes that stand out are found
    gram        uploads of few words, each with a span of its own. What two spans have in common is
                the words that two clients share; of one word, its vector alone, up to length and
                sign.
                    atoms    directions that some spans have in common, one at a time
                    match    |y_i y_j| = |x_a x_b| for every two: four or five atoms name themselves
                    grow     x Q is in a span W iff some w in W has the products with the named
                             ones that x has with their words: every word of every span, one by one
                From d named words on Q is known, as to a colluding client; with fewer, the part of
                it that they span: everything else is left out of sight

Whitening does not stop either: it is public, it leaves angles that everybody can compute, and it
counts every word once, while text does not. What stops `gram` is that no span is exact: more words
than dimensions, Adam, dropout, noise. Nothing here reads a truth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexfed.audits.closed_form import attackers
from lexfed.audits.closed_form.attackers import Attacker, turned_by
from lexfed.audits.closed_form.front_ends import FrontEnd
from lexfed.audits.closed_form.row_names import used
from lexfed.audits.scene import Scene
from lexfed.audits.uploads import Upload
from lexfed.metrics.leakage import Spectrum
from lexfed.vocabulary.tables.rotation import aligned

SPANS = 50  # the smallest: fewer words are easier to tell apart
WALKS = 20  # for every upload, walks through spans in search of a direction of one word
SAME = 1e-4  # 1 - cosine below which two directions are one
CLOSE = 2e-3  # products of unit vectors that differ by less are equal
FITS = 1e-2  # of its length, what may be left of a word that is in a span
SPARE = 4  # equations more than unknowns, before a word is believed to be in a span
COMMON = 30  # words of which one may be in all texts
HEAD = 300  # most frequent words: what the most frequent directions may be
SEEDS, TRIED = 4, 7  # directions that are named at once, of so many most frequent ones
STATES = 20_000  # namings that are followed at a time


@dataclass(frozen=True, eq=False)
class Turned:
    """What is known of Q: x Q basis for a public x, to be held against uploads G basis."""

    rotation: Tensor  # (d, d) float32; right on the span of the basis
    basis: Tensor  # (d, r) float32, orthonormal: the directions that are known
    words: int  # that it was found with


def covariance(
    seconds: Tensor, firsts: Tensor, public: Tensor, counts: Tensor
) -> Tensor:  # (d, d) float32
    """Axes laid on axes. `seconds` (d, d) and `firsts` (d,) are moments of what was seen; counts
    (C,) are how often text uses each public word.
    """
    share = counts.double() / counts.sum()
    x = public.double()
    mean = share @ x
    axes = torch.linalg.eigh((x * share[:, None]).T @ x).eigenvectors
    turned = torch.linalg.eigh(seconds.double()).eigenvectors
    signs = torch.sign((mean @ axes) * (firsts.double() @ turned))
    guess: Tensor = (axes * torch.where(signs == 0, 1.0, signs)) @ turned.T
    return guess.float()


def gram(spectra: Sequence[Spectrum], public: Tensor, seed: int = 0) -> Turned | None:
    """None: the spans have too little in common. `public` (C, d) is in the order of frequency."""
    spans = [one.axes[:, : one.sharp_rank] for one in spectra if one.sharp_rank is not None]
    spans = [axes for axes in spans if 0 < axes.shape[1] <= public.shape[1] // 2]
    spans = sorted(spans, key=lambda axes: axes.shape[1])[:SPANS]
    if len(spans) < 2:
        return None
    x, rng = normalize(public.double()), np.random.default_rng(seed)
    found = atoms(spans, rng)
    turned = _named(found, spans, x)
    if turned is not None or not len(found):
        return turned
    # a word that everybody has is all that is left of any walk: it is taken out of the spans, and
    # one frequent word after the other out of the public ones
    rest = [_beside(axes, found[0]) for axes in spans]
    others = atoms([axes for axes in rest if axes.shape[1]], rng)
    tries = (x - torch.outer(x @ x[word], x[word]) for word in range(min(COMMON, len(x))))
    named = (_named(others, rest, normalize(one)) for one in tries)
    return next((one for one in named if one is not None), None)


def _named(found: Tensor, spans: Sequence[Tensor], x: Tensor) -> Turned | None:
    named = match(found, x)
    return _turned(grow(dict(named), _spaces(spans), x), x) if named else None


def _beside(axes: Tensor, y: Tensor) -> Tensor:  # (d, r)
    """What a span is without one of its directions."""
    u, values, _ = torch.linalg.svd(axes - torch.outer(y, y @ axes), full_matrices=False)
    rest: Tensor = u[:, values > 1e-2]
    return rest


def atoms(spans: Sequence[Tensor], rng: np.random.Generator) -> Tensor:  # (A, d)
    """Directions that spans have in common, those of the most spans first: from a span, meet others
    in any order as long as something is left, until it is one direction.
    """
    found: list[Tensor] = []
    for _ in range(WALKS * len(spans)):
        order = rng.permutation(len(spans))
        left = spans[order[0]]
        for other in order[1:]:
            both = meet(left, spans[other])
            left = both if both.shape[1] else left
            if left.shape[1] == 1:
                break
        if left.shape[1] == 1 and all(abs(float(left[:, 0] @ y)) < 1 - SAME for y in found):
            found.append(left[:, 0])
    if not found:
        return torch.empty(0, len(spans[0]), dtype=torch.float64)
    y = torch.stack(found)
    held = torch.stack([(y @ axes).norm(dim=1) > 1 - SAME for axes in spans]).sum(0)
    return y[held.argsort(descending=True, stable=True)]


def meet(one: Tensor, other: Tensor) -> Tensor:  # (d, r)
    """An orthonormal basis of what two spans have in common."""
    u, cosines, _ = torch.linalg.svd(one.T @ other, full_matrices=False)
    both: Tensor = one @ u[:, cosines > 1 - SAME]
    return both


def match(found: Tensor, x: Tensor) -> list[tuple[int, Tensor]]:
    """Words and their directions, signs set right: by products with each other alone."""
    best: list[tuple[int, Tensor]] = []
    for seeds in combinations(range(min(len(found), TRIED)), SEEDS):
        for words, signs in _namings(found[list(seeds)], x[:HEAD]):
            named = [(w, s * found[i]) for i, w, s in zip(seeds, words, signs, strict=True)]
            rest = [y for i, y in enumerate(found) if i not in seeds]
            named += _also(named, rest, x)
            best = named if len(named) > len(best) else best
        if len(best) >= SEEDS + 2:  # two more agree with all of them: no chance
            return best
    return []


def _namings(y: Tensor, head: Tensor) -> list[tuple[list[int], list[float]]]:
    """All words and signs with which these directions have the right products."""
    products, wanted = head @ head.T, y @ y.T
    words = torch.arange(len(head))[:, None]
    signs = torch.ones(len(head), 1, dtype=torch.float64)
    for place in range(1, len(y)):
        cosines = products[words] * signs[:, :, None]  # (S, place, H)
        goal = wanted[place, :place, None]
        parts = []
        for sign in (1.0, -1.0):
            state, word = ((sign * cosines - goal).abs() < CLOSE).all(1).nonzero(as_tuple=True)
            parts.append((state, word, torch.full_like(word, int(sign)).double()))
        state, word, sign_ = (torch.cat(part) for part in zip(*parts, strict=True))
        words = torch.cat([words[state], word[:, None]], 1)[:STATES]
        signs = torch.cat([signs[state], sign_[:, None]], 1)[:STATES]
    return list(zip(words.tolist(), signs.tolist(), strict=True))


def _also(
    named: Sequence[tuple[int, Tensor]], rest: Sequence[Tensor], x: Tensor
) -> list[tuple[int, Tensor]]:
    """More directions whose products with all named ones are those of one word."""
    words = [word for word, _ in named]
    y = torch.stack([direction for _, direction in named])
    products, also = x @ x[words].T, []  # (C, n)
    for direction in rest:
        errors = torch.stack([(products - s * (y @ direction)).abs().amax(1) for s in (1, -1)])
        sign, word = divmod(int(errors.argmin()), len(x))
        if float(errors.min()) < CLOSE and word not in words:
            also.append((word, (1 - 2 * sign) * direction))
    return also


def _spaces(spans: Sequence[Tensor]) -> list[Tensor]:
    """Spans and what any two have in common, the smallest first: those take the fewest words."""
    pairs = (meet(one, other) for one, other in combinations(spans, 2))
    return sorted([*spans, *(both for both in pairs if both.shape[1])], key=lambda w: w.shape[1])


def grow(known: dict[int, Tensor], spaces: Sequence[Tensor], x: Tensor) -> dict[int, Tensor]:
    """Named words name the others of every space that they are enough for."""
    left = list(spaces)
    while len(known) < 2 * x.shape[1]:
        read = [space for space in left if space.shape[1] + SPARE <= len(known)]
        if not read:
            break
        space = read[0]
        left = [other for other in left if other is not space]
        known |= {word: y for word, y in _inside(space, known, x) if word not in known}
    return known


def _inside(space: Tensor, known: dict[int, Tensor], x: Tensor) -> list[tuple[int, Tensor]]:
    """The public words of a space, with their directions in it: least squares for every word."""
    size = space.shape[1]
    words = list(known)[: size + 4 * SPARE]
    seen = torch.stack([known[word] for word in words]) @ space  # (m, r)
    products = x @ x[words].T  # (C, m)
    parts = products @ torch.linalg.pinv(seen, rtol=1e-6).T  # (C, r)
    rest = (products - parts @ seen.T).norm(dim=1) / products.norm(dim=1).clamp(min=1e-9)
    lengths = parts.norm(dim=1)
    hits = ((rest < FITS) & ((lengths - 1).abs() < FITS)).nonzero()[:, 0].tolist()
    # more words than directions: so little is known yet that anything fits
    return [(word, space @ (parts[word] / lengths[word])) for word in hits if len(hits) <= size]


def _turned(known: dict[int, Tensor], x: Tensor) -> Turned:
    """Procrustes, once more without the pairs that do not fit the others."""
    words, y = list(known), torch.stack(list(known.values()))
    for _ in range(2):
        guess = aligned(x[words], y).double()
        near = ((x[words] @ guess) * y).sum(1) > 1 - FITS
        words, y = [w for w, good in zip(words, near, strict=True) if good], y[near]
    _, values, axes = torch.linalg.svd(y, full_matrices=False)
    basis = axes[values > 1e-2 * values[0]].T
    return Turned(aligned(x[words], y), basis.float(), len(words))


# --- on the uploads of a scene --------------------------------------------------------------------

Finder = Callable[[Sequence[Upload], Scene, FrontEnd], Attacker | None]


def _by_covariance(seen: Sequence[Upload], scene: Scene, front: FrontEnd) -> Attacker | None:
    public = scene.public.vectors
    moments = [_moments(upload, front) for upload in seen]
    sums = [sum(part) for part in zip(*(one for one in moments if one is not None), strict=True)]
    if public is None or not sums:
        return None
    second, first = (torch.as_tensor(one) for one in sums)
    vectors = normalize(public) if scene.assembly.config.defences.normalise else public
    guess = covariance(second, first, vectors, used(tuple(front.words)))
    return Attacker("covariance", lambda others: others @ guess)


def _moments(upload: Upload, front: FrontEnd) -> tuple[Tensor, Tensor] | None:
    """Of an upload's first matrices G, each of length 1: G^T G, and G^T b, where b is how the bias
    beside it moved: sum_t delta_t x_t^T weighted by sum_t delta_t points along the mean of x.
    """
    seconds, firsts = [], []
    for name, value in upload.delta.items():
        bias = upload.delta.get(name.replace("weight", "bias"))
        if isinstance(value, Tensor) and front.is_first(name, value) and isinstance(bias, Tensor):
            g = value.double() / value.double().norm().clamp(min=torch.finfo(torch.float64).tiny)
            seconds.append(g.T @ g)
            firsts.append(g.T @ normalize(bias.double(), dim=0))
    if not seconds or not all(bool(one.isfinite().all()) for one in seconds):
        return None
    return torch.stack(seconds).sum(0), torch.stack(firsts).sum(0)


def _by_gram(seen: Sequence[Upload], scene: Scene, front: FrontEnd) -> Attacker | None:
    spectra = [attackers.spectrum([upload], front.is_first) for upload in seen]
    public = scene.public.vectors
    if public is None:
        return None
    turned = gram([one for one in spectra if one is not None], public)
    return turned_by("gram", turned.rotation, turned.basis) if turned is not None else None


FINDERS: Mapping[str, Finder] = {"covariance": _by_covariance, "gram": _by_gram}
