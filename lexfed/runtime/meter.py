"""Counting what crosses the wire, from the messages themselves: a layer around a federation."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lexfed.core.params import Rows
from lexfed.federation import Federation, Requests, Sum
from lexfed.wire import ClientId, Message, Verb, size


@dataclass
class Tally:
    """What was seen since the last round's record. Evaluation is counted apart: a deployment need
    not do it.
    """

    clients: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # replies that were not taken, by reason
    bytes_up: int = 0
    bytes_down: int = 0
    evaluation_bytes_up: int = 0
    evaluation_bytes_down: int = 0
    loss: float | None = None
    seconds: float = 0.0
    evaluation_seconds: float = 0.0

    def reset(self) -> None:
        vars(self).update(vars(Tally()))

    def refuse(self, reasons: Counter[str]) -> None:
        """Write these down here, and nowhere else."""
        self.refused = dict(Counter(self.refused) + reasons)
        reasons.clear()


def metered(federation: Federation, tally: Tally) -> Federation:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        _count_down(tally, verb, requests)
        try:
            for client, reply in federation.ask(verb, requests):
                _count_up(tally, verb, size(reply))
                yield client, reply
        finally:
            tally.refuse(federation.refused)

    def total(verb: Verb, requests: Requests) -> Sum:
        _count_down(tally, verb, requests)
        result = federation.total(verb, requests)
        _count_up(tally, verb, result.bytes_up)
        tally.clients += result.clients
        tally.refuse(result.refused + federation.refused)
        federation.refused.clear()
        tally.loss = _mean_loss(result)
        return result

    return replace(federation, ask=ask, total=total)


def _count_down(tally: Tally, verb: Verb, requests: Requests) -> None:
    sizes = {
        id(message): size(message) for message in {id(m): m for m in requests.values()}.values()
    }
    down = sum(sizes[id(message)] for message in requests.values())
    if verb.kind == "figures":
        tally.evaluation_bytes_down += down
    else:
        tally.bytes_down += down


def _count_up(tally: Tally, verb: Verb, up: int) -> None:
    if verb.kind == "figures":
        tally.evaluation_bytes_up += up
    else:
        tally.bytes_up += up


def _mean_loss(total: Sum) -> float | None:
    loss, weight = total.update.get("loss"), total.update.get("weight")
    if loss is None or weight is None or isinstance(loss, Rows) or isinstance(weight, Rows):
        return None
    return (loss / weight).item() if weight != 0 else None
