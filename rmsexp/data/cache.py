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

DAMAGE = (FileNotFoundError, ValueError, EOFError)  # what cached's ``read`` raises for a missing or damaged folder


def key(source: str, *parts: object) -> str:
    """Return a name, 16 hexadecimal digits, for a stored result that depends on ``parts`` and on a module's code.

    The name is a hash of the ``repr`` of ``parts`` and of the content of ``source``, which is the ``__file__`` of the
    module that computes the result. So editing this module changes the name; editing a module that it imports does not.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None]) -> T:
    """Return ``read(folder)``. If the folder is missing or damaged, let ``make`` compute its files first.

    ``read`` must raise FileNotFoundError, ValueError or EOFError for a missing or damaged folder. A damaged folder is
    removed. ``make`` is given an empty temporary folder for its files, which is renamed to ``folder`` once the files
    are on the disk, so a kill cannot leave an incomplete ``folder``. If several processes need the same folder, one
    makes it and the others wait.

    Raises: OSError if the folder cannot be written, and whatever ``make`` raises. If ``make`` fails, nothing is stored.
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
    """Yield an empty temporary folder beside ``path``, and hold an exclusive lock for ``path`` meanwhile.

    Wait while another process holds the lock. Create the parent folder of ``path`` if it is missing. At the end, remove
    the temporary folder, unless the caller has renamed it. If a process is killed, its lock is released, and the next
    process that gets the lock removes what the killed process left in the temporary folder.
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
    """Turn an OSError in the ``with`` block into a DataError: "<name> cannot be stored in <path> (<reason>)".

    ``size_bytes``, if given, is the space on disk that the block needs; the message names it.
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
    """Write the files of a folder, which has no subfolders, and the folder itself through to the disk (fsync)."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
