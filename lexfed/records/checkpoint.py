"""The server's state on disk: `state.json` says which file holds the arrays, and its hash."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from lexfed.core import formats
from lexfed.core.errors import CheckpointError, PrivacyError, WireError
from lexfed.core.files import write_atomically
from lexfed.core.params import Params
from lexfed.federation import ServerState
from lexfed.privacy import accounting
from lexfed.wire import Buffer, Message, below, chunks, decode, under

MANIFEST = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    state: ServerState
    closes_round: bool = False  # the state ends a round, whose record is due
    tally: Mapping[str, Any] = field(default_factory=dict)  # what was counted since the last record
    experiment: str = ""  # the fingerprint of the configuration it belongs to


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """The arrays first, under a name of their own; then the manifest that points to them, in one
    rename.
    """
    state = checkpoint.state
    message = Message(_arrays(state), blobs=state.blobs)
    digest = _digest(chunks(message))
    file = folder / f"state-{digest}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, chunks(message))  # piece by piece: tables may be a large part of memory
    manifest = {
        "format": formats.CHECKPOINT,
        "ledger_format": formats.LEDGER,
        "file": file.name,
        "digest": digest,
        "round": state.round,
        "step": state.step,
        "done": sorted(state.done),
        "forks": list(state.forks),
        "ledger": accounting.to_json(state.ledger),
        "closes_round": checkpoint.closes_round,
        "tally": dict(checkpoint.tally),
        "experiment": checkpoint.experiment,
    }
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    for other in folder.glob("state-*.safetensors"):
        if other != file:
            other.unlink()


def load(folder: Path) -> Checkpoint:
    manifest_path = folder / MANIFEST
    if not manifest_path.is_file():
        raise CheckpointError(f"there is no checkpoint in {folder}")
    try:
        manifest = json.loads(manifest_path.read_text())
        formats.check(manifest["format"], formats.CHECKPOINT, str(manifest_path))
        formats.check(
            manifest.get("ledger_format"), formats.LEDGER, f"the ledger in {manifest_path}"
        )
        data = (folder / manifest["file"]).read_bytes()
        if _digest([data]) != manifest["digest"]:
            raise CheckpointError(
                f"{folder / manifest['file']} is damaged: it is not what was written"
            )
        kept = decode(data)
        arrays = kept.arrays
        state = ServerState(
            params=below("params", arrays),
            opt_state=_slots(below("opt", arrays)),
            mechanism_state=below("mechanism", arrays),
            blobs=_blobs(kept.blobs),
            ledger=accounting.from_json(manifest.get("ledger", [])),
            round=manifest["round"],
            step=manifest["step"],
            done=frozenset(manifest["done"]),
            forks=tuple(str(fork) for fork in manifest.get("forks", [])),
        )
        return Checkpoint(
            state, manifest["closes_round"], manifest["tally"], manifest["experiment"]
        )
    except (OSError, ValueError, KeyError, TypeError, WireError, PrivacyError) as error:
        raise CheckpointError(f"the checkpoint in {folder} can't be read: {error}") from error


def _blobs(kept: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """What lexfed 0.1 wrote called a language model's tokenizer its vocabulary."""
    blob = kept.get("vocabulary", b"")
    return {"tokenizer": blob} if blob.startswith(b'{"source":') else kept


def _digest(data: Iterable[Buffer]) -> str:
    digest = blake2b(digest_size=16)
    for chunk in data:
        digest.update(chunk)
    return digest.hexdigest()


def _arrays(state: ServerState) -> Params:
    slots = {
        f"{slot}/{name}": value
        for slot, params in state.opt_state.items()
        for name, value in params.items()
    }
    return {
        **under("params", state.params),
        **under("opt", slots),
        **under("mechanism", state.mechanism_state),
    }


def _slots(arrays: Params) -> dict[str, Params]:
    slots: dict[str, dict[str, Tensor]] = {}
    for path, value in arrays.items():
        slot, _, name = path.partition("/")
        slots.setdefault(slot, {})[name] = value
    return dict(slots)
