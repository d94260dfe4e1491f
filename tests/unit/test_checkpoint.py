from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lexfed.agreement import word_list
from lexfed.core.errors import CheckpointError
from lexfed.federation import ServerState
from lexfed.privacy.accounting import Gaussian, Release, SampledGaussian
from lexfed.records import checkpoint
from lexfed.records.checkpoint import Checkpoint
from lexfed.vocabulary.learned import Learned
from lexfed.vocabulary.word import Vocabulary

LIST = word_list.to_bytes(Vocabulary(("a",), (3,)))
STATE = ServerState(
    params={"a.weight": torch.rand(3, 2)},
    opt_state={"m": {"a.weight": torch.rand(3, 2)}, "v": {"a.weight": torch.rand(3, 2)}},
    mechanism_state={"clip": torch.tensor(0.5)},
    blobs={"vocabulary": LIST, "other": b"\x00\xff"},
    ledger=(
        Release("document", Gaussian(1.5), 3, 1e-9),
        Release("user", SampledGaussian(1.0, 0.01), 5000),
    ),
    round=3,
    step=5,
    done=frozenset({"init", "switch@2"}),
)


def flat(state: ServerState) -> dict[str, object]:
    arrays = checkpoint._arrays(state)
    rest = (state.round, state.step, state.done, state.blobs, state.ledger)
    return {**{name: value.tolist() for name, value in arrays.items()}, "rest": rest}


def test_a_state_survives(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Checkpoint(STATE, True, {"bytes_up": 7}))
    back = checkpoint.load(tmp_path)
    assert flat(back.state) == flat(STATE)
    assert back.closes_round
    assert back.tally == {"bytes_up": 7}


def test_one_state_is_kept(tmp_path: Path) -> None:
    for step in range(4):
        state = replace(STATE, params={"a.weight": torch.full((2,), float(step))}, step=step)
        checkpoint.save(tmp_path, Checkpoint(state))
    assert len(list(tmp_path.iterdir())) == 2, "the manifest and its file"
    assert checkpoint.load(tmp_path).state.step == 3


def damage_arrays(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # one bit of one weight
    file.write_bytes(data)


def cut_arrays(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-5])


def lose_arrays(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.unlink()


def damage_manifest(folder: Path) -> None:
    (folder / "state.json").write_text("{")


def another_format(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))


def another_ledger_format(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(path.read_text().replace('"ledger_format": 3', '"ledger_format": 99'))


def another_ledger(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(path.read_text().replace('"gaussian"', '"laplace"'))


def no_manifest(folder: Path) -> None:
    (folder / "state.json").unlink()


DAMAGES = (
    damage_arrays,
    cut_arrays,
    lose_arrays,
    damage_manifest,
    another_format,
    another_ledger_format,
    another_ledger,
    no_manifest,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_what_was_written_is_refused(damage: object, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Checkpoint(STATE))
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(tmp_path)
    assert "\n" not in str(error.value)


def test_what_was_written_before_the_ledger_had_a_format_is_read(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Checkpoint(STATE))
    path = tmp_path / "state.json"
    path.write_text(path.read_text().replace('  "ledger_format": 3,\n', ""))
    assert "ledger_format" not in path.read_text()
    assert flat(checkpoint.load(tmp_path).state) == flat(STATE)


TOKENIZER = Learned(b"{}", {"a": 3}, "public").to_bytes()


@pytest.mark.parametrize(("blob", "name"), [(TOKENIZER, "tokenizer"), (LIST, "vocabulary")])
def test_a_tokenizer_was_called_a_vocabulary_in_0_1(blob: bytes, name: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Checkpoint(replace(STATE, blobs={"vocabulary": blob})))
    assert checkpoint.load(tmp_path).state.blobs == {name: blob}
