"""Compute a result once and store it, so that neither a kill nor another process can leave it incomplete."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rmsexp.data import DataError
from rmsexp.record import sync_folder

T = TypeVar("T")

DAMAGE = (FileNotFoundError, ValueError, EOFError)  # what ``read`` raises if a folder is missing or damaged


def key(source: str, *parts: object) -> str:
    """Return a folder name, 16 hexadecimal digits, for a result that depends on ``parts`` and on a module's code.

    The name is a hash of the ``repr`` of ``parts`` and of the content of ``source``, which is the ``__file__`` of the
    module that computes the result. Editing the module therefore gives another name.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None]) -> T:
    """Return ``read(folder)``. If the folder is missing or damaged, let ``make`` fill it first.

    ``read`` raises FileNotFoundError, ValueError or EOFError for a missing or damaged folder. ``make`` is given an
    empty temporary folder for its files, which is renamed to ``folder`` once they are durable. So the folder is
    complete or absent. If several processes need the same folder, one makes it and the others wait.

    Raises: OSError if the folder cannot be written, and whatever ``make`` raises. Nothing is stored then.
    """
    with suppress(*DAMAGE):
        return read(folder)
    with staging(folder) as temporary:
        with suppress(*DAMAGE):
            return read(folder)  # another process made it while this one waited
        shutil.rmtree(folder, ignore_errors=True)
        make(temporary)
        sync(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    return read(folder)


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, and hold a lock for this ``path`` meanwhile.

    At the end the temporary folder is removed, unless the caller has renamed it. If a process is killed, its lock is
    released, and the next process removes the files that it left.
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


@contextmanager
def storing(name: str, path: Path, size_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError in the ``with`` block into a DataError, which says that ``path`` cannot store ``name``.

    ``size_bytes`` is the space on disk that the block needs, for the message.
    """
    try:
        yield
    except OSError as error:
        need = "" if size_bytes is None else f"; {size_bytes / 1e6:,.0f} MB are needed"
        raise DataError(
            f"{name} cannot be stored in {path} ({error.strerror or error}){need}.\n"
            "Free some space there, or choose another folder (data.root)."
        ) from None


def sync(folder: Path) -> None:
    """Write the files of a folder through to the disk (fsync)."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
