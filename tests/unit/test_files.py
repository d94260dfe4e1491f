"""Files are there whole and stay there, or nothing of them is."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lexfed.core.files import OWNER_ONLY, write_atomically


def test_what_is_written_is_there_whole_and_only_for_whom_it_is(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"old")
    write_atomically(tmp_path / "a", [b"ne", memoryview(b"w")], OWNER_ONLY)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    def data() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomically(tmp_path / "a", b"old")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", data())
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "b", data())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_real_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """/dev/full is one: the rename never happens, and what was begun is removed."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    real = os.open

    def opened(path: object, *arguments: int, **more: object) -> int:
        return (
            real(full, os.O_WRONLY)
            if str(path).startswith(str(tmp_path / ".a"))
            else real(path, *arguments)
        )  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opened)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(tmp_path / "a", b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_on_disk_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file first, then its name, then the folder that holds the name."""
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def renamed(one: Path, other: Path) -> None:
        done.append("rename")
        rename(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "a", b"x")
    assert done == ["file", "rename", "folder"]
