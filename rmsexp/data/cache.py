"""Results that are computed once and kept, whatever else runs or is killed meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rmsexp.record import sync_folder

T = TypeVar("T")


def key(source: str, *parts: object) -> str:
    """A folder's name, 16 hexadecimal digits, for a result of ``parts`` (told apart by ``repr``).

    ``source`` is the ``__file__`` of the module that computes the result: a changed module gives another name.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T | None], make: Callable[[Path], None]) -> T:
    """What ``read(folder)`` returns, after ``make`` has filled the folder where it returns None (missing, damaged).

    ``make`` is given an empty temporary folder for its files; that takes the name ``folder`` once they are durable, so
    the folder is whole or absent. Of processes that want the same folder, one makes it and the others wait.

    Raises: OSError if the folder cannot be written, and whatever ``read`` and ``make`` raise; nothing is kept then.
    """
    if (result := read(folder)) is not None:
        return result
    with staging(folder) as temporary:
        if (result := read(folder)) is not None:
            return result  # another process made it while this one waited
        shutil.rmtree(folder, ignore_errors=True)
        make(temporary)
        sync(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    result = read(folder)
    assert result is not None
    return result


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside ``path``, under a lock of its name; removed at the end if it is still there.

    The kernel frees the lock however a process ends; what a killed one left in the folder is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sync(folder: Path) -> None:
    """Makes a folder's files durable."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
