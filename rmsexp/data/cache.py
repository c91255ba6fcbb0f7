"""Compute a result once and store it in a folder, so that a kill, another process or damage can never change it.

The folder has a file with a digest of its name and its other files, which is checked whenever the result is read. A
folder with any damage is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rmsexp.data import DataError, Report
from rmsexp.system import cores
from rmsexp.system.atomic import sync_folder
from rmsexp.system.command_line import brief, inform
from rmsexp.system.file_lock import locked
from rmsexp.system.readers import NOT_DAMAGE

T = TypeVar("T")

DIGEST = "digest"  # the name of the file with the digest
BLOCK = 1 << 22  # bytes of a block
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

    The content of the folder is compared with its digest before it is read. A folder that is damaged, was renamed, or
    has no digest because an older version wrote it, is reported in one line and replaced. ``make`` is given an empty
    temporary folder for its files, which is renamed to ``folder`` once the files are on the disk, so a kill cannot
    leave an incomplete ``folder``. If several processes need the same folder, one makes it and the others wait.

    Raises: DataError if the folder may be intact, but cannot be read now; OSError if it cannot be written; whatever
    ``make`` raises. If ``make`` fails, nothing is stored.
    """
    try:
        return _checked(folder, read)
    except DAMAGE as error:
        raise_unless_damage(folder, error)
        if os.path.lexists(folder):
            report(brief(f"{folder} is damaged ({error}); its content is computed again"))
    with staging(folder) as temporary:
        try:
            return _checked(folder, read)  # another process made it while this one waited
        except DAMAGE as error:
            raise_unless_damage(folder, error)
        remove(folder)
        make(temporary)
        (temporary / DIGEST).write_text(_folder_digest(temporary, folder))
        sync(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    return read(folder)


def raise_unless_damage(path: Path, error: Exception) -> None:
    """Raise DataError if an error of reading stored data does not show damage, but for example missing permissions."""
    if isinstance(error, OSError) and error.errno in NOT_DAMAGE:
        raise DataError(
            f"{path} cannot be read ({error.strerror}).\nMake it readable, or choose another folder with data.root."
        ) from None


def _checked(folder: Path, read: Callable[[Path], T]) -> T:
    """Return ``read(folder)``. Raises: one of ``DAMAGE`` if the folder is missing or its digest does not fit."""
    names = {path.name for path in folder.iterdir()}
    if DIGEST not in names:
        raise ValueError("it has no digest, as if an older version had stored it")
    if irregular := [name for name in names if (folder / name).is_symlink() or not (folder / name).is_file()]:
        raise ValueError(f"{irregular[0]} is not a regular file")
    if (folder / DIGEST).read_bytes() != _folder_digest(folder, folder).encode():
        raise ValueError("its digest does not fit")
    return read(folder)


def _folder_digest(folder: Path, place: Path) -> str:
    """Return a digest of the files in ``folder``, and of the last two names of its final path, ``place``."""
    content = content_digest(path for path in folder.iterdir() if path.name != DIGEST)
    return hashlib.sha256(repr((place.parts[-2:], content)).encode()).hexdigest()


def content_digest(files: Iterable[Path]) -> str:
    """Return a digest of the names, sizes and contents of files in any order: it shows damage, not forgery.

    It is the SHA-256, in hexadecimal, of names, sizes and the CRC-32 of each block. Several blocks are read at a time.
    A gigabyte takes about 0.2 seconds on one core. The SHA-256 of the contents would add a second to each run's start.

    Raises: OSError if a file cannot be read; ValueError if it is not a regular file.
    """
    sizes = {path: _size_bytes(path) for path in sorted(files)}
    blocks = [(path, start) for path, size in sizes.items() for start in range(0, max(size, 1), BLOCK)]
    with ThreadPoolExecutor(cores.threads()) as pool:
        checksums = list(pool.map(_checksum, blocks))
    listing = [(path.name, size) for path, size in sizes.items()]
    return hashlib.sha256(repr((listing, checksums)).encode()).hexdigest()


def _size_bytes(path: Path) -> int:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for somebody who writes to it
        raise ValueError(f"{path.name} is not a regular file")
    return status.st_size


def _checksum(block: tuple[Path, int]) -> int:
    path, start = block
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return zlib.crc32(file.read(BLOCK))


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


@contextmanager
def storing(name: str, path: Path, size_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError in the ``with`` block into a DataError: "<name> cannot be stored in <path> (<reason>)".

    ``size_bytes``, if given, is the space on disk that the block needs; the message names it.
    """
    try:
        yield
    except OSError as error:
        need = "" if size_bytes is None else f"; {size_bytes / 1e6:,.0f} MB are needed"
        where = f": {error.filename}" if error.filename else ""
        raise DataError(
            f"{name} cannot be stored in {path} ({error.strerror or error}{where}){need}.\n"
            "Free some space there, or choose another folder (data.root)."
        ) from None


def sync(folder: Path) -> None:
    """Write the files of a folder, which has no subfolders, and the folder itself through to the disk (fsync)."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
