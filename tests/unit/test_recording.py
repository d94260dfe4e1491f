"""The recorded wire is what was counted and sent."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lexfed.audits.transcript import transcript
from lexfed.core.errors import CheckpointError, DataError
from lexfed.core.params import Rows
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.records import checkpoint
from lexfed.wire import size, unpack
from tests.conftest import Lexfed

VERBS = (TRAIN, EVALUATE)  # of the method that is run here


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wire_re_read_is_what_was_counted(
    workers: int, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    result = lexfed(
        "run",
        tiny,
        "--out",
        "a",
        "--record-wire",
        "wire",
        "--workers",
        workers,
        "--set",
        "cohort.lost=0.3",
    )
    assert result.returncode == 0, result.stderr
    messages = list(transcript(tmp_path / "wire", VERBS))
    records = [json.loads(line) for line in (tmp_path / "a/rounds.jsonl").read_text().splitlines()]
    for record in records:
        ours = [m for m in messages if m.round == record["round"] - 1 and m.verb is TRAIN]
        for direction, key in (("up", "bytes_up"), ("down", "bytes_down")):
            assert sum(size(m.message) for m in ours if m.direction == direction) == record[key]
        assert sum(m.direction == "up" for m in ours) == record["clients"]
    scored = [m for m in messages if m.verb is EVALUATE]
    for direction, key in (("up", "evaluation_bytes_up"), ("down", "evaluation_bytes_down")):
        assert sum(size(m.message) for m in scored if m.direction == direction) == sum(
            r[key] for r in records
        )


def test_the_arrays_are_those_that_were_sent(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """Replay the server from the wire alone: the uploads of the last round add up to its last
    step.
    """
    assert lexfed("run", tiny, "--out", "a", "--record-wire", "wire").returncode == 0
    messages = [m for m in transcript(tmp_path / "wire", VERBS) if m.verb is TRAIN and m.round == 2]
    down = next(m.message for m in messages if m.direction == "down")
    ups = [m.message for m in messages if m.direction == "up"]
    weight = sum(m.arrays["weight"] for m in ups)
    final = checkpoint.load(tmp_path / "a/checkpoint").state.params
    for name, value in final.items():
        step = sum(whole(unpack(m.arrays)[f"delta/{name}"], value) for m in ups) / weight
        torch.testing.assert_close(value, down.arrays[f"model/{name}"] + step)


def whole(sent: Tensor | Rows, like: Tensor) -> Tensor:
    if isinstance(sent, Rows):
        return torch.zeros_like(like).index_add(0, sent.ids, sent.values)
    return sent


def test_a_broadcast_is_stored_once(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert (
        lexfed("run", tiny, "--out", "a", "--record-wire", "wire", "--workers", 2).returncode == 0
    )
    downs = sorted((tmp_path / "wire").glob("*-train-*-down/arrays.safetensors"))
    by_step: dict[str, set[int]] = {}
    for path in downs:
        by_step.setdefault(path.parent.name.split("-")[0], set()).add(path.stat().st_ino)
        assert path.stat().st_nlink == 3
    assert len(by_step) == 3
    assert all(len(inodes) == 1 for inodes in by_step.values())
    assert not list((tmp_path / "wire").glob(".*")), "nothing half-written"


def test_a_folder_can_be_read_without_lexfed(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert lexfed("run", tiny, "--out", "a", "--record-wire", "wire").returncode == 0
    import safetensors.torch

    folder = next((tmp_path / "wire").glob("*-train-*-up"))
    about = json.loads((folder / "meta.json").read_text())
    assert set(about) == {
        "round",
        "step",
        "ask",
        "client",
        "direction",
        "verb",
        "meta",
        "blobs",
        "bytes",
    }
    names = safetensors.torch.load_file(folder / "arrays.safetensors")
    assert any(name.partition("#")[0] == "delta/embedding.weight" for name in names)


@pytest.mark.parametrize("workers", [0, 2])
def test_its_owner_alone_may_read_it(
    workers: int, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    result = lexfed("run", tiny, "--out", "a", "--record-wire", "wire", "--workers", workers)
    assert result.returncode == 0
    everything = [wire, *wire.rglob("*")]
    assert len(everything) > 50
    for path in everything:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_no_seed_travels(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert lexfed("run", tiny, "--out", "a", "--record-wire", "wire").returncode == 0
    for m in transcript(tmp_path / "wire", VERBS):
        assert set(m.message.meta) <= {
            "step", "ask", "round", "split", "most_texts", "most_lost", "named_rows",
        }  # fmt: skip
        assert not m.message.blobs


def test_a_wire_of_another_method_is_refused(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert lexfed("run", tiny, "--out", "a", "--record-wire", "wire").returncode == 0
    with pytest.raises(DataError, match="its method knows no 'train'") as error:
        list(transcript(tmp_path / "wire", [EVALUATE]))
    assert "\n" not in str(error.value)


def test_a_wire_of_a_newer_format_is_refused(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert lexfed("run", tiny, "--out", "a", "--record-wire", "wire").returncode == 0
    path = tmp_path / "wire/format.json"
    assert json.loads(path.read_text())["format"] == 1
    path.write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match=r"of format 99.*written by a newer one"):
        list(transcript(tmp_path / "wire", VERBS))
