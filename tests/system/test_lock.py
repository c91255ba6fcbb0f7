"""Locks of files and of a run: who holds one, how others wait, deleted files, and file systems that have none."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rmsexp.system.command_line import ReportedError
from rmsexp.system.lock import Lock, RunLockedError, is_locked, locked


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    return Lock(tmp_path / ".seed0.lock", tmp_path / "seed0")


def failing(number: int) -> Callable[..., object]:
    """Return a function that fails as a call of the system does, with the number of an error."""

    def fail(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


# --- files


def test_waiting_is_announced_once_unless_it_is_short(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    lines: list[str] = []
    with locked(path, pytest.fail):
        assert is_locked(path)
    with path.open("w") as other:

        def release() -> None:
            lines.append("waiting")
            fcntl.flock(other, fcntl.LOCK_UN)

        fcntl.flock(other, fcntl.LOCK_EX)
        with locked(path, release):
            assert is_locked(path)
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.05, fcntl.flock, [other, fcntl.LOCK_UN]).start()
        with locked(path, pytest.fail, patience=60):
            assert is_locked(path)
    assert lines == ["waiting"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_on_a_file_system_without_locks_nobody_holds_one(
    number: int, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.path.touch()
    monkeypatch.setattr(fcntl, "flock", failing(number))
    reason = os.strerror(number)
    with pytest.raises(OSError, match=rf"{reason}: '{lock.path}'"), locked(lock.path, pytest.fail):
        pass
    with pytest.raises(OSError, match=rf"cannot be written or locked \({reason}\)"), lock.held():
        pass
    assert not is_locked(lock.path)


# --- runs


def replace(path: Path) -> None:
    path.with_name("other").write_text("")
    path.with_name("other").replace(path)


@pytest.mark.parametrize("change", [Path.unlink, replace])
def test_the_holder_notices_that_the_file_was_deleted_or_replaced(lock: Lock, change: Callable[[Path], None]) -> None:
    lock.check()  # does nothing while the lock is not held
    with lock.held():
        lock.check()
        change(lock.path)
        with Lock(lock.path, lock.path).held(), pytest.raises(ReportedError, match="was deleted or replaced"):
            lock.check()
    lock.check()


@pytest.mark.parametrize("change", [Path.unlink, replace])
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
        other = Lock(lock.path, lock.path)
        with pytest.raises(RunLockedError, match="is being written by another process"), other.held():
            pass


def test_whoever_looks_at_the_lock_does_not_disturb_who_takes_it(lock: Lock) -> None:
    assert not is_locked(lock.path)
    assert not lock.path.exists()  # asking creates no file
    with lock.held():
        lock.path.chmod(0o444)
        assert is_locked(lock.path)
    lock.path.chmod(0o644)
    with lock.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not is_locked(lock.path)
        threading.Timer(0.05, fcntl.flock, [file, fcntl.LOCK_UN]).start()
        with lock.held():
            assert is_locked(lock.path)


def test_a_forked_child_does_not_hold_the_lock_of_a_process_that_ends(lock: Lock) -> None:
    """As the processes that load data, if they outlive a process that was killed."""
    reading, writing = os.pipe()
    with lock.held():
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the parent closes the other end
            os._exit(0)
    assert not is_locked(lock.path)
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)


@pytest.mark.parametrize("function", ["pathlib.Path.mkdir", "os.open"])
def test_a_folder_that_cannot_be_used_is_named_with_a_way_out(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if function == "os.open":
        (tmp_path / "rms").mkdir()
    monkeypatch.setattr(function, failing(errno.EACCES))
    with pytest.raises(PermissionError) as caught, Lock(tmp_path / "rms/.seed0.lock", tmp_path / "rms/seed0").held():
        pass
    where = f"{tmp_path}/rms cannot be written or locked (Permission denied)"
    assert str(caught.value) == f"{where}; results=DIR names another folder"
