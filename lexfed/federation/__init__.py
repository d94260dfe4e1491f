"""The federation: asking clients, adding up what they say, the loop of rounds, and what a method
is.
"""

from lexfed.federation.asking import Ask, Replies, Requests, sound
from lexfed.federation.loop import Rounds, broadcast, once, paid_ahead_by, paid_by
from lexfed.federation.method import (
    Answer,
    Entry,
    Handler,
    Kind,
    Layer,
    Method,
    ServerProgram,
    Study,
)
from lexfed.federation.state import (
    ClientState,
    ServerState,
    Steps,
    clock,
    fork_of,
    of_fork,
    request,
)
from lexfed.federation.sums import (
    Federation,
    Sum,
    Total,
    add_replies,
    add_up,
    at_once,
    blocks,
    gated,
    plain,
    robust,
    ruled,
    tapped,
)

__all__ = [
    "Answer", "Ask", "ClientState", "Entry", "Federation", "Handler", "Kind", "Layer", "Method",
    "Replies", "Requests", "Rounds", "ServerProgram", "ServerState", "Steps", "Study", "Sum",
    "Total", "add_replies", "add_up", "at_once", "blocks", "broadcast", "clock", "fork_of", "gated",
    "of_fork", "once", "paid_ahead_by", "paid_by", "plain", "request", "robust", "ruled", "sound",
    "tapped",
]  # fmt: skip
