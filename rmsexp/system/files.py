"""Files and folders that are used only after a check of what they are. Imports only the standard library.

A results folder may hold anything, such as a pipe, and opening that would wait. A folder for compiled code must be one
that only this user can change.
"""

import os
import tempfile
from pathlib import Path
from typing import IO, Any

WRITABLE_BY_OTHERS = 0o022  # bits of a file's mode: writable by its group or by everybody


class NotRegularError(OSError, ValueError):
    """A path is that of a folder, pipe, socket or device, and not of a file."""


def open_regular(path: Path, mode: str = "rb") -> IO[Any]:
    """Open a file. Raises: NotRegularError for something else; OSError if the file cannot be opened."""
    check_regular(path)
    return path.open(mode)


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises: as :func:`open_regular`."""
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path) -> None:
    """Raises: NotRegularError if there is something else than a file."""
    # opening a pipe would wait for somebody at its other end, and reading a device may never end
    if path.exists() and not path.is_file():
        raise NotRegularError(f"{path} is not a regular file")


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can read and change, unless it exists, and return it.

    Raises: OSError if it cannot be created, or if other users can change it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & WRITABLE_BY_OTHERS:
        raise PermissionError(f"other users can change {path}: remove it")
    return path


def cache_folder(home: Path, name: str) -> Path:
    """Return a private folder for files that can be made again: ``home / name``, or else one in the temporary folder.

    ``home``: a path such as ``~/.cache/rmsexp/kernels``. Raises: OSError if neither folder can be used.
    """
    problems = []
    for place in (home / name, Path(tempfile.gettempdir(), f"rmsexp-{home.name}-{os.geteuid()}-{name}")):
        try:
            return private_folder(place.expanduser())
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home folder
            problems.append(str(error))
    raise OSError("; ".join(problems))
