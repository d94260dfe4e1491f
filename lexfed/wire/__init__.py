"""The wire is a type: what is not in a `Message` was not sent. Byte counts, leak tests and attacks
all read messages.
"""

from lexfed.wire.encoding import Buffer, chunks, decode, encode, read, size
from lexfed.wire.flaws import flaw, left_the_numbers, misshapen, well_formed
from lexfed.wire.message import ClientId, Direction, Message, Meta, below, under
from lexfed.wire.packing import Precision, pack, unpack
from lexfed.wire.verbs import Array, Blob, Form, Verb, check, check_outgoing, echoing

__all__ = [
    "Array", "Blob", "Buffer", "ClientId", "Direction", "Form", "Message", "Meta", "Precision",
    "Verb", "below", "check", "check_outgoing", "chunks", "decode", "echoing", "encode", "flaw",
    "left_the_numbers", "misshapen", "pack", "read", "size", "under", "unpack", "well_formed",
]  # fmt: skip
