"""Files of data sets: read lines, compute digests, write arrays, and describe what is missing or damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rmsexp.data import DataError

FLOAT32 = np.dtype("<f4")  # little-endian on every machine


def read_bytes(path: Path, remedy: str = "Replace the file.") -> bytes:
    """Return a file's content. ``remedy`` ends the message of the error.

    Raises: DataError if the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error, remedy) from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Only "\\n" ends a line.

    Raises: DataError if the file cannot be read or is not UTF-8.
    """
    content = read_bytes(path)
    try:
        return content.decode().removeprefix("\ufeff").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.start - content.rfind(b"\n", 0, error.start)
        raise not_utf8(path, line, byte, error) from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Raises: DataError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


def digest_of(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the files' names and contents, in hexadecimal.

    Raises: DataError if a file cannot be read.
    """
    digests = [(path.name, sha256_of(path)) for path in paths]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def write_float32(path: Path, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    """Write blocks of rows to a .npy file, which has float32 numbers and this ``shape``.

    The file is not memory-mapped, because on a full disk a write raises OSError, but a mapped page kills the process.
    """
    with path.open("wb") as file:
        header = {"descr": FLOAT32.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=FLOAT32).data)


def missing(name: str, folder: Path, paths: Iterable[Path], origin: str) -> DataError:
    """Return the error for files below ``folder`` that the user has to get.

    ``name`` is the data set. ``origin`` is a full sentence that says where to get the files.
    """
    listed = ", ".join(str(path.relative_to(folder)) for path in paths)
    return DataError(f"{name} is incomplete: in {folder} there is no {listed}.\n{origin} scale=demo needs no data.")


def unreadable(file: Path | str, error: Exception, remedy: str = "Replace the file.") -> DataError:
    """Return the error for a file that cannot be opened or decoded."""
    reason = getattr(error, "strerror", None) or error or type(error).__name__
    return DataError(f"{file} cannot be read ({reason}).\n{remedy}")


def not_utf8(path: Path, line: int, byte: int, error: UnicodeDecodeError) -> DataError:
    """Return the error for a line that is not UTF-8. ``line``, and ``byte`` within it, count from 1."""
    return DataError(
        f"{path}, line {line}: not UTF-8 ({error.reason} at byte {byte} of the line).\n"
        "Convert the file to UTF-8, or repair the line."
    )
