"""Results that are computed once and stored, safe against kills and against other processes."""

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

DAMAGE = (FileNotFoundError, ValueError, EOFError)  # raised by a reader for a missing or damaged entry


def key(source: str, *parts: object) -> str:
    """Return a folder name, 16 hexadecimal digits, for a result that depends on ``parts``, compared by ``repr``.

    ``source`` is the ``__file__`` of the module that computes the result: an edited module gives another name.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None]) -> T:
    """Return ``read(folder)``. If the folder is missing or damaged, let ``make`` fill it first.

    ``read`` raises FileNotFoundError, ValueError or EOFError for a missing or damaged folder. ``make`` is given an
    empty temporary folder for its files, which is renamed to ``folder`` once they are durable. So the folder is whole
    or absent. If several processes need the same folder, one makes it and the others wait.

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
    """Yield an empty temporary folder beside ``path``, under a lock for this ``path``.

    The folder is removed at the end if it is still there. A lock ends with its process, and files that a killed process
    left in the folder are removed.
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
    """Turn an OSError of the block into a DataError: ``name`` cannot be stored in ``path``.

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
    """Make the files of a folder durable."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
