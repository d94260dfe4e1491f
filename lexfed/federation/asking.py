"""Asking clients: what comes back, and what of it the server takes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from lexfed.wire import ClientId, Message, Verb, flaw

# At most one reply per client, in the order asked; who is missing has dropped out.
Requests = Mapping[ClientId, Message]
Replies = Iterator[tuple[ClientId, Message]]
Ask = Callable[[Verb, Requests], Replies]

NOT_ASKED, DOUBLED, OUT_OF_TURN = "not asked", "doubled", "out of turn"


def sound(verb: Verb, requests: Requests, replies: Replies, refused: Counter[str]) -> Replies:
    """Of these replies those that the server can use, one for each client, in the order asked.

    The others have dropped out, and are counted in `refused` by their reasons. Of two replies of a
    client the first counts, whatever it is worth. One that comes after its turn is not waited for:
    a sum has an order, and nothing is kept until it is known who is missing.
    """
    turns = {client: turn for turn, client in enumerate(requests)}
    heard: set[ClientId] = set()
    turn = -1
    for client, reply in replies:
        reason: str | None
        if client not in turns:
            reason = NOT_ASKED
        elif client in heard:
            reason = DOUBLED
        elif turns[client] < turn:
            reason = OUT_OF_TURN
        else:
            turn, reason = turns[client], flaw(verb, requests[client], reply)
        heard.add(client)
        if reason is None:
            yield client, reply
        else:
            refused[reason] += 1
