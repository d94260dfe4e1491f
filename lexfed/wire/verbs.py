"""A verb is a value: what a request may hold, what its reply may hold, and what the reply is.

A method brings its verbs. The gate on the client, the server's check of replies (`flaws`), the
recorded wire, the audit and the fuzzers all read them; no list of verbs stands anywhere else.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from lexfed.core.errors import PrivacyError, WireError
from lexfed.core.params import ALL_SHARED, ParameterSplit
from lexfed.wire.message import Direction, Message

FLOATS = (torch.float32, torch.float64)
WHOLE = (torch.int32, torch.int64)

# Every request carries the server's clock: the step of its state, and the number of the ask within
# that step. Every reply says the first two again: an answer to another request, or to none, is not
# taken for one to this.
CLOCK = ("step", "ask", "round")
ECHO = ("step", "ask")
# how long an update may be, and from where on the server does not take it; with a grid, updates
# are whole numbers of its steps; of a forked run its name, as clients' noise is not another fork's
FORK = "fork"
BOUND = ("clip", "limit", "grid", FORK)
# whether an update may name the rows of a table that moved, and leave out the others
NAMED = "named_rows"
# how many clients a secure sum is of. No request says it: a client puts it into the request that
# it answers, from the terms that everybody in the sum has signed
COHORT = "clients"
# a second sum of what was summed before: of the very same clients, or it is not opened
TOGETHER = "together"

# What a number of a reply is at most, unless its verb says otherwise: the sum of thirty thousand
# such integers is exact, that of as many floats is a number.
LARGEST = 2.0**48
# No parameter moves by more than a thousand, at a client with ten thousand texts.
LARGEST_MOVE = 1e7
LONGEST_BLOB = 1 << 28


@dataclass(frozen=True)
class Array:
    """What an array may be: its dtypes, its shape, and the numbers in it.

    A shape is made of numbers, and of names for lengths. A name that stands in the request's meta
    is that number; where another name stands twice in a message, the lengths are equal. `like`:
    shaped as what the request holds under this name ("model": parameters, which may travel rounded;
    "rows": some rows of its tables). Numbers are finite, and from `low` to `high`; the request's
    meta may say less than `high`, under the name `most`.
    """

    dtypes: tuple[torch.dtype, ...] = FLOATS
    shape: tuple[int | str, ...] | None = ()  # None: any; (): one number
    like: str = ""
    low: float = -LARGEST
    high: float = LARGEST
    most: str = ""


NUMBER = Array((torch.float32,))
ANY = Array((), None)  # what the server sends is the server's business
UPDATE = Array(FLOATS, None, like="model", low=-LARGEST_MOVE, high=LARGEST_MOVE)


@dataclass(frozen=True)
class Blob:
    """What bytes may be."""

    text: bool = False  # UTF-8
    longest: int = LONGEST_BLOB  # in bytes
    most: str = ""  # of text, under which name the request's meta says how many characters


@dataclass(frozen=True)
class Form:
    """What a message may hold, by name. An array whose name ends in "/" stands for everything below
    it. Numbers in a reply's meta are whole; a name alone says that nothing more is known of it.

    `needs`: a reply holds all of one of these lists of names; an empty list: nothing at all.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    meta: Mapping[str, Array] | tuple[str, ...] = ()
    blobs: Mapping[str, Blob] | tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()

    def key(self, name: str) -> str | None:
        """Under which of our own names the array stands; None: it may not be there."""
        if name in self.arrays:
            return name
        for folder in self.folders:
            if name.startswith(folder):
                return folder
        return None

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """The names that stand for everything below them."""
        return tuple(name for name in self.arrays if name.endswith("/"))

    def number(self, name: str) -> Array:
        return self.meta[name] if isinstance(self.meta, Mapping) else Array()

    def blob(self, name: str) -> Blob:
        return self.blobs[name] if isinstance(self.blobs, Mapping) else Blob()


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
    phase: bool = False  # one of several exchanges that make a sum
    # answered by each client for itself also where sums are secure: what it says hides itself
    apart: bool = False
    # each client is sent what it lacks, so that requests differ (`since`, rows); else a broadcast
    unlike: bool = False

    def form(self, direction: Direction) -> Form:
        return self.down if direction == "down" else self.up

    def split(self, split: ParameterSplit) -> ParameterSplit:
        return ALL_SHARED if self.open else split

    @property
    def adds_up(self) -> bool:
        """Whether replies are made to be added up."""
        return self.kind != "list"

    @property
    def single(self) -> bool:
        """Whether its replies tell of one client what a sum would not."""
        return self.kind == "list" and bool(self.up.arrays or self.up.blobs) and not self.apart

    @property
    def moves(self) -> bool:
        """Whether its replies are updates of the model."""
        return "delta/" in self.up.arrays

    def __repr__(self) -> str:
        return f"Verb({self.name!r})"


def check(verb: Verb, direction: Direction, message: Message) -> None:
    """Raise if the message holds a name that its verb does not allow in this direction."""
    for kind, name in strays(verb.form(direction), message):
        raise WireError(f"'{verb.name}' {direction} may not hold '{name}' in its {kind}")


def strays(form: Form, message: Message) -> Iterator[tuple[str, str]]:
    """The names that a message of this form may not hold."""
    yield from (("arrays", name) for name in message.arrays if form.key(name) is None)
    yield from (("meta", name) for name in message.meta if name not in form.meta)
    yield from (("blobs", name) for name in message.blobs if name not in form.blobs)


def echoing(request: Message, reply: Message) -> Message:
    """The reply, saying which request it answers."""
    clock = {name: request.meta[name] for name in ECHO if name in request.meta}
    return Message(reply.arrays, {**reply.meta, **clock}, reply.blobs)


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
