"""Numbers as masks can hide them: whole steps, modulo a power of two.

    client:  x -> round(x / step)  mod 2^bits,   |x| <= bound, else x is cut to it, and that is told
    server:  sum mod 2^bits -> the one whole number of that residue below 2^(bits-1) -> times step

The step is a power of two, common to all clients, and follows from what everybody was told: the
number of clients n and the bound of an entry. It is the smallest for which n bounds fit:
n bound / step <= 2^(bits-2). So the sum of whole numbers is exact, and off from the sum of the
numbers themselves by half a step for each client at most.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.secure import dense_rows
from lexfed.secure.keys import Ring
from lexfed.wire import Array, Message, Verb, below
from lexfed.wire.verbs import WHOLE

CUT = "#cut"  # beside the entries: how many clients had to cut something to fit


@dataclass(frozen=True)
class Slot:
    """Where an entry of a reply lies in the long vector, and how it is written there."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    step: float
    bound: float  # in steps

    @property
    def length(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    slots: tuple[Slot, ...]
    bits: int

    @property
    def length(self) -> int:
        return sum(slot.length for slot in self.slots)


def layout(verb: Verb, request: Message, clients: int, bits: int, largest: float) -> Layout:
    """The slots of a verb's replies: a function of the request, never of a reply.

    Under differential privacy nobody says that something was cut: no noise covers it. A clip is far
    below any bound.
    """
    entries = list(_entries(verb, request))
    if "clip" not in request.meta:
        entries.append((CUT, (), torch.int64, 1.0))
    return Layout(tuple(_slot(*entry, clients, bits, largest) for entry in entries), bits)


def encode(slots: Layout, reply: Params) -> Ring:
    """A reply as numbers of the ring, and a 1 if something had to be cut. What it does not hold is
    zero: who holds back adds nothing.
    """
    parts: list[npt.NDArray[np.int64]] = []
    cut = False
    for slot in slots.slots:
        value = torch.tensor(int(cut)) if slot.name == CUT else reply.get(slot.name)
        steps = (
            torch.zeros(slot.length, dtype=torch.int64) if value is None else _steps(value, slot)
        )
        fits = steps.clamp(-int(slot.bound), int(slot.bound))
        cut = cut or not torch.equal(fits, steps) or _no_numbers(value)
        parts.append(fits.numpy())
    whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return whole.view(np.uint64) if slots.bits == 64 else whole.astype(np.uint32)


def nothing(slots: Layout) -> Ring:
    if slots.bits == 64:
        return np.zeros(slots.length, np.uint64)
    return np.zeros(slots.length, np.uint32)


def view(slots: Layout, numbers: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> Ring:
    """What travels as signed numbers, as numbers of the ring."""
    return numbers.view(np.uint64) if slots.bits == 64 else numbers.view(np.uint32)


def decode(slots: Layout, total: Ring) -> Params:
    """What a sum of the ring says. All zeros: nobody added anything."""
    if not total.any():
        return {}
    signed = total.view(np.int64 if slots.bits == 64 else np.int32).astype(np.int64)
    ends = np.cumsum([slot.length for slot in slots.slots])[:-1]
    return {
        slot.name: _value(torch.from_numpy(part), slot)
        for slot, part in zip(slots.slots, np.split(signed, ends), strict=True)
    }


def _value(steps: Tensor, slot: Slot) -> Tensor:
    shaped = steps.reshape(slot.shape)
    return shaped if slot.dtype == torch.int64 else (shaped.double() * slot.step).to(slot.dtype)


def _steps(value: Tensor, slot: Slot) -> Tensor:
    """Rounded to the nearest; what is no number is nothing."""
    flat = value.reshape(-1)
    if slot.dtype == torch.int64:
        return flat.long()
    steps = torch.nan_to_num(flat.double() / slot.step, nan=0.0, posinf=0.0, neginf=0.0).round()
    # a double above 2^62 must not be made a whole number
    return steps.clamp(-(2.0**62), 2.0**62).long()


def _no_numbers(value: Tensor | None) -> bool:
    return value is not None and not bool(torch.isfinite(value).all())


def _slot(
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    high: float,
    clients: int,
    bits: int,
    largest: float,
) -> Slot:
    room = 2 ** (bits - 2) // clients  # steps that a client may add
    if dtype == torch.int64:
        return Slot(name, tuple(shape), dtype, 1.0, min(high, room))
    bound = min(high, largest)
    step = 2.0 ** math.ceil(math.log2(bound / room))
    return Slot(name, tuple(shape), dtype, step, math.floor(bound / step))


def _entries(
    verb: Verb, request: Message
) -> Iterator[tuple[str, tuple[int, ...], torch.dtype, float]]:
    """Names, shapes, dtypes, and what a number is at most: as the verb and the request say."""
    for key, form in sorted(verb.up.arrays.items()):
        if form.like == "model" and key.endswith("/"):
            gridded = "grid" in request.meta
            for name, value in sorted(below("model", request.arrays).items()):
                dtype = torch.int64 if gridded else value.dtype
                yield f"{key}{name}", tuple(value.shape), dtype, math.inf if gridded else form.high
        elif form.like == "rows" and key.endswith("/"):
            most = float(request.meta.get("most_pairs", math.inf))
            for table, rows, width in dense_rows.tables(request):
                name = f"{key}{table}"
                yield f"{name}{dense_rows.VALUES}", (rows, width), torch.float32, form.high
                yield f"{name}{dense_rows.COUNTS}", (rows,), torch.int64, most
                yield f"{name}{dense_rows.NODES}", (rows,), torch.int64, 1.0
                longest = width * form.high**2
                yield f"{name}{dense_rows.SQUARES}", (rows,), torch.float64, longest
        else:
            yield key, _shape(verb, key, form, request), _dtype(form), _high(form, request)


def _shape(verb: Verb, key: str, form: Array, request: Message) -> tuple[int, ...]:
    known = None if form.shape is None or form.like else form.shape
    lengths = [n if isinstance(n, int) else request.meta.get(n) for n in known or ()]
    if known is None or not all(isinstance(length, int) for length in lengths):
        raise ConfigError(
            f"'{key}' of '{verb.name}' has no shape that all clients know: it can't be added up "
            "under masks"
        )
    return tuple(int(length) for length in lengths if length is not None)


def _dtype(form: Array) -> torch.dtype:
    return torch.int64 if set(form.dtypes) <= set(WHOLE) else form.dtypes[0]


def _high(form: Array, request: Message) -> float:
    told = request.meta.get(form.most, math.inf)
    return min(max(abs(form.low), form.high), float(told))
