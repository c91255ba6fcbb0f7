"""Many token sequences in two arrays, which can be memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import SupportsIndex

import numpy as np


@dataclass(frozen=True)
class Sequences:
    """Token sequences: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``.

    ``tokens`` is int32, one after the other, possibly memory-mapped; ``offsets`` int64 of shape (sequence + 1,).
    """

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]]) -> Sequences:
        """Those of lists of ids."""
        return cls(np.fromiter(chain.from_iterable(ids), dtype=np.int32), offsets(map(len, ids)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        i = range(len(self))[index]  # negative ones count from the end; IndexError beyond it
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def first(self, count: int) -> Sequences:
        """The first ``count`` sequences, or all if there are fewer."""
        offsets = self.offsets[: count + 1]
        return Sequences(self.tokens[: offsets[-1]], offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Int64 of shape (sequence,)."""
        return np.diff(self.offsets)


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """Where sequences of these lengths begin, and where the last ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.fromiter(lengths, dtype=np.int64))])
