"""Many token sequences in two arrays, of which that of the tokens may stay in a file."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from rmsexp.data.files import write_array

TOKEN = np.dtype("<i4")  # little-endian on every machine


class StoredTokens:
    """The tokens in a .npy file, int32 of shape (token,). A slice is read from the file when it is asked for.

    The file is not memory-mapped: the mapped part of it would count as memory of the process, and with large pages in
    the page cache, a batch of a thousand sentences maps a file of a gigabyte almost completely.

    Raises: FileNotFoundError, ValueError or EOFError if the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        mapped = np.load(path, mmap_mode="r")
        self._path, self._start, self._dtype, self._length = path, mapped.offset, mapped.dtype, len(mapped)
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return consecutive tokens. Raises: OSError if they cannot be read."""
        start, stop, _ = part.indices(self._length)
        size, place = max(0, stop - start) * self._dtype.itemsize, self._start + start * self._dtype.itemsize
        content = os.pread(self._file, size, place)
        if len(content) < size:
            raise OSError(f"{self._path} is shorter than when it was opened")
        return np.frombuffer(content, dtype=self._dtype)


@dataclass(frozen=True)
class Sequences:
    """Token sequences: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``.

    ``tokens`` is int32 of shape (token,), all sequences one after the other. ``offsets`` is int64 of shape
    (sequence + 1,).
    """

    tokens: np.ndarray | StoredTokens
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, ids: Sequence[Sequence[int]]) -> Sequences:
        return cls(np.fromiter(chain.from_iterable(ids), dtype=np.int32), offsets(map(len, ids)))

    @classmethod
    def load(cls, folder: Path, name: str) -> Sequences:
        """Return what :meth:`save` wrote; the tokens stay in their file.

        Raises: FileNotFoundError, ValueError or EOFError if a file is missing or damaged.
        """
        return cls(StoredTokens(folder / f"{name}_tokens.npy"), np.load(folder / f"{name}_offsets.npy"))

    def save(self, folder: Path, name: str) -> None:
        """Write ``<name>_tokens.npy`` and ``<name>_offsets.npy``."""
        np.save(folder / f"{name}_tokens.npy", self.tokens[:])
        np.save(folder / f"{name}_offsets.npy", self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        i = range(len(self))[index]  # counts negative indices from the end, and raises IndexError
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def first(self, count: int) -> Sequences:
        """Return the first ``count`` sequences, or all if there are fewer. Stored tokens are read."""
        offsets = self.offsets[: count + 1]
        return Sequences(self.tokens[: offsets[-1]], offsets)

    def count(self, token: int) -> int:
        """Return how often a token occurs."""
        return int(np.count_nonzero(self.tokens[:] == token))

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, int64 of shape (sequence,)."""
        return np.diff(self.offsets)


def join(parts: Sequence[Path], folder: Path, name: str) -> None:
    """Join what :meth:`Sequences.save` wrote to the folders ``parts`` into one file each for tokens and offsets."""
    starts = offsets(np.concatenate([np.diff(np.load(part / f"{name}_offsets.npy")) for part in parts]))
    blocks = (np.load(part / f"{name}_tokens.npy") for part in parts)
    write_array(folder / f"{name}_tokens.npy", TOKEN, (int(starts[-1]),), blocks)
    np.save(folder / f"{name}_offsets.npy", starts)


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """Return where each sequence starts, if sequences of these ``lengths`` follow each other, and where the last ends.

    The result is int64 of shape (sequence + 1,).
    """
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.fromiter(lengths, dtype=np.int64))])
