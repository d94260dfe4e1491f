"""What a secure sum costs beside a plain one: bytes, and seconds of each client and of the server.

    python benchmarks/secure.py [CLIENTS ...]      writes benchmarks/secure.json and secure.md

The update has 1.4 million parameters. Clients train nothing here: only the sum is measured, in CPU
seconds, which other work on the machine does not lengthen. All messages are the real ones, in the
bytes that they are on the wire. One client in ten leaves at the third exchange, so that the server
has masks to take off.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from lexfed.core.seeds import derive, root
from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.federation import (
    Answer,
    ClientState,
    Federation,
    Replies,
    Requests,
    gated,
    plain,
)
from lexfed.learning.training_verbs import TRAIN
from lexfed.secure import keys
from lexfed.secure.member import Member, securing
from lexfed.secure.secure_options import Secure, graph_of
from lexfed.secure.secure_sum import secured
from lexfed.secure.secure_verbs import exchanges
from lexfed.secure.sessions import Sessions
from lexfed.wire import ClientId, Message, Verb, echoing, size

PARAMETERS = 1_400_000
HERE = Path(__file__).parent
NOTHING = Corpus(np.arange(0), pa.array([], pa.large_string()))


@dataclass
class Clocks:
    """CPU seconds by exchange, and of the client that needs most."""

    clients: dict[ClientId, float] = field(default_factory=dict)
    exchanges: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def running(self, client: ClientId, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        spent = time.process_time() - started
        self.clients[client] = self.clients.get(client, 0.0) + spent
        self.exchanges[name] = self.exchanges.get(name, 0.0) + spent


def client(number: ClientId) -> Client:
    return Client(number, NOTHING, NOTHING, NOTHING, derive(root(0), "client", number))


def measured(clients: int, options: Secure, folder: Path, leave: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    delta = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(0)) * 1e-3
    update = Message({"delta/w": delta, "weight": torch.tensor(20.0), "loss": torch.tensor(14.0)})
    pinned = {n: keys.public_identity(derive(client(n).secret, "identity")) for n in range(clients)}
    member = Member(options, Sessions(folder), lambda c: derive(c.secret, "identity"), pinned.get)

    def train(message: Message, one: Client, state: ClientState) -> Answer:
        return update, state

    handlers = securing({TRAIN: train}, member) if options.sums else {TRAIN: train}
    clocks, gone = Clocks(), set(range(0, clients, 10)) if leave else set()

    def ask(verb: Verb, requests: Requests) -> Replies:
        for number, request in requests.items():
            if number in gone and options.sums and verb is exchanges(TRAIN).masked:
                continue
            with clocks.running(number, verb.name):
                reply, _ = handlers[verb](request, client(number), ClientState())
            if reply is not None:
                yield number, echoing(request, reply)

    federation = gated(Federation(range(clients), ask, plain(ask)))
    if options.sums:
        federation = secured(federation, options, pinned.get)
    meta = {"step": 1, "ask": 0, "round": 0, "most_texts": 100}
    request = Message({"model/w": torch.zeros(PARAMETERS)}, meta)
    requests = dict.fromkeys(range(clients), request)
    wall, cpu = time.perf_counter(), time.process_time()
    total = federation.total(TRAIN, requests)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    left = clients - len(gone) if options.sums else clients
    assert total.clients == left, total.refused
    expected = delta.double() * left
    worst = float((total.update["delta/w"].double() - expected).abs().max())
    neighbours = graph_of(options, range(clients)).neighbours[0] if options.sums else ()
    return {
        "clients": clients,
        "neighbours": len(neighbours),
        "threshold": graph_of(options, range(clients)).threshold if options.sums else 0,
        "up_per_client": total.bytes_up / clients,
        "down_per_client": (total.bytes_down + clients * size(request)) / clients,
        "client_cpu": max(clocks.clients.values()),
        "server_cpu": cpu - sum(clocks.clients.values()),
        "seconds": wall,
        "worst_error": worst,
    }


def main(counts: list[int]) -> None:
    rows = []
    for clients in counts:
        for name, options in (
            ("plain", Secure()),
            ("secure, 64 bits", Secure(sums=True)),
            ("secure, 32 bits", Secure(sums=True, bits=32, range=64.0)),
        ):
            with tempfile.TemporaryDirectory() as folder:
                row = {"sum": name, **measured(clients, options, Path(folder), leave=True)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    (HERE / "secure.json").write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "secure.md").write_text(table(rows))


def table(rows: list[dict[str, float]]) -> str:
    lines = [
        "# What a secure sum costs",
        "",
        "An update of 1.4 million parameters; one client in ten leaves. CPU seconds of the client",
        "that needs most, and of the server. Bytes are a mean over clients, all exchanges",
        "together; who leaves sends little, so who stays sends 2.0 times the plain bytes (1.0 with",
        "32 bits).",
        "`python benchmarks/secure.py` makes this table.",
        "",
        "| clients | sum | neighbours | up | of plain | down | client CPU s | server CPU s "
        "| largest error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    plain_up = {row["clients"]: row["up_per_client"] for row in rows if row["sum"] == "plain"}
    for row in rows:
        lines.append(
            f"| {row['clients']:,} | {row['sum']} | {row['neighbours'] or '–'} "
            f"| {row['up_per_client'] / 1e6:.2f} MB "
            f"| {row['up_per_client'] / plain_up[row['clients']]:.2f} "
            f"| {row['down_per_client'] / 1e6:.2f} MB | {row['client_cpu']:.2f} "
            f"| {row['server_cpu']:.1f} | {row['worst_error']:.1e} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10, 50, 200, 1000])
