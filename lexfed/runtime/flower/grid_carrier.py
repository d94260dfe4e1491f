"""Letters over a Flower Grid.

A letter is two byte arrays in one record, its head and its body. Flower stores arrays by their
content, so the body of a broadcast lies on the SuperLink once, whoever it is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from lexfed.runtime.correspondence import Arrived, NodeId, Ticket

RECORD, KIND = "letter", "query.letter"


@dataclass(frozen=True)
class GridCarrier:
    grid: Grid
    lifetime: float = 3600.0  # seconds that a letter may be on its way

    def nodes(self) -> Sequence[NodeId]:
        return list(self.grid.get_node_ids())

    def send(self, node: NodeId, head: bytes, body: bytes) -> Ticket | None:
        content = RecordDict({RECORD: ArrayRecord({"head": _array(head), "body": _array(body)})})
        message = Message(content, node, KIND, ttl=self.lifetime)
        sent = list(self.grid.push_messages([message]))
        return sent[0] if sent and sent[0] else None

    def collect(self, tickets: Sequence[Ticket]) -> Sequence[Arrived]:
        replies = self.grid.pull_messages(list(tickets))
        return [_arrived(reply) for reply in replies]


def _array(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)


def _arrived(reply: Message) -> Arrived:
    """A reply that is an error, or no letter, is one that was lost."""
    ticket = reply.metadata.reply_to_message_id
    if reply.has_error():
        return Arrived(ticket)
    try:
        record: Any = reply.content[RECORD]
        return Arrived(ticket, bytes(record["head"].data), bytes(record["body"].data))
    except (KeyError, AttributeError, TypeError):
        return Arrived(ticket)
