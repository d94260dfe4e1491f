"""Counting what crosses the wire, from the messages themselves: a layer around a federation."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lexfed.core.params import Rows
from lexfed.federation import Federation, Requests, Sum
from lexfed.wire import ClientId, Message, Verb, size


@dataclass
class Tally:
    """What was seen since the last round's record. Evaluation is counted apart: a deployment need
    not do it.
    """

    clients: int = 0  # that sent an update of the model
    # the most that answered one exchange of another verb; None: updates were asked for, and count
    others: int | None = 0
    refused: dict[str, int] = field(default_factory=dict)  # replies that were not taken, by reason
    bytes_up: int = 0
    bytes_down: int = 0
    evaluation_bytes_up: int = 0
    evaluation_bytes_down: int = 0
    cut: int = 0  # clients that had to cut their numbers to fit a secure sum
    loss: float | None = None
    seconds: float = 0.0
    evaluation_seconds: float = 0.0

    def reset(self) -> None:
        vars(self).update(vars(Tally()))

    @property
    def heard(self) -> int:
        """The clients of a round: those that sent an update; in a round without updates, those that
        answered at all.
        """
        return self.clients or self.others or 0

    def record(self) -> dict[str, Any]:
        """As a line of rounds.jsonl has it."""
        counted = {key: value for key, value in asdict(self).items() if key != "others"}
        return {**counted, "clients": self.heard}

    def answered(self, verb: Verb, clients: int) -> None:
        if verb.moves:
            self.clients, self.others = self.clients + clients, None
        elif verb.kind != "figures" and self.others is not None:
            self.others = max(self.others, clients)

    def refuse(self, reasons: Counter[str]) -> None:
        """Write these down here, and nowhere else."""
        self.refused = dict(Counter(self.refused) + reasons)
        reasons.clear()


def metered(federation: Federation, tally: Tally) -> Federation:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        _count_down(tally, verb, requests)
        clients = 0
        try:
            for client, reply in federation.ask(verb, requests):
                _count_up(tally, verb, size(reply))
                clients += 1
                yield client, reply
        finally:  # also where the server has heard enough
            tally.answered(verb, clients)
            tally.refuse(federation.refused)

    def total(verb: Verb, requests: Requests) -> Sum:
        _count_down(tally, verb, requests)
        result = federation.total(verb, requests)
        _count_up(tally, verb, result.bytes_up)
        _add_down(tally, verb, result.bytes_down)
        tally.cut += result.cut
        tally.answered(verb, result.clients)
        tally.refuse(result.refused + federation.refused)
        federation.refused.clear()
        loss = _mean_loss(result)
        if verb.moves or loss is not None:
            tally.loss = loss
        return result

    return replace(federation, ask=ask, total=total)


def _count_down(tally: Tally, verb: Verb, requests: Requests) -> None:
    sizes = {
        id(message): size(message) for message in {id(m): m for m in requests.values()}.values()
    }
    _add_down(tally, verb, sum(sizes[id(message)] for message in requests.values()))


def _add_down(tally: Tally, verb: Verb, down: int) -> None:
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
