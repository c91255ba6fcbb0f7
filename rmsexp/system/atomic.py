"""Replace files atomically, and move files aside. This module imports only the standard library."""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any


def make_writable(folder: Path) -> None:
    """Make a folder if it is missing. Raises: OSError at once if it cannot be made, or no file can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=folder).close()


def move_aside(path: Path) -> Path:
    """Rename a file or folder to ``<name>.old<number>``, with the smallest unused number; return the new path."""
    number = 0
    while (target := path.with_name(f"{path.name}.old{number}")).exists():
        number += 1
    return path.rename(target)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file so that it has either its old or its complete new content, even if the power fails."""
    data = content.encode() if isinstance(content, str) else content
    # processes of containers that share a folder often have the same id
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the renames in a folder have been written to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=2) + "\n")
