"""Not sending: what goes out instead of an upload, and how often a client kept it to itself.

Who holds back sends an empty message: it is not averaged, like one who dropped out. Under
differential privacy not sending would itself be a message, without noise; so an update of zeros
goes through the mechanism, as any other. (How soon it comes is not hidden: nobody trained for it.)
How often a client held back it keeps for itself; only a simulation looks.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from lexfed.core.seeds import derive
from lexfed.corpus.population import Client
from lexfed.federation import ClientState, of_fork
from lexfed.privacy.mechanism import Mechanism, NoPrivacy
from lexfed.wire import Message, below, pack

# what a client keeps: how often it held back, and how often it was asked
HELD, UPLOADS = "held_back", "uploads"


def may_fall_silent(mechanism: Mechanism) -> bool:
    """Without a promise, who says nothing breaks none."""
    return isinstance(mechanism, NoPrivacy)


def silence(mechanism: Mechanism, message: Message, client: Client) -> Message:
    """What goes out instead of an upload."""
    if may_fall_silent(mechanism):
        return Message()
    zeros = {
        name: torch.zeros_like(value) for name, value in below("model", message.arrays).items()
    }
    clock = int(message.meta["step"]), int(message.meta["ask"])
    seed = derive(client.secret, "silence", *clock, *of_fork(message))
    return Message(pack(mechanism.bound(zeros, 0, 0.0, message, seed)))


def counted(name: str, more: int, before: ClientState, after: ClientState) -> ClientState:
    """The state after, with its count from before (a handler that starts afresh knows of none) and
    this.
    """
    count = int(before.blobs.get(name, b"0")) + more
    return replace(after, blobs={**after.blobs, name: str(count).encode()})


def held_back(clients: Iterable[ClientState]) -> dict[str, int | list[int]]:
    """The experimenter's figures, of what clients keep for themselves: how often they were asked,
    and sent nothing.
    """
    counts = [[int(state.blobs.get(name, b"0")) for name in (UPLOADS, HELD)] for state in clients]
    uploads, held = ([count[i] for count in counts] for i in (0, 1))
    return {"uploads": sum(uploads), "held": sum(held), "by_client": held}
