"""Uploads as an attacker has them: how the shared parameters moved, and the model they moved from.
Nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from lexfed.agreement.protocol import VOCABULARY
from lexfed.audits.transcript import Recorded
from lexfed.core.params import Params, Rows, Update
from lexfed.privacy.mechanism import deltas
from lexfed.wire import ClientId, below, unpack


@dataclass(frozen=True)
class Upload:
    round: int
    client: ClientId
    model: Params  # what the server had sent
    delta: Mapping[str, Tensor | Rows]
    # what the server had sent beside it, or before: a tokenizer, a word list
    blobs: Mapping[str, bytes]
    # of a sum: the clients that it is of
    cohort: tuple[ClientId, ...] = ()


def uploads(messages: Iterable[Recorded]) -> Iterator[Upload]:
    """Every answer with its request. Who sent nothing that moves a parameter is left out: there is
    nothing to read.
    """
    sent: dict[tuple[int, int, ClientId], Recorded] = {}
    # a word list is sent once, before the first upload
    lists: dict[ClientId, Mapping[str, bytes]] = {}
    # down before up
    for one in sorted(messages, key=lambda m: (m.step, m.ask, m.client, m.direction)):
        if one.direction == "down" and VOCABULARY in one.message.blobs:
            lists[one.client] = one.message.blobs
        if one.verb.kind != "update":
            continue
        key = (one.step, one.ask, one.client)
        if one.direction == "down":
            sent[key] = one
        elif key in sent:
            request = sent.pop(key).message
            model = below("model", request.arrays)
            delta = moves(unpack(one.message.arrays), model)
            if delta:
                blobs = {**lists.get(one.client, {}), **request.blobs}
                yield Upload(one.round, one.client, model, delta, blobs, one.cohort)


def moves(update: Update, model: Params) -> dict[str, Tensor | Rows]:
    """The update per text, if clients say how many they have: scale tells nothing that these
    attacks would miss. Rows of a table that was sent whole are the whole table again: those that
    are not named did not move.
    """
    weight = update.get("weight")
    scale = float(weight) if isinstance(weight, Tensor) and float(weight) else 1.0
    moved = {
        name: value.spread(model[name]) if isinstance(value, Rows) and name in model else value
        for name, value in deltas(update).items()
    }
    return {
        name: value / scale if isinstance(value, Tensor) else value for name, value in moved.items()
    }
