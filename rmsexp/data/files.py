"""Files from outside: read, and known by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from rmsexp.data import DataError


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, which only "\\n" ends.

    Raises: DataError if it cannot be read, or is not UTF-8 (in which line, at which byte of it).
    """
    try:
        content = path.read_bytes()
        return content.decode().removeprefix("\ufeff").removesuffix("\n").split("\n")
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.start - content.rfind(b"\n", 0, error.start)
        raise DataError(
            f"{path}, line {line}: not UTF-8 ({error.reason} at byte {byte} of the line).\n"
            "Convert the file to UTF-8, or replace it."
        ) from None


def digest_of(paths: Iterable[Path]) -> str:
    """The sha256 of some files' names and content, in hexadecimal.

    Raises: DataError if one cannot be read.
    """
    digests = []
    for path in paths:
        try:
            with path.open("rb") as file:
                digests.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
        except OSError as error:
            raise _unreadable(path, error) from None
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror}).\nReplace the file.")
