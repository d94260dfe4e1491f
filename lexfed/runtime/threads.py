"""Clients in threads of this process: for methods whose handlers release the interpreter's lock and
share one replica.

The same bits as one after the other: blocks are added in their order, whoever finished first.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from lexfed.federation import Federation, Requests, Sum, add_replies, add_up, blocks, gated
from lexfed.runtime.simulation import Site, sequential
from lexfed.wire import ClientId, Message, Verb

T = TypeVar("T")


@contextmanager
def threads(site: Site, count: int) -> Iterator[Federation]:
    one = sequential(site)
    with ThreadPoolExecutor(count, thread_name_prefix="lexfed-client") as pool:

        def over_blocks(requests: Requests, work: Callable[[Requests], T]) -> Iterator[T]:
            return pool.map(
                work,
                [
                    {client: requests[client] for client in block}
                    for block in blocks(list(requests))
                ],
            )

        def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
            for replies in over_blocks(requests, lambda asked: list(one(verb, asked))):
                yield from replies

        def total(verb: Verb, requests: Requests) -> Sum:
            return add_up(
                over_blocks(requests, lambda asked: add_replies(verb, asked, one(verb, asked)))
            )

        yield gated(Federation(range(len(site.population)), ask, total))
