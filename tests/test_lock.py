"""The lock of a run: one process at a time holds it, and its holder notices if the lock's file is deleted."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from rmsexp.system.file_lock import NoLocksError
from rmsexp.system.lock import Lock, RunLockedError


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    return Lock(tmp_path / ".seed0.lock", tmp_path / "seed0")


def same_lock(lock: Lock) -> Lock:
    return Lock(lock.path, lock.path)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.with_name("other").write_text("")
    path.with_name("other").replace(path)


@pytest.mark.parametrize("change", [delete, replace])
def test_the_holder_notices_that_the_file_was_deleted_or_replaced(lock: Lock, change: Callable[[Path], None]) -> None:
    lock.check()  # does nothing while the lock is not held
    with lock.held():
        lock.check()
        change(lock.path)
        with same_lock(lock).held(), pytest.raises(RunLockedError, match="was deleted or replaced"):
            lock.check()
    lock.check()


def test_a_file_that_was_deleted_while_it_was_being_locked_is_not_held(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def delete_then_lock(*arguments: int) -> None:
        lock.path.unlink()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", delete_then_lock)
    with pytest.raises(RunLockedError, match="was deleted or replaced"), lock.held():
        pass


def test_on_a_file_system_without_locks_nobody_holds_one(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    lock.path.touch()
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(NoLocksError), lock.held():
        pass
    assert not lock.is_held()


@pytest.mark.parametrize(("method", "what"), [("mkdir", "made"), ("open", "written")])
def test_a_folder_that_cannot_be_used_is_named_with_a_way_out(
    method: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rms").mkdir()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "results")

    monkeypatch.setattr(Path, method, refuse)
    if method == "mkdir":
        (tmp_path / "rms").rmdir()
    with pytest.raises(PermissionError) as caught, Lock(tmp_path / "rms/.seed0.lock", tmp_path / "rms/seed0").held():
        pass
    where = f"{tmp_path}/rms cannot be {what} (Permission denied)"
    assert str(caught.value) == f"{where}; results=DIR names another folder"


def test_asking_for_a_lock_that_nobody_took_creates_no_file(lock: Lock) -> None:
    assert not lock.is_held()
    assert not lock.path.exists()
