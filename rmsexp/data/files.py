"""Files of data sets: read them, compute digests, write arrays, and build the errors for missing and damaged files."""

from __future__ import annotations

import hashlib
import math
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rmsexp.data import DataError, UnavailableError, UnreadableError
from rmsexp.system.command_line import value_word

FLOAT32 = np.dtype("<f4")  # little-endian on every machine
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh")  # gzip, xz, zstd, zip, bzip2
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # its byte order marks; one begins UTF-32, too
HEAD = 1024  # bytes by which a compressed file, UTF-16 and UTF-32 are noticed


def missing_own_file(name: str, paths: Mapping[str, str]) -> str | None:
    """Return the first split of which ``data.name=files`` lacks the user's own file, or None.

    ``name``: the value of ``data.name``. ``paths``: the path of each split, or "".

    Raises: ValueError if a path is given that another ``data.name`` would not read.
    """
    if name == "files":
        return next((split for split, path in paths.items() if not path), None)
    if given := [split for split, path in paths.items() if path]:
        raise ValueError(f"data.{given[0]} is read with data.name=files only; add data.name=files")
    return None


def read_bytes(path: Path, remedy: str = "Replace the file.") -> bytes:
    """Return a file's content. ``remedy`` is the second line of the error's message: what to do.

    Raises: UnreadableError.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(str(unreadable(path, error, remedy))) from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, without their ends and without a byte order mark.

    Only "\\n" ends a line; a "\\r" before it is kept. An empty file gives one empty line.

    Raises: UnreadableError; DataError if the file is not UTF-8.
    """
    content = read_bytes(path)
    check_text(path, content)
    try:
        return content.decode().removeprefix("\ufeff").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.start - content.rfind(b"\n", 0, error.start)
        raise not_utf8(path, line, byte, error) from None


def check_text(path: Path, content: bytes) -> None:
    """Raise DataError if a file's content, or its beginning, is compressed or text in UTF-16 or UTF-32.

    Without a byte order mark, these have null bytes in every character of ASCII; text in UTF-8 has few, if any.
    """
    head = content[:HEAD]
    if head.startswith(COMPRESSED) and not head.isascii():
        raise DataError(f"{path} is compressed.\nUnpack it, and name the unpacked file.")
    if head.startswith(UTF_16) or 3 * head.count(0) > len(head) > 3:
        raise DataError(f"{path} is in UTF-16 or UTF-32, not in UTF-8.\nConvert the file to UTF-8.")


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
    """Return a SHA-256, in hexadecimal, of the names (without folders) and contents of files, in this order.

    Raises: DataError if a file cannot be read.
    """
    digests = [(path.name, sha256_of(path)) for path in paths]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def digest_of_words(words: Sequence[str]) -> str:
    """Return a digest of a vocabulary, 16 hexadecimal digits: of its words and their order, which gives their ids."""
    return hashlib.sha256(repr(list(words)).encode()).hexdigest()[:16]


def digest_of_contents(paths: Iterable[Path]) -> str:
    """Return a SHA-256, in hexadecimal, of the contents of files, in this order (:func:`known_sha256_of`).

    Raises: DataError if a file cannot be read.
    """
    return hashlib.sha256(repr([known_sha256_of(path) for path in paths]).encode()).hexdigest()


def known_sha256_of(path: Path) -> str:
    """Return :func:`sha256_of` a file, which this process reads again only if its size or time of change is another.

    Raises: DataError if the file cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return _sha256_of_version(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_of_version(path: Path, size: int, changed: int) -> str:  # noqa: ARG001
    return sha256_of(path)


class StoredArray:
    """The array in a .npy file, whose rows (indices of the first axis) are read from the file when they are asked for.

    The file is not memory-mapped: what is mapped of it counts as memory of the process, and Linux maps its page cache
    in large blocks, so that a thousand short reads map almost all of a file of a gigabyte.

    Raises: FileNotFoundError, ValueError or EOFError if the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        mapped = np.load(path, mmap_mode="r")
        if not mapped.flags.c_contiguous:
            raise ValueError("it is in Fortran order; store numpy.ascontiguousarray of the array")
        self.shape, self.dtype, self._path, self._start = mapped.shape, mapped.dtype, path, mapped.offset
        self._row_bytes = mapped.itemsize * math.prod(mapped.shape[1:])
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return consecutive rows, or those whose numbers are in an array. Raises: OSError if they cannot be read."""
        numbers = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if isinstance(numbers, range) and numbers.step == 1:
            self._read(found, numbers.start)
        else:
            for index, number in enumerate(numbers):
                self._read(found[index : index + 1], range(len(self))[number])
        return found

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype, copy=copy)

    def _read(self, target: np.ndarray, first: int) -> None:
        """Fill consecutive rows with those from number ``first`` on."""
        content, done = target.reshape(-1).view(np.uint8).data, 0
        while done < len(content):  # a read ends after two gigabytes
            count = os.preadv(self._file, [content[done:]], self._start + first * self._row_bytes + done)
            if not count:
                raise OSError(f"{self._path} is shorter than when it was opened")
            done += count


def write_array(path: Path, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    """Write an array of this type and ``shape`` to a .npy file. ``blocks`` yields its rows, a block at a time.

    The file is not memory-mapped: on a full disk, a write raises OSError, but filling a mapped page kills the process.
    """
    with path.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=dtype).data)


def other_root(root: Path, paths: Iterable[Path]) -> str:
    """Return a sentence that says where missing files are if ``root``, the value of data.root, is a folder too deep or
    too high; "" if they are not there. ``paths``: the files below ``root``, in which * stands for any name.
    """
    top = root.absolute()
    wanted = [path.relative_to(root) for path in paths]
    above = [
        folder
        for depth, folder in enumerate(top.parents, 1)  # those in which ``root`` is a folder of the data set
        if any(len(path.parts) > depth and path.parts[:depth] == top.parts[-depth:] for path in wanted)
    ]
    for folder in (*above, *sorted(path for path in top.glob("*") if path.is_dir())):
        if all(any(folder.glob(str(path))) for path in wanted):
            return f"{folder} has {wanted[0]}: write {value_word('data.root', folder)}."
    return ""


def check_root(name: str, root: Path, paths: Sequence[Path]) -> None:
    """Raise DataError if files that would be downloaded exist, but data.root is the wrong folder.

    The arguments are as in :func:`other_root`; ``name`` is the data set.
    """
    if place := other_root(root, paths):
        raise UnavailableError(f"{name} is not in {paths[0].parent}.\n{place}")


def missing(name: str, folder: Path, paths: Iterable[Path], origin: str, root: Path | None = None) -> DataError:
    """Return the error for missing files, ``paths`` below ``folder``, that the user has to get.

    ``name`` is the data set. ``origin`` is a full sentence that says where to get the files and where to put them.
    ``root`` is data.root; None: the folder above ``folder``.
    """
    paths = list(paths)
    first, *others = [path.relative_to(folder) for path in paths]
    if place := other_root(root or folder.parent, paths):
        return UnavailableError(f"{name} is not in {folder}.\n{place}")
    more = f", nor {len(others)} other files" if others else ""
    return DataError(
        f"{name} is incomplete: in {folder} there is no {first}{more}.\n{origin} scale=demo needs no data."
    )


def unreadable(file: Path | str, error: Exception, remedy: str = "Replace the file.") -> DataError:
    """Return the error for a file that cannot be opened or decoded. ``file`` is its path or a text with its path."""
    reason = getattr(error, "strerror", None) or error or type(error).__name__
    return DataError(f"{file} cannot be read ({reason}).\n{remedy}")


def not_utf8(path: Path, line: int, byte: int, error: UnicodeDecodeError) -> DataError:
    """Return the error for a line that is not UTF-8. ``line``, and ``byte`` within this line, count from 1."""
    return DataError(
        f"{path}, line {line}: not UTF-8 ({error.reason} at byte {byte} of the line).\n"
        "Convert the file to UTF-8, or repair the line."
    )
