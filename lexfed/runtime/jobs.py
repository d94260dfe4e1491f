"""A block of the cohort as a job for another process, and its answer: worker processes and the
nodes of a cluster are told the same, and say the same.

A job is JSON: what is wanted, a verb's name, and who is asked with which request. The answer is
messages: the block's sum, made where its replies were made, or the replies; or what went wrong.
"""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lexfed.core.errors import LexfedError
from lexfed.core.importing import place_of
from lexfed.corpus.population import Population
from lexfed.federation import Federation, Requests, Sum, add_replies, add_up
from lexfed.runtime.simulation import Site, sequential
from lexfed.wire import ClientId, Message, Meta, Verb, pack, unpack

CLIENT = "#client"  # between such a process and us: whose reply this is
Wanted = Literal["ask", "total"]
# the answers of all blocks of a cohort, in their order
Results = Callable[[Wanted, Verb, Requests], Iterable[Sequence[Message]]]


class WorkerError(RuntimeError):
    """A fault in another process of ours, as it was seen there; and in one line."""

    def __init__(self, trace: str, line: str) -> None:
        super().__init__(f"in a worker process:\n{trace}")
        self.line = line


@dataclass(frozen=True)
class Job:
    wanted: Wanted
    verb: str
    asked: Sequence[tuple[ClientId, str]]  # each client, and the name its request goes by

    def encoded(self) -> bytes:
        return json.dumps([self.wanted, self.verb, self.asked]).encode()

    @staticmethod
    def decoded(data: bytes) -> "Job":
        wanted, verb, asked = json.loads(data)
        return Job(wanted, verb, [(int(client), str(name)) for client, name in asked])


def distinct(requests: Requests) -> Mapping[int, Message]:
    """The messages by their identity: a broadcast is one, however many it goes to."""
    return {id(message): message for message in requests.values()}


def sizes(people: Population, cohort: Sequence[Sequence[ClientId]]) -> list[int]:
    """How many texts each block has: whoever gives the longest out first is done soonest."""
    return [sum(people.size(client) for client in block) for block in cohort]


def by_blocks(people: Population, results: Results) -> Federation:
    """A federation of what comes back for its blocks."""

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for replies in results("ask", verb, requests):
            for reply in replies:
                meta = {key: value for key, value in reply.meta.items() if key != CLIENT}
                yield int(reply.meta[CLIENT]), Message(reply.arrays, meta, reply.blobs)

    def total(verb: Verb, requests: Requests) -> Sum:
        return add_up(_sum(message) for (message,) in results("total", verb, requests))

    return Federation(range(len(people)), ask, total)


def _sum(message: Message) -> Sum:
    """What was added up elsewhere."""
    refused = Counter(json.loads(str(message.meta["refused"])))
    clients, bytes_up = (int(message.meta[name]) for name in ("clients", "bytes_up"))
    return Sum(unpack(message.arrays), clients, bytes_up, refused)


def without_fault(replies: Sequence[Message]) -> Sequence[Message]:
    """What went wrong there goes wrong here."""
    for reply in replies:
        if "error" in reply.meta:
            raise LexfedError(str(reply.meta["error"]))
        if "traceback" in reply.meta:
            raise WorkerError(str(reply.meta["traceback"]), str(reply.meta["line"]))
    return replies


# --- in the other process -------------------------------------------------------------------------


def answer(site: Site, job: Job, request: Callable[[str], Message]) -> list[Message]:
    """What the clients of a block say; `request` knows the messages by their names."""
    requests = {client: request(name) for client, name in job.asked}
    verb = site.method.verb(job.verb)
    replies = sequential(site)(verb, requests)
    if job.wanted == "total":
        block_sum = add_replies(verb, requests, replies)
        meta: dict[str, Meta] = {
            "clients": block_sum.clients,
            "bytes_up": block_sum.bytes_up,
            "refused": json.dumps(block_sum.refused),
        }
        return [Message(pack(block_sum.update), meta)]
    return [
        Message(reply.arrays, {**reply.meta, CLIENT: client}, reply.blobs)
        for client, reply in replies
    ]


def fault(error: Exception, where: str = "") -> Message:
    """What went wrong, to be said where the run is."""
    if isinstance(error, LexfedError):
        return Message(meta={"error": f"{where}{error}"})
    line = f"{where}{type(error).__name__}{place_of(error)}: {error}"
    trace = "".join(traceback.format_exception(error))
    return Message(meta={"traceback": trace, "line": line})
