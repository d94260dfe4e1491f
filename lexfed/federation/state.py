"""What a server and a client know between two steps."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from lexfed.core.params import Params
from lexfed.privacy.accounting import Ledger
from lexfed.wire import Message, Meta, under
from lexfed.wire.verbs import FORK


@dataclass(frozen=True)
class ServerState:
    """What the server knows between two steps: exactly what a resumed run would miss."""

    params: Params = field(default_factory=dict)
    opt_state: Mapping[str, Params] = field(default_factory=dict)
    mechanism_state: Params = field(default_factory=dict)
    # a word list that was agreed on, a tokenizer
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    ledger: Ledger = ()  # what was released with noise, and has to be paid for
    round: int = 0
    step: int = 0  # counts yields: the server's clock
    # of a run that was forked from another: the name of each fork on its way
    forks: tuple[str, ...] = ()
    done: frozenset[str] = frozenset()

    def with_blob(self, name: str, data: bytes) -> "ServerState":
        return replace(self, blobs={**self.blobs, name: data})


Steps = Generator[ServerState, None, ServerState]


def request(state: ServerState, ask: int, **meta: Meta) -> Message:
    """The model, stamped with the clock: the state's step, and the number of this ask within the
    step. Its names are in order, as they are in a file: a client meets the same model whether it
    was made here, was read from a checkpoint, or came to a worker.
    """
    params = dict(sorted(state.params.items()))
    fork = fork_of(state) if "clip" in meta else {}  # whoever adds noise must know of it
    return Message(under("model", params), {**clock(state, ask).meta, **meta, **fork})


def clock(state: ServerState, ask: int) -> Message:
    """The clock alone, where the model has no part in what is asked."""
    return Message(meta={"step": state.step, "ask": ask, "round": state.round})


def fork_of(state: ServerState) -> dict[str, Meta]:
    """What a request says where noise is added to its reply: two forks of one run ask the same
    clients at the same clock, and noise that both share would fall out of their difference.
    """
    if not state.forks:
        return {}
    return {FORK: blake2b("/".join(state.forks).encode(), digest_size=16).hexdigest()}


def of_fork(message: Message) -> tuple[str, ...]:
    """The end of the path that a client's noise is derived by."""
    return (str(message.meta[FORK]),) if FORK in message.meta else ()


@dataclass(frozen=True)
class ClientState:
    """What a client keeps between rounds. It never leaves the client."""

    params: Params = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    # what came from the server, not to be changed: clients of one machine that hold the same share
    # one copy
    held: Params = field(default_factory=dict)
