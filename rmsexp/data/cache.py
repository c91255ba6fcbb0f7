"""Compute a result once and store it in a folder, which appears only when it is complete."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rmsexp.data import DataError
from rmsexp.system.atomic import sync_folder
from rmsexp.system.command_line import inform
from rmsexp.system.lock import locked

T = TypeVar("T")


def key(source: str, *parts: object) -> str:
    """Return a name, 16 hexadecimal digits, for a stored result that depends on ``parts`` and on a module's code.

    The name is a hash of the ``repr`` of ``parts`` and of the content of ``source``, which is the ``__file__`` of the
    module that computes the result. So editing this module changes the name; editing a module that it imports does not.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None]) -> T:
    """Return ``read(folder)``. If the folder is missing, let ``make`` write its files to a temporary folder first.

    If several processes need the same folder, one makes it and the others wait. If ``make`` fails or the process is
    killed, nothing is stored.

    Raises: DataError if the folder cannot be read or stored; whatever ``make`` raises.
    """
    if not folder.exists():
        try:
            with staging(folder) as temporary:
                if not folder.exists():  # another process may have made it while this one waited
                    make(temporary)
                    publish(temporary, folder)
        except OSError as error:
            raise DataError(
                f"{folder} cannot be stored ({error.strerror or error}).\n"
                "Free some space there, or choose another folder (data.root)."
            ) from None
    try:
        return read(folder)
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise DataError(f"{folder} cannot be read ({error}).\nDelete this folder; it is then computed again.") from None


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, and hold an exclusive lock for ``path`` meanwhile.

    Wait while another process holds the lock, and report it. At the end, or when the lock is taken after a kill, the
    temporary folder is removed, unless the caller has renamed it (:func:`publish`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with locked(path.with_name(f".{path.name}.lock"), lambda: inform(f"waiting for another process: {path}")):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, folder: Path) -> None:
    """Rename a folder once its files are on the disk."""
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(temporary)
    temporary.rename(folder)
    sync_folder(folder.parent)
