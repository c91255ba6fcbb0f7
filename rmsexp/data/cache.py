"""Compute a result once and store it in a folder, so that a kill, another process or damage can never change it.

The folder has a file with a digest of its name and its other files, which is checked whenever the result is read. A
folder with any damage is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rmsexp.data import DataError, Report
from rmsexp.system.atomic import sync_folder
from rmsexp.system.command_line import brief, inform
from rmsexp.system.file_lock import locked
from rmsexp.system.readers import NOT_DAMAGE

T = TypeVar("T")

DIGEST = "digest"  # the name of the file with the digest
DAMAGE = (OSError, ValueError, EOFError)  # what reading a missing or damaged folder raises


def key(source: str, *parts: object) -> str:
    """Return a name, 16 hexadecimal digits, for a stored result that depends on ``parts`` and on a module's code.

    The name is a hash of the ``repr`` of ``parts`` and of the content of ``source``, which is the ``__file__`` of the
    module that computes the result. So editing this module changes the name; editing a module that it imports does not.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None], report: Report) -> T:
    """Return ``read(folder)``. If the folder is missing or damaged, let ``make`` compute its files first.

    The content of the folder is compared with its digest before it is read. A folder that is damaged or was renamed is
    reported in one line and replaced. ``make`` is given an empty temporary folder for its files, which is renamed to
    ``folder`` once the files are on the disk, so a kill cannot leave an incomplete ``folder``. If several processes
    need the same folder, one makes it and the others wait.

    Raises: DataError if the folder may be intact, but cannot be read now, or if it cannot be written; whatever ``make``
    raises. If ``make`` fails, nothing is stored.
    """
    try:
        return _checked(folder, read)
    except DAMAGE as error:
        if os.path.lexists(folder):
            report(brief(f"{folder} is damaged ({error}); its content is computed again"))
    try:
        with staging(folder) as temporary:
            try:
                return _checked(folder, read)  # another process made it while this one waited
            except DAMAGE:
                remove(folder)
            make(temporary)
            (temporary / DIGEST).write_text(_folder_digest(temporary, folder))
            for path in temporary.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(temporary)
            temporary.rename(folder)
            sync_folder(folder.parent)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise DataError(
            f"{folder} cannot be stored ({error.strerror or error}{where}).\n"
            "Free some space there, or choose another folder (data.root)."
        ) from None
    return read(folder)


def _checked(folder: Path, read: Callable[[Path], T]) -> T:
    """Return ``read(folder)``.

    Raises: one of ``DAMAGE`` if the folder is missing or its digest does not fit; DataError if an error of reading does
    not show damage, but for example missing permissions.
    """
    try:
        if irregular := [path.name for path in folder.iterdir() if path.is_symlink() or not path.is_file()]:
            raise ValueError(f"{irregular[0]} is not a regular file")
        if (folder / DIGEST).read_bytes() != _folder_digest(folder, folder).encode():
            raise ValueError("its digest does not fit")
        return read(folder)
    except OSError as error:
        if error.errno not in NOT_DAMAGE:
            raise
        raise DataError(
            f"{folder} cannot be read ({error.strerror}).\nMake it readable, or choose another folder with data.root."
        ) from None


def _folder_digest(folder: Path, place: Path) -> str:
    """Return a digest of the files in ``folder``, and of the last two names of its final path, ``place``."""
    contents = []
    for path in sorted(folder.iterdir()):
        if path.name != DIGEST:
            with path.open("rb") as file:
                contents.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return hashlib.sha256(repr((place.parts[-2:], contents)).encode()).hexdigest()


def remove(path: Path) -> None:
    """Remove a folder, a file or a link, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, and hold an exclusive lock for ``path`` meanwhile.

    Wait while another process holds the lock, and say so. Create the parent folder of ``path`` if it is missing. At the
    end, remove the temporary folder, unless the caller has renamed it. If a process is killed, its lock is released,
    and the next process that gets the lock removes what the killed process left in the temporary folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock, lambda: inform(f"waiting for another process that stores {path}")):
        remove(temporary)
        try:
            temporary.mkdir()
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
