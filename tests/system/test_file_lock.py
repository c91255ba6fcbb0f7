"""Locks of files: who holds one, how others wait for it, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from rmsexp.system.file_lock import locked, try_to_lock
from rmsexp.system.files import NotRegularError


def fail(patch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", flock)


def test_a_lock_is_a_flock_of_the_file_and_excludes_others(tmp_path: Path) -> None:
    """Processes of older versions, which call flock themselves, may work in the same folder."""
    path = tmp_path / "folder" / "lock"
    with locked(path, pytest.fail), path.open() as other:
        assert not try_to_lock(other, fcntl.LOCK_EX)
        assert not try_to_lock(other, fcntl.LOCK_SH)
    assert path.exists()
    with path.open() as one, path.open() as other:
        assert try_to_lock(one, fcntl.LOCK_SH)
        assert try_to_lock(other, fcntl.LOCK_SH)


def test_waiting_is_announced_once_another_process_holds_the_lock(tmp_path: Path) -> None:
    lines: list[str] = []
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def release() -> None:
            lines.append("waiting")
            fcntl.flock(other, fcntl.LOCK_UN)

        with locked(tmp_path / "lock", release):
            assert not try_to_lock(other, fcntl.LOCK_EX)
    assert lines == ["waiting"]


def test_a_short_wait_is_not_announced(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.05, fcntl.flock, [other, fcntl.LOCK_UN]).start()
        with locked(tmp_path / "lock", pytest.fail, patience=60):
            assert not try_to_lock(other, fcntl.LOCK_EX)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_an_error(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, number)
    path = tmp_path / "lock"
    with pytest.raises(OSError, match=rf"{os.strerror(number)}: '{path}'"), locked(path, pytest.fail):
        pass
    with path.open() as file, pytest.raises(OSError, match=os.strerror(number)):
        try_to_lock(file, fcntl.LOCK_EX)


def test_a_pipe_in_the_place_of_the_file_is_not_locked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(NotRegularError), locked(tmp_path / "lock"):
        pass
