"""Open files of a results folder, which may hold anything, without waiting. Imports only the standard library."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any


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
