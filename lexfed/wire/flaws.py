"""What is wrong with a reply: the one place in which the server judges what a client sent.

Whatever a client sends, nothing here raises, and no word of the reply is repeated: the reasons are
ours, and they are counted in the record. A reply with a flaw counts as none.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from lexfed.core.params import Params, squared_length
from lexfed.wire.message import Message, Meta, below
from lexfed.wire.verbs import (
    ECHO,
    LARGEST,
    LARGEST_MOVE,
    NAMED,
    WHOLE,
    Array,
    Blob,
    Form,
    Verb,
    strays,
)

NO_NUMBER, OUT_OF_RANGE = "is no number", "is out of its range"
STRAY, STALE, MISSING = "a name that was not asked for", "stale", "something is missing"
TOO_LONG = "longer than the clip"
_DTYPE, _SHAPE, _MISFIT = "has another dtype", "has another shape", "does not fit what was sent"


def well_formed(verb: Verb, request: Message, reply: Message) -> bool:
    return flaw(verb, request, reply) is None


def flaw(verb: Verb, request: Message, reply: Message) -> str | None:
    """What is wrong with a reply, in a few words; None: the server can use it.

    It has the names, dtypes, shapes and ranges of its verb, it answers this request, and an update
    fits the model or the tables that the request speaks of.
    """
    return next(_flaws(verb.up, request, reply, ranges=True), None)


def misshapen(verb: Verb, request: Message, reply: Message) -> str | None:
    """The same without a look at how large numbers are and how long an update is: for whoever made
    them.
    """
    return next(_flaws(verb.up, request, reply, ranges=False), None)


def left_the_numbers(reason: str) -> bool:
    """Whether this is what training that explodes looks like."""
    return reason.endswith((NO_NUMBER, OUT_OF_RANGE))


def _flaws(form: Form, request: Message, reply: Message, ranges: bool) -> Iterator[str]:
    own = Message(reply.arrays, {n: v for n, v in reply.meta.items() if n not in ECHO}, reply.blobs)
    if next(strays(form, own), None) is not None:
        yield STRAY
    if any(reply.meta.get(name) != request.meta.get(name) for name in ECHO):
        yield STALE
    if _incomplete(form, request, own):
        yield MISSING
    for name, number in own.meta.items():
        if not _whole(number, form.number(name), request):
            yield f"'{name}' {OUT_OF_RANGE}"
    for name, data in own.blobs.items():
        if fault := _of_blob(data, form.blob(name), request):
            yield f"'{name}' {fault}"
    if "clip" not in request.meta:
        yield from _of_arrays(form, request, reply, ranges)
        return
    fault = _beyond_clip(request, reply) if ranges else ""
    # one pass is enough: no number of an update is larger than the whole is long
    measured = not fault and float(request.meta.get("limit", math.inf)) < LARGEST_MOVE
    yield from _of_arrays(form, request, reply, ranges and not measured)
    if fault:
        yield fault


def _incomplete(form: Form, request: Message, reply: Message) -> bool:
    """Under differential privacy an update is whole: what is left out would be told without
    noise.
    """
    if "clip" in request.meta:
        return any(f"delta/{name}" not in reply.arrays for name in below("model", request.arrays))
    names = {*reply.arrays, *reply.meta, *reply.blobs}
    held = (names.issuperset(needed) if needed else not names for needed in form.needs)
    return bool(form.needs) and not any(held)


def _whole(number: Meta, allowed: Array, request: Message) -> bool:
    return type(number) is int and allowed.low <= number <= _high(allowed, request.meta)


def _high(allowed: Array, told: Mapping[str, Meta]) -> float:
    return min(allowed.high, float(told.get(allowed.most, math.inf)))


def _of_blob(data: bytes, allowed: Blob, request: Message) -> str:
    if len(data) > allowed.longest:
        return "is too long"
    if not allowed.text:
        return ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "is no text"
    return "is too long" if len(text) > float(request.meta.get(allowed.most, math.inf)) else ""


# --- arrays ---------------------------------------------------------------------------------------

# of what the verb leaves open: all real numbers that can be sent
_REAL = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def _of_arrays(form: Form, request: Message, reply: Message, ranges: bool) -> Iterator[str]:
    """The arrays one by one, but those of an update by its entries: one may travel in several
    arrays.
    """
    lengths = {name: int(n) for name, n in request.meta.items() if type(n) is int}
    entries: dict[str, dict[str, Tensor]] = {}
    for name, value in reply.arrays.items():
        key = form.key(name) or ""
        if form.arrays[key].like:
            base, _, part = name.partition("#")
            entries.setdefault(base, {})[part] = value
        elif fault := _of_array(value, form.arrays[key], lengths, request.meta):
            yield f"'{key}' {fault}"
    for base, parts in entries.items():
        key = form.key(base) or ""
        allowed, name = form.arrays[key], base.removeprefix(key)
        if allowed.like == "rows":
            fault = _of_rows(name, parts, allowed, request)
        else:
            fault = _of_parameter(name, parts, allowed, request, ranges)
        if fault:
            yield f"'{key}' {fault}"


def _of_array(
    value: Tensor,
    allowed: Array,
    lengths: dict[str, int],
    told: Mapping[str, Meta],
    ranges: bool = True,
) -> str:
    """By dtype, shape and range; lengths that have a name are remembered, and must be the same
    again.
    """
    if value.dtype not in (allowed.dtypes or _REAL):
        return _DTYPE
    if allowed.shape is not None:
        if value.ndim != len(allowed.shape):
            return _SHAPE
        wanted = [
            lengths.setdefault(length, got) if isinstance(length, str) else length
            for length, got in zip(allowed.shape, value.shape, strict=True)
        ]
        if wanted != list(value.shape):
            return _SHAPE
    return _beyond(value, allowed.low, _high(allowed, told)) if ranges else ""


def _beyond(value: Tensor, low: float, high: float) -> str:
    """In one pass: NaN is both the least and the largest."""
    if value.numel() == 0:
        return ""
    least, largest = (float(end) for end in torch.aminmax(value))
    if not (math.isfinite(least) and math.isfinite(largest)):
        return NO_NUMBER
    return "" if low <= least and largest <= high else OUT_OF_RANGE


# --- updates, which may travel rounded or as rows -------------------------------------------------

_SMALLEST = 2.0**-126  # of the float32 numbers that are not below all others


def _of_parameter(name: str, parts: Params, allowed: Array, request: Message, ranges: bool) -> str:
    """How a parameter moved: in its own dtype, in half precision, in int8 with a scale per row, in
    whole steps of a grid, or some rows of it, where the request says so.
    """
    model = request.arrays.get(f"{allowed.like}/{name}")
    if model is not None and parts.keys() == {"ids", "values"} and NAMED in request.meta:
        return _of_some_rows(parts, model, len(model) if model.ndim == 2 else 0, allowed, request)
    rounds = "clip" not in request.meta and model is not None and model.dtype == torch.float32
    if model is None or not (parts.keys() == {""} or rounds):
        return _MISFIT
    shape = tuple(model.shape)
    if parts.keys() == {""}:
        gridded = "grid" in request.meta
        kinds = (torch.int64,) if gridded else (model.dtype,)
        largest = LARGEST if gridded else allowed.high
        forms = {"": Array(kinds, shape, low=-largest, high=largest)}
    elif parts.keys() == {"fp16"}:
        forms = {"fp16": Array((torch.float16,), shape, low=allowed.low, high=allowed.high)}
    elif parts.keys() == {"int8", "scale"} and shape:
        forms = {"int8": Array((torch.int8,), shape), "scale": _scale((*shape[:-1], 1), allowed)}
    else:
        return _MISFIT
    return _of_parts(parts, forms, {}, request, ranges)


def _of_rows(name: str, parts: Params, allowed: Array, request: Message) -> str:
    """How some rows of a table moved: ascending ids, and every part as long as they are.

    The table is as high and as wide as the request says. How many clients moved a row is the
    server's to count.
    """
    table = request.arrays.get(f"{allowed.like}/{name}#values")
    if table is None or parts.keys() - {"scale", "counts"} != {"ids", "values"}:
        return _MISFIT
    return _of_some_rows(parts, table, int(request.meta.get("rows", 0)), allowed, request)


def _of_some_rows(
    parts: Params, table: Tensor, height: int, allowed: Array, request: Message
) -> str:
    if table.ndim != 2:
        return _MISFIT
    rounded = parts["values"].dtype == torch.int8
    if rounded != ("scale" in parts):
        return _MISFIT
    kinds = (torch.int8,) if rounded else (table.dtype, torch.float16)
    limits = (-128.0, 127.0) if rounded else (allowed.low, allowed.high)
    forms = {
        "ids": Array(WHOLE, ("n",), low=0, high=height - 1),
        "values": Array(kinds, ("n", "width"), low=limits[0], high=limits[1]),
        "scale": _scale(("n", 1), allowed),
        "counts": Array(WHOLE, ("n",), low=0, most="most_pairs"),
    }
    fault = _of_parts(parts, forms, {"width": table.shape[1]}, request)
    if fault:
        return fault
    ids = parts["ids"]
    return "" if bool((ids[1:] > ids[:-1]).all()) else OUT_OF_RANGE


def _scale(shape: tuple[int | str, ...], allowed: Array) -> Array:
    """What int8 steps are multiplied by: never so much that a number leaves its range."""
    return Array((torch.float32,), shape, low=_SMALLEST, high=allowed.high / 127)


def _of_parts(
    parts: Params,
    forms: Mapping[str, Array],
    lengths: dict[str, int],
    request: Message,
    ranges: bool = True,
) -> str:
    faults = (
        _of_array(parts[p], forms[p], lengths, request.meta, ranges) for p in forms if p in parts
    )
    return next((fault for fault in faults if fault), "")


def _beyond_clip(request: Message, reply: Message) -> str:
    """Under differential privacy: numbers, no longer than they may be, and nothing beside them but
    a centred bit.
    """
    square = 0.0
    for name, value in reply.arrays.items():
        if name.startswith("delta/"):
            square += squared_length(value) if value.dtype in _REAL else math.inf
        elif name != "unclipped":
            return STRAY
        elif value.dtype not in _REAL or value.numel() != 1 or abs(float(value)) != 0.5:
            return f"'unclipped' {OUT_OF_RANGE}"
    length = math.sqrt(square) * float(request.meta.get("grid", 1.0))
    return "" if length <= float(request.meta.get("limit", math.inf)) else TOO_LONG
