"""The lock of a run: one process at a time holds it, and its holder notices if the lock's file is deleted."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

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


@pytest.mark.parametrize("change", [delete, replace])
def test_of_a_file_that_is_deleted_while_it_is_being_locked_the_next_one_is_locked(
    lock: Lock, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, changes = fcntl.flock, [change]

    def change_then_lock(*arguments: int) -> None:
        if changes:
            changes.pop()(lock.path)
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", change_then_lock)
    with lock.held():
        lock.check()
        with pytest.raises(RunLockedError, match="is being written by another process"), same_lock(lock).held():
            pass


def test_whoever_looks_at_the_lock_does_not_disturb_who_takes_it(lock: Lock) -> None:
    with lock.held():
        pass
    with lock.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not same_lock(lock).is_held()
        threading.Timer(0.05, fcntl.flock, [file, fcntl.LOCK_UN]).start()
        with lock.held():
            assert same_lock(lock).is_held()


def test_the_lock_of_files_that_may_only_be_read_can_be_looked_at(lock: Lock) -> None:
    with lock.held():
        lock.path.chmod(0o444)
        assert same_lock(lock).is_held()
    assert not lock.is_held()


def test_a_forked_child_does_not_hold_the_lock_of_a_process_that_ends(lock: Lock) -> None:
    """As the processes that load data, if they outlive a process that was killed."""
    reading, writing = os.pipe()
    with lock.held():
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the parent closes the other end
            os._exit(0)
    assert not lock.is_held()
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)


def test_on_a_file_system_without_locks_nobody_holds_one(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    lock.path.touch()
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match=r"cannot be written or locked \(No locks available\)"), lock.held():
        pass
    assert not lock.is_held()


@pytest.mark.parametrize(("function", "what"), [("pathlib.Path.mkdir", "be made"), ("os.open", "be written or locked")])
def test_a_folder_that_cannot_be_used_is_named_with_a_way_out(
    function: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if function == "os.open":
        (tmp_path / "rms").mkdir()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "results")

    monkeypatch.setattr(function, refuse)
    with pytest.raises(PermissionError) as caught, Lock(tmp_path / "rms/.seed0.lock", tmp_path / "rms/seed0").held():
        pass
    where = f"{tmp_path}/rms cannot {what} (Permission denied)"
    assert str(caught.value) == f"{where}; results=DIR names another folder"


def test_asking_for_a_lock_that_nobody_took_creates_no_file(lock: Lock) -> None:
    assert not lock.is_held()
    assert not lock.path.exists()
