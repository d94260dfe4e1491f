"""The ClientApp that Flower ships to every SuperNode: it carries letters, and can do nothing else.

It hands a letter to the site process of the organisation over a Unix socket and brings the answer
back. It imports Flower and Python's own modules only: no torch, nothing of lexfed's methods. It has
no key, and cannot read a letter's meaning into anything: the site checks all of it.

This file is the app: `bundle.py` copies it as it is.
"""

import socket
import time
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD = "letter"
SOCKET = "lexfed-socket"  # in the SuperNode's --node-config: where the site process listens
PATIENCE = 60.0  # seconds that a site process may take to come back

app = ClientApp()


@app.query("letter")
def relay(message: Message, context: Context) -> Message:
    record: Any = message.content[RECORD]
    parts = [bytes(record[name].data) for name in ("head", "body")]
    head, body = exchanged(str(context.node_config[SOCKET]), parts)
    answer = ArrayRecord({"head": array(head), "body": array(body)})
    return Message(RecordDict({RECORD: answer}), reply_to=message)


def array(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)


def exchanged(path: str, parts: list[bytes]) -> list[bytes]:
    """The site's answer. A site that is away is waited for; then Flower tells the server of the
    error, and the server asks again.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return once(path, parts)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def once(path: str, parts: list[bytes]) -> list[bytes]:
    with socket.socket(socket.AF_UNIX) as site:
        site.connect(path)
        for part in parts:
            site.sendall(len(part).to_bytes(8, "big") + part)
        return [exactly(site, int.from_bytes(exactly(site, 8), "big")) for _ in parts]


def exactly(site: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = site.recv(min(1 << 20, length - len(data)))
        if not piece:
            raise ConnectionError("the site process went away")
        data += piece
    return bytes(data)
