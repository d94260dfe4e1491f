"""How far a deployment goes: bytes, CPU and memory of the server, by the number of clients.

One exchange of a broadcast (the model) and its sum, by signed letters, for 10, 100 and 1,000
clients and two sizes of model. Letters are carried inside this process, so that what is measured is
lexfed's own part; what Flower adds is in flower_messages.md. Clients answer with an update of the
model's size and a signature; their seconds are taken apart from the server's.

    python benchmarks/scale.py        writes scale.json and scale.md
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lexfed.core.seeds import derive, public_identity, root
from lexfed.learning.training_verbs import TRAIN
from lexfed.runtime import letters
from lexfed.runtime.correspondence import Arrived, Correspondence, Times, by_letter
from lexfed.wire import Message, encode

HERE = Path(__file__).parent
CLIENTS = (10, 100, 1_000)
NUMBERS = {"small (0.2 MB)": 50_000, "large (5 MB)": 1_250_000}
REPEATS = 3
SERVER = derive(root(1), "server")


@dataclass
class Answering:
    """Every client, in this process: an answer of the right form, signed."""

    identities: list[bytes]
    body: bytes
    spent: float = 0.0
    sent: int = 0
    received: int = 0
    arrived: dict[str, Arrived] = field(default_factory=dict)

    def nodes(self) -> Sequence[int]:
        return range(len(self.identities))

    def send(self, node: int, head: bytes, body: bytes) -> str:
        began = time.process_time()
        request = letters.opened(head, body, lambda letter: public_identity(SERVER))
        data = b"" if request.kind == "hello" else self.body
        answer = letters.answer(request, "reply", node, data)
        packet = letters.sealed(answer, self.identities[node])
        self.arrived[str(node)] = Arrived(str(node), packet[0], bytes(bytearray(packet[1])))
        self.sent += len(head) + len(body)
        self.received += sum(map(len, packet))
        self.spent += time.process_time() - began
        return str(node)

    def collect(self, tickets: Sequence[str]) -> Sequence[Arrived]:
        return [self.arrived.pop(ticket) for ticket in tickets if ticket in self.arrived]


def one(clients: int, numbers: int) -> dict[str, float]:
    """One exchange, in a process of its own."""
    torch.set_num_threads(1)
    identities = [derive(root(2), "client", number) for number in range(clients)]
    model = torch.randn(numbers)
    clock = {"step": 0, "ask": 0, "round": 0}
    update = {"delta/w": model * 0.01, "weight": torch.tensor(1.0), "loss": torch.tensor(0.5)}
    carrier = Answering(identities, encode(Message(update, {"step": 0, "ask": 0})))
    peers = dict(enumerate(map(public_identity, identities)))
    times = Times(look=1e9, poll=0.0)
    who = Correspondence(carrier, SERVER, peers, "0" * 32, b"terms", times)
    federation = by_letter(who)
    who.wait_for(clients)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    request = Message({"model/w": model}, {**clock, "most_texts": 10_000})
    carrier.spent, carrier.sent, carrier.received = 0.0, 0, 0
    cpu, wall = time.process_time(), time.perf_counter()
    total = federation.total(TRAIN, dict.fromkeys(range(clients), request))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert total.clients == clients, total.refused
    return {
        "server_cpu": cpu - carrier.spent,
        "client_cpu": carrier.spent / clients,
        "seconds": wall,
        "down": carrier.sent / clients,
        "up": carrier.received / clients,
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    }


def main() -> None:
    rows = []
    for name, numbers in NUMBERS.items():
        for clients in CLIENTS:
            runs = []
            for _ in range(REPEATS):
                words = [sys.executable, __file__, str(clients), str(numbers)]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout))
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            rows.append({"model": name, "clients": clients, **row})
            print(rows[-1], flush=True)
    (HERE / "scale.json").write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "scale.md").write_text(page(rows))


def page(rows: list[dict[str, float]]) -> str:
    lines = [
        "# One exchange by letter, by the number of clients",
        "",
        "Median of three. Repeat: `python benchmarks/scale.py`.",
        "",
        "| model | clients | server's CPU ms per client | client's CPU ms (letter) "
        "| down per client | up per client | server's memory beyond the model |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['clients']:,} "
            f"| {1e3 * row['server_cpu'] / row['clients']:.2f} | {1e3 * row['client_cpu']:.2f} "
            f"| {row['down'] / 1e6:.2f} MB | {row['up'] / 1e6:.2f} MB "
            f"| {row['memory'] / 1e6:.0f} MB |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
