"""The wire is a type: what is not in a `Message` was not sent. Byte counts, leak tests and attacks
all read messages.
"""

from lexfed.wire.encoding import Buffer, chunks, decode, encode, read, size
from lexfed.wire.message import ClientId, Direction, Message, Meta, below, under
from lexfed.wire.packing import Precision, pack, unpack
from lexfed.wire.verbs import Array, Form, Verb, check, check_outgoing, flaw, well_formed

__all__ = [
    "Array", "Buffer", "ClientId", "Direction", "Form", "Message", "Meta", "Precision", "Verb",
    "below", "check", "check_outgoing", "chunks", "decode", "encode", "flaw", "pack", "read",
    "size", "under", "unpack", "well_formed",
]  # fmt: skip
