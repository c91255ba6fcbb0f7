"""Folders and files that only this user can change. This module imports only the standard library."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

WRITABLE_BY_OTHERS = 0o022  # bits of a file's mode: writable by its group or by everybody


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can read and change, unless it exists, and return it.

    Raises: OSError if it cannot be created, or if other users can change it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not belongs_to_user(path):
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


def belongs_to_user(path: Path) -> bool:
    """Return whether this user owns a file or folder, and nobody else can write to it."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & WRITABLE_BY_OTHERS
