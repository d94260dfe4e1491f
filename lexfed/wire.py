"""The wire is a type: what is not in a `Message` was not sent.

Byte counts, leak tests and attacks all read messages. A message travels as one safetensors file (arrays; blobs as byte
arrays; meta as JSON in the header): no pickle, and any tool can read what was sent.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from torch import Tensor

from lexfed.errors import PrivacyError, WireError
from lexfed.params import ParameterSplit, Params, Rows, Update

Verb = str
ClientId = int
Meta = int | float | str
Buffer = bytes | memoryview
Direction = Literal["down", "up"]


@dataclass(frozen=True, eq=False)
class Message:
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Meta] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """The names a message may hold. One that ends in "/" allows everything below it."""

    arrays: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


# Every request carries the server's clock: the step of its state, and the number of the ask within that step.
CLOCK = ("step", "ask", "round")
_BOUND = ("clip", "limit")  # how long an update may be, and from where on the server does not take it
_ROWS = ("since", "version", "rows", "width")  # rows that changed since which version, and the shape of their table

# Each verb: what goes down, what comes up. Decoders, the outgoing policy and the fuzzers read this table.
VERBS: Mapping[Verb, Mapping[Direction, Names]] = {
    "train": {
        "down": Names(arrays=("model/",), meta=(*CLOCK, *_BOUND), blobs=("tokenizer",)),
        "up": Names(arrays=("delta/", "weight", "loss", "unclipped")),
    },
    # LG-FedAvg: a warm start in which everything travels, then the lower layers, handed out once
    "warm": {
        "down": Names(arrays=("model/",), meta=(*CLOCK, *_BOUND), blobs=("tokenizer",)),
        "up": Names(arrays=("delta/", "weight", "loss", "unclipped")),
    },
    "install": {
        "down": Names(arrays=("start/",), meta=CLOCK),
        "up": Names(),
    },
    # agreeing on a word list: proposals as keyed hashes (what was released so far is left out), or in the clear;
    # then the words of the hashes that were chosen
    "propose": {
        "down": Names(arrays=("released",), meta=CLOCK),
        "up": Names(arrays=("hashes", "counts", "weights")),
    },
    "disclose": {
        "down": Names(meta=CLOCK, blobs=("released",)),
        "up": Names(arrays=("counts", "weights"), blobs=("words",)),
    },
    "spell": {
        "down": Names(arrays=("hashes",), meta=CLOCK),
        "up": Names(blobs=("words",)),
    },
    # word vectors: a client says which version it holds, gets the vocabulary once, then the rows that changed since
    "version": {"down": Names(meta=CLOCK), "up": Names(meta=("version",))},
    "vocabulary": {"down": Names(meta=CLOCK, blobs=("vocabulary",)), "up": Names()},
    "skipgram": {
        "down": Names(arrays=("rows/",), meta=(*CLOCK, *_ROWS)),
        "up": Names(arrays=("delta/", "weight", "loss", "nodes")),
    },
    # frequent words of users: noisy rows of a sketch of their words, or votes for the prefixes of words
    "sketch": {"down": Names(meta=CLOCK, blobs=("words",)), "up": Names(arrays=("rows", "bits"))},
    "vote": {"down": Names(meta=(*CLOCK, "level"), blobs=("words",)), "up": Names(blobs=("vote",))},
    "evaluate": {
        "down": Names(arrays=("model/", "rows/"), meta=(*CLOCK, *_ROWS, "split"), blobs=("tokenizer",)),
        "up": Names(
            arrays=(
                "accuracy",
                "local_accuracy",
                "error",
                "local_error",
                "majority_accuracy",
                "macro_f1",
                "texts",
                "parameters_private",
                "heldout_loss",
                "pairs",
                "nll",
                "words",
                "tokens",
                "right",
                "oov",
            )
        ),
    },
}


def check(verb: Verb, direction: Direction, message: Message) -> None:
    """Raise if the message holds a name that its verb does not allow in this direction."""
    if verb not in VERBS:
        raise WireError(f"unknown verb '{verb}'")
    allowed = VERBS[verb][direction]
    for kind, names in (("arrays", message.arrays), ("meta", message.meta), ("blobs", message.blobs)):
        known: tuple[str, ...] = getattr(allowed, kind)
        for name in names:
            if name not in known and not any(k.endswith("/") and name.startswith(k) for k in known):
                raise WireError(f"'{verb}' {direction} may not hold '{name}' in its {kind}")


def check_outgoing(verb: Verb, message: Message, split: ParameterSplit) -> None:
    """The last gate on the client: nothing outside the verb's table, and no private name, under any prefix."""
    check(verb, "up", message)
    for name in (*message.arrays, *message.blobs):
        parts = name.partition("#")[0].split("/")
        for parameter in ("/".join(parts[start:]) for start in range(1, len(parts))):
            if split.is_private(parameter):
                raise PrivacyError(f"private parameter '{parameter}' was about to be sent with '{verb}'; nothing was sent")


def well_formed(verb: Verb, request: Message, reply: Message) -> bool:
    """Whether the server can add a reply up: allowed names, whole rows, deltas shaped like the model that was sent."""
    try:
        check(verb, "up", reply)
    except WireError:
        return False
    if "clip" in request.meta and not _bounded(request, reply):
        return False
    if verb in _LISTS:
        return all(value.ndim == (2 if name == "hashes" else 1) for name, value in reply.arrays.items()) and (
            len({len(value) for value in reply.arrays.values()}) <= 1
        )
    for name, value in reply.arrays.items():
        base, _, part = name.partition("#")
        if f"{base}#ids" in reply.arrays:
            if part == "ids" and not _well_formed_rows(base, request, reply):
                return False
            continue
        if any(f"{base}#{other}" not in reply.arrays for other in _TOGETHER.get(part, ())):
            return False
        if not base.startswith("delta/"):
            if value.ndim != 0:
                return False
            continue
        model = request.arrays.get(f"model/{base.removeprefix('delta/')}")
        if model is None or not _fits(part, value, model):
            return False
    return True


def _fits(part: str, value: Tensor, model: Tensor) -> bool:
    """A delta is shaped like its parameter, and a scale of rounded numbers has one number per row of it."""
    if part in ("", "fp16", "int8"):
        return model.shape == value.shape
    return part == "scale" and value.shape == (*model.shape[:-1], 1)


def _bounded(request: Message, reply: Message) -> bool:
    """Under differential privacy: numbers, no longer than they may be, and nothing beside them but a centred bit."""
    square = 0.0
    for name, value in reply.arrays.items():
        if name.startswith("delta/") and "#" not in name and value.is_floating_point():
            square += float(value.double().square().sum())
        elif name != "unclipped" or value.ndim != 0 or abs(float(value)) != 0.5:
            return False
    return square <= float(request.meta.get("limit", 1e30)) ** 2  # no number is not below anything


def _well_formed_rows(base: str, request: Message, reply: Message) -> bool:
    """Ascending ids, and every part as long as they are. The table is as high and as wide as the request says."""
    ids, values = reply.arrays[f"{base}#ids"], reply.arrays.get(f"{base}#values")
    if ids.dtype not in (torch.int32, torch.int64) or ids.ndim != 1 or values is None or values.ndim != 2:
        return False
    parts = [reply.arrays.get(f"{base}#{part}") for part in ("values", "scale", "counts", "nodes")]
    if any(part is not None and len(part) != len(ids) for part in parts):
        return False
    if values.dtype == torch.int8 and f"{base}#scale" not in reply.arrays:
        return False
    if "rows" in request.meta:  # the table itself was not sent, but its shape was
        height, width = request.meta["rows"], request.meta["width"]
        if values.shape[1] != width or (len(ids) and int(ids[-1]) >= int(height)):
            return False
    if f"model/{base.removeprefix('delta/')}" in request.arrays:  # a table that was sent whole is answered whole
        return False
    return not len(ids) or (int(ids[0]) >= 0 and bool((ids[1:] > ids[:-1]).all()))


# Replies that are lists and are not added up: columns of one length.
_LISTS = ("propose", "disclose", "spell")

# The parts of one entry that travels in several arrays: none is there without the others.
_TOGETHER = {"values": ("ids",), "counts": ("ids",), "nodes": ("ids",), "int8": ("scale",), "scale": ("int8",)}


def under(prefix: str, params: Params) -> Params:
    return {f"{prefix}/{name}": value for name, value in params.items()}


def below(prefix: str, arrays: Params) -> Params:
    start = f"{prefix}/"
    return {name[len(start) :]: value for name, value in arrays.items() if name.startswith(start)}


Precision = Literal["fp32", "fp16", "int8"]


def pack(update: Update, precision: Precision = "fp32", generator: torch.Generator | None = None) -> Params:
    """An update as arrays, in fewer bits if asked to. Rows travel as their ids, their values and how often each was moved.

    Rounding is stochastic, so that the mean over many clients is right: each number goes up or down by chance, in
    expectation to itself. int8 has one scale per row.
    """
    arrays: dict[str, Tensor] = {}
    for name, value in update.items():
        if isinstance(value, Rows):
            arrays |= _pack_rows(name, value, precision, generator)
        elif precision == "fp32" or value.ndim == 0:
            arrays[name] = value
        elif precision == "fp16":
            arrays[f"{name}#fp16"] = _round_half(value, generator)
        else:
            scale = value.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
            steps = value / scale + torch.rand(value.shape, generator=generator)
            arrays |= {f"{name}#int8": steps.floor().clamp(-127, 127).to(torch.int8), f"{name}#scale": scale}
    return arrays


def _pack_rows(name: str, rows: Rows, precision: Precision, generator: torch.Generator | None) -> Params:
    arrays = {f"{name}#ids": rows.ids.to(torch.int32)}
    if rows.scale is not None or precision == "fp32":
        arrays[f"{name}#values"] = rows.values
        arrays |= {f"{name}#scale": rows.scale} if rows.scale is not None else {}
    elif precision == "fp16":
        arrays[f"{name}#values"] = _round_half(rows.values, generator)
    else:
        from lexfed.kernels import round_rows  # compiled: loaded when first needed

        seed = int(torch.randint(2**62, (1,), generator=generator))
        steps, scale = round_rows(rows.values.numpy(), seed)
        arrays |= {f"{name}#values": torch.from_numpy(steps), f"{name}#scale": torch.from_numpy(scale)}
    for part, value in (("counts", rows.counts), ("nodes", rows.nodes)):
        arrays |= {f"{name}#{part}": value.to(torch.int32)} if value is not None else {}
    return arrays


def _unpack_rows(name: str, arrays: Params) -> Rows:
    values, scale = arrays[f"{name}#values"], arrays.get(f"{name}#scale")
    counts, nodes = (arrays.get(f"{name}#{part}") for part in ("counts", "nodes"))
    return Rows(
        arrays[f"{name}#ids"].long(),
        values if scale is not None or values.dtype == torch.float64 else values.float(),
        scale,
        counts.long() if counts is not None else None,
        nodes.long() if nodes is not None else None,
    )


def _round_half(value: Tensor, generator: torch.Generator | None) -> Tensor:
    """To one of the two neighbouring half-precision numbers, the nearer one more often."""
    value = value.clamp(-65504, 65504)
    near = value.half()
    other = torch.nextafter(near, torch.where(value > near.float(), torch.inf, -torch.inf).half())
    gap = (other.float() - near.float()).abs()
    share = torch.where(gap > 0, (value - near.float()).abs() / gap, 0.0)  # how far on the way to the other
    return torch.where(torch.rand(value.shape, generator=generator) < share, other, near)


def unpack(arrays: Params) -> Update:
    update: dict[str, Tensor | Rows] = {}
    for name, value in arrays.items():
        base, _, part = name.partition("#")
        if part == "ids":
            update[base] = _unpack_rows(base, arrays)
        elif f"{base}#ids" in arrays:
            continue
        elif part == "fp16":
            update[base] = value.float()
        elif part == "int8":
            update[base] = value.float() * arrays[f"{base}#scale"]
        elif not part:
            update[base] = value
    return update


# --- bytes -----------------------------------------------------------------------------------------------------------

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
    blobs = {_BLOB + name: torch.frombuffer(bytearray(b), dtype=torch.uint8) if b else torch.empty(0, dtype=torch.uint8)
             for name, b in message.blobs.items()}  # fmt: skip
    # widest first, so that every array lies aligned
    return dict(sorted({**message.arrays, **blobs}.items(), key=lambda item: (-item[1].element_size(), item[0])))


def _header(tensors: Mapping[str, Tensor], meta: Mapping[str, Meta]) -> bytes:
    """A safetensors header: https://github.com/huggingface/safetensors#format"""
    entries: dict[str, Any] = {"__metadata__": {_META: json.dumps(dict(meta), sort_keys=True)}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def size(message: Message) -> int:
    """The length of `encode(message)`, without copying an array."""
    tensors = _tensors(message)
    return 8 + len(_header(tensors, message.meta)) + sum(tensor.nbytes for tensor in tensors.values())


def chunks(message: Message) -> Iterator[Buffer]:
    """`encode(message)` piece by piece, without a copy of any array."""
    tensors = _tensors(message)
    header = _header(tensors, message.meta)
    yield len(header).to_bytes(8, "little") + header
    for tensor in tensors.values():
        yield tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data


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
    """The message in a file, its arrays mapped into memory: processes that read the same file share it."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            meta = json.loads(file.metadata()[_META])
            return _message({name: file.get_tensor(name) for name in file.keys()}, meta)  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise WireError(f"{path} is not a lexfed message: {error}") from error


def _message(tensors: Mapping[str, Tensor], meta: Any) -> Message:
    if not isinstance(meta, dict) or not all(isinstance(value, Meta) for value in meta.values()):
        raise ValueError("meta is not a table of numbers and strings")
    if any(tensor.dtype != torch.uint8 for name, tensor in tensors.items() if name.startswith(_BLOB)):
        raise ValueError("a blob is not bytes")
    blobs = {n.removeprefix(_BLOB): bytes(t.numpy().tobytes()) for n, t in tensors.items() if n.startswith(_BLOB)}
    return Message({n: t for n, t in tensors.items() if not n.startswith(_BLOB)}, meta, blobs)


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    dtype, shape = _TORCH[entry["dtype"]], entry["shape"]
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(entry["data"], dtype=dtype).reshape(shape)
