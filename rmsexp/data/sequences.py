"""Many token sequences in two arrays, of which that of the tokens may stay in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import SupportsIndex

import numpy as np

TOKEN, LENGTH = np.dtype("<i4"), np.dtype("<i8")  # in files: little-endian on every machine


@dataclass(frozen=True)
class Sequences:
    """Token sequences: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``.

    ``tokens`` is int32 of shape (token,), all sequences one after the other. ``offsets`` is int64 of shape
    (sequence + 1,).
    """

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, ids: Sequence[Sequence[int]]) -> Sequences:
        return cls(np.fromiter(chain.from_iterable(ids), dtype=np.int32), offsets(map(len, ids)))

    @classmethod
    def load(cls, folder: Path, name: str) -> Sequences:
        """Return what :meth:`save` wrote; the tokens are memory-mapped."""
        tokens = np.asarray(np.memmap(folder / f"{name}.tokens", dtype=TOKEN, mode="r"))
        starts = offsets(np.fromfile(folder / f"{name}.lengths", dtype=LENGTH))
        if starts[-1] != len(tokens):
            raise ValueError(f"{name}.tokens has {len(tokens)} tokens, not {starts[-1]}")
        return cls(tokens, starts)

    def save(self, folder: Path, name: str) -> None:
        """Append the sequences to the files ``<name>.tokens`` and ``<name>.lengths``."""
        for values, ending in ((self.tokens.astype(TOKEN), "tokens"), (self.lengths.astype(LENGTH), "lengths")):
            with (folder / f"{name}.{ending}").open("ab") as file:
                values.tofile(file)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        i = range(len(self))[index]  # counts negative indices from the end, and raises IndexError
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def first(self, count: int) -> Sequences:
        """Return the first ``count`` sequences, or all if there are fewer."""
        offsets = self.offsets[: count + 1]
        return Sequences(self.tokens[: offsets[-1]], offsets)

    def count(self, token: int) -> int:
        """Return how often a token occurs."""
        return int(np.count_nonzero(self.tokens == token))

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, int64 of shape (sequence,)."""
        return np.diff(self.offsets)


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """Return where each sequence starts, if sequences of these ``lengths`` follow each other, and where the last ends.

    The result is int64 of shape (sequence + 1,).
    """
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.fromiter(lengths, dtype=np.int64))])
