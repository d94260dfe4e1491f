"""A verb is a value: what a request may hold, what its reply may hold, and what the reply is.

A method brings its verbs. The gate on the client, the server's check of replies, the recorded wire,
the audit and the fuzzers all read them; no list of verbs stands anywhere else.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lexfed.core.errors import PrivacyError, WireError
from lexfed.core.params import ALL_SHARED, ParameterSplit
from lexfed.wire.message import Direction, Message

FLOATS = (torch.float32, torch.float64)
WHOLE = (torch.int32, torch.int64)

# Every request carries the server's clock: the step of its state, and the number of the ask within
# that step.
CLOCK = ("step", "ask", "round")
# how long an update may be, and from where on the server does not take it
BOUND = ("clip", "limit")


@dataclass(frozen=True)
class Array:
    """What an array may be: its dtypes, and its shape.

    A shape is made of numbers, and of names for lengths: where a name stands twice in a message,
    the lengths are equal. `like`: shaped as what the request holds under this name; it may travel
    rounded, or as rows of a table.
    """

    dtypes: tuple[torch.dtype, ...] = FLOATS
    shape: tuple[int | str, ...] | None = ()  # None: any; (): one number
    like: str = ""


NUMBER = Array()
ANY = Array((), None)  # what the server sends is the server's business
UPDATE = Array(FLOATS, None, like="model")


@dataclass(frozen=True)
class Form:
    """What a message may hold, by name. An array whose name ends in "/" stands for everything below
    it.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    meta: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()

    def array(self, name: str) -> Array | None:
        """What the array of this name may be; None: it may not be there."""
        if name in self.arrays:
            return self.arrays[name]
        return next(
            (a for k, a in self.arrays.items() if k.endswith("/") and name.startswith(k)), None
        )


@dataclass(frozen=True, eq=False)
class Verb:
    """What a client can be asked for. Two verbs of one name never meet: each method has its own.

    kind:  update   replies add up; they may move parameters
           list     columns of one length, which are not added up; or nothing at all
           figures  numbers for the experimenter: the client keeps nothing, nobody drops out, bytes
                    are counted apart
    """

    name: str
    down: Form
    up: Form
    kind: Literal["update", "list", "figures"] = "update"
    open: bool = False  # knowingly, nothing is private in it (a warm start by FedAvg)
    # asked before another verb of the same clock, which finds what the client kept of it
    prepares: bool = False
    # whoever asks for it writes what it tells of a user into the ledger
    charged: bool = False

    def form(self, direction: Direction) -> Form:
        return self.down if direction == "down" else self.up

    def split(self, split: ParameterSplit) -> ParameterSplit:
        return ALL_SHARED if self.open else split

    @property
    def moves(self) -> bool:
        """Whether its replies are updates of the model."""
        return "delta/" in self.up.arrays

    def __repr__(self) -> str:
        return f"Verb({self.name!r})"


def check(verb: Verb, direction: Direction, message: Message) -> None:
    """Raise if the message holds a name that its verb does not allow in this direction."""
    form = verb.form(direction)
    for kind, names in (
        ("arrays", [name for name in message.arrays if form.array(name) is None]),
        ("meta", [name for name in message.meta if name not in form.meta]),
        ("blobs", [name for name in message.blobs if name not in form.blobs]),
    ):
        if names:
            raise WireError(f"'{verb.name}' {direction} may not hold '{names[0]}' in its {kind}")


def check_outgoing(
    verb: Verb, message: Message, split: ParameterSplit, parameters: Container[str] | None = None
) -> None:
    """The last gate on the client: nothing outside the verb's form, and no private name, bare or
    under any prefix.

    `parameters` are those there are: a bare name that is none of them ("weight", "loss") is the
    verb's own word. None: nobody knows, and every name may be one.
    """
    check(verb, "up", message)
    private = verb.split(split)
    for name in (*message.arrays, *message.blobs, *message.meta):
        parts = name.partition("#")[0].split("/")
        for start in range(len(parts)):
            parameter = "/".join(parts[start:])
            if start == 0 and parameters is not None and parameter not in parameters:
                continue
            if private.is_private(parameter):
                raise PrivacyError(
                    f"private parameter '{parameter}' was about to be sent with '{verb.name}'; "
                    "nothing was sent"
                )


def well_formed(verb: Verb, request: Message, reply: Message) -> bool:
    return flaw(verb, request, reply) is None


def flaw(verb: Verb, request: Message, reply: Message) -> str | None:
    """What is wrong with a reply, in a few words; None: the server can use it.

    It has the names, dtypes and shapes of its verb; an update is shaped like the model that was
    sent, its rows are whole.
    """
    try:
        check(verb, "up", reply)
    except WireError as error:
        return str(error)
    if "clip" in request.meta and not _bounded(request, reply):
        return "it is longer than was asked for, or no number"
    lengths: dict[str, int] = {}
    for name, value in reply.arrays.items():
        allowed = verb.up.array(name)
        if allowed is None:
            return f"'{name}' was not asked for"
        if allowed.like:
            if not _fits_model(name, value, allowed, request, reply):
                return f"'{name}' does not fit the model that was sent"
        elif not _fits(value, allowed, lengths):
            return f"'{name}' has another dtype or shape than was asked for"
    return None


def _fits(value: Tensor, allowed: Array, lengths: dict[str, int]) -> bool:
    """By dtype and shape; lengths that have a name are remembered, and must be the same again."""
    if allowed.dtypes and value.dtype not in allowed.dtypes:
        return False
    if allowed.shape is None:
        return True
    if value.ndim != len(allowed.shape):
        return False
    wanted = [
        lengths.setdefault(length, got) if isinstance(length, str) else length
        for length, got in zip(allowed.shape, value.shape, strict=True)
    ]
    return wanted == list(value.shape)


# --- updates, which may travel rounded or as rows -------------------------------------------------

# The parts of one entry that travels in several arrays: none is there without the others.
_TOGETHER = {
    "values": ("ids",),
    "counts": ("ids",),
    "nodes": ("ids",),
    "int8": ("scale",),
    "scale": ("int8",),
}
_ROUNDED = {"fp16": (torch.float16,), "int8": (torch.int8,), "scale": FLOATS}


def _fits_model(name: str, value: Tensor, allowed: Array, request: Message, reply: Message) -> bool:
    base, _, part = name.partition("#")
    if f"{base}#ids" in reply.arrays:
        return part != "ids" or _whole_rows(base, request, reply)
    if any(f"{base}#{other}" not in reply.arrays for other in _TOGETHER.get(part, ())):
        return False
    if value.dtype not in (_ROUNDED.get(part, ()) if part else allowed.dtypes):
        return False
    model = request.arrays.get(f"{allowed.like}/{base.partition('/')[2]}")
    if model is None:
        return False
    # a scale of rounded numbers has one number per row
    return value.shape == ((*model.shape[:-1], 1) if part == "scale" else model.shape)


_OF_ROWS: Mapping[str, tuple[torch.dtype, ...]] = {
    "ids": WHOLE,
    "values": (*FLOATS, torch.float16, torch.int8),
    "scale": FLOATS,
    "counts": WHOLE,
    "nodes": WHOLE,
}


def _whole_rows(base: str, request: Message, reply: Message) -> bool:
    """Ascending ids, and every part as long as they are.

    The table is as high and as wide as the request says.
    """
    parts = {name.partition("#")[2]: v for name, v in reply.arrays.items() if _is_of(base, name)}
    if "values" not in parts or any(part not in _OF_ROWS for part in parts):
        return False
    if any(value.dtype not in _OF_ROWS[part] for part, value in parts.items()):
        return False
    ids, values = parts["ids"], parts["values"]
    if ids.ndim != 1 or values.ndim != 2:
        return False
    n = len(ids)
    shapes = {"ids": (n,), "values": (n, values.shape[1]), "scale": (n, 1)}
    if any(value.shape != shapes.get(part, (n,)) for part, value in parts.items()):
        return False
    if values.dtype == torch.int8 and "scale" not in parts:
        return False
    if f"model/{base.removeprefix('delta/')}" in request.arrays:  # sent whole, answered whole
        return False
    return _inside(ids, values, request)


def _is_of(base: str, name: str) -> bool:
    return name.partition("#")[0] == base


def _inside(ids: Tensor, values: Tensor, request: Message) -> bool:
    """Whether the rows are of the table that the request speaks of: its shape was sent, not
    itself.
    """
    if "rows" in request.meta and values.shape[1] != request.meta["width"]:
        return False
    if not len(ids):
        return True
    height = int(request.meta.get("rows", int(ids[-1]) + 1))
    ascending = bool((ids[1:] > ids[:-1]).all())
    return int(ids[0]) >= 0 and ascending and int(ids[-1]) < height


def _bounded(request: Message, reply: Message) -> bool:
    """Under differential privacy: numbers, no longer than they may be, and nothing beside them but
    a centred bit.
    """
    square = 0.0
    for name, value in reply.arrays.items():
        if name.startswith("delta/") and "#" not in name and value.is_floating_point():
            square += float(value.double().square().sum())
        elif (
            name != "unclipped"
            or value.dtype not in FLOATS
            or value.ndim != 0
            or abs(float(value)) != 0.5
        ):
            return False
    return square <= float(request.meta.get("limit", 1e30)) ** 2  # no number is not below anything
