"""Messages as bytes: one safetensors file (arrays; blobs as byte arrays; meta as JSON in the
header).

No pickle, and any tool can read what was sent.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from lexfed.core.errors import WireError
from lexfed.wire.message import Message, Meta

Buffer = bytes | memoryview

_BLOB = "blob:"
_META = "lexfed"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TORCH = {code: dtype for dtype, code in _DTYPES.items()}


def _tensors(message: Message) -> dict[str, Tensor]:
    blobs = {
        _BLOB + name: torch.frombuffer(bytearray(b), dtype=torch.uint8)
        if b
        else torch.empty(0, dtype=torch.uint8)
        for name, b in message.blobs.items()
    }
    # widest first, so that every array lies aligned
    return dict(
        sorted(
            {**message.arrays, **blobs}.items(), key=lambda item: (-item[1].element_size(), item[0])
        )
    )


def _header(tensors: Mapping[str, Tensor], meta: Mapping[str, Meta]) -> bytes:
    """A safetensors header: https://github.com/huggingface/safetensors#format"""
    entries: dict[str, Any] = {"__metadata__": {_META: json.dumps(dict(meta), sort_keys=True)}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def size(message: Message) -> int:
    """The length of `encode(message)`, without copying an array."""
    tensors = _tensors(message)
    return (
        8 + len(_header(tensors, message.meta)) + sum(tensor.nbytes for tensor in tensors.values())
    )


def chunks(message: Message) -> Iterator[Buffer]:
    """`encode(message)` piece by piece, without a copy of any array."""
    tensors = _tensors(message)
    header = _header(tensors, message.meta)
    yield len(header).to_bytes(8, "little") + header
    for tensor in tensors.values():
        # of one number or none any stride counts as contiguous, and views want 1
        row = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
        yield row.view(torch.uint8).numpy().data


def encode(message: Message) -> bytes:
    return b"".join(chunks(message))


def decode(data: bytes) -> Message:
    """The message again; anything that is not one raises `WireError`, whatever the bytes."""
    try:
        entries = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
        length = int.from_bytes(data[:8], "little")
        meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_META])
        return _message({name: _tensor(entry) for name, entry in entries.items()}, meta)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise WireError(f"not a lexfed message: {error}") from error


def read(path: Path) -> Message:
    """The message in a file, its arrays mapped into memory: processes that read the same file share
    it.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            meta = json.loads(file.metadata()[_META])
            return _message({name: file.get_tensor(name) for name in file.keys()}, meta)  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise WireError(f"{path} is not a lexfed message: {error}") from error


def _message(tensors: Mapping[str, Tensor], meta: Any) -> Message:
    if not isinstance(meta, dict) or not all(isinstance(value, Meta) for value in meta.values()):
        raise ValueError("meta is not a table of numbers and strings")
    if any(
        tensor.dtype != torch.uint8 for name, tensor in tensors.items() if name.startswith(_BLOB)
    ):
        raise ValueError("a blob is not bytes")
    blobs = {
        n.removeprefix(_BLOB): bytes(t.numpy().tobytes())
        for n, t in tensors.items()
        if n.startswith(_BLOB)
    }
    return Message({n: t for n, t in tensors.items() if not n.startswith(_BLOB)}, meta, blobs)


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    dtype, shape = _TORCH[entry["dtype"]], entry["shape"]
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(entry["data"], dtype=dtype).reshape(shape)
