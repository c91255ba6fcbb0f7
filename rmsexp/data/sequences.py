"""Token sequences, stored in an array of tokens, perhaps memory-mapped, and an array of offsets; batches of them.

"Sentence" stands for a training example: a sentence pair, or a passage with its question. The caller gives the order
of the sentences, for example a random permutation. This order is cut into pools of consecutive sentences. Each pool is
sorted by length before it is cut into batches, so that batches need little padding.

Deviation: attentive reader, length of the rows of a batch
    original: that of the longest sequence, and one more (attentive-reader:codes/att_reader/attentive_reader.py:43-55)
    ours: that of the longest sequence
    why: padding carries no information
    effect: with norm=bn norm.everywhere=true norm.padding=include, one position less of padding in the statistics of
        the attention's keys; none otherwise
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

TOKEN, LENGTH = np.dtype("<i4"), np.dtype("<i8")  # in files: little-endian on every machine


@dataclass(frozen=True)
class Sequences:
    """Token sequences: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``."""

    tokens: np.ndarray  # int32 (token,), all sequences one after the other
    offsets: np.ndarray  # int64 (sequence + 1,)

    @classmethod
    def from_lists(cls, ids: Sequence[Any]) -> Sequences:
        return cls(np.fromiter(chain.from_iterable(ids), dtype=np.int32), offsets(map(len, ids)))

    @classmethod
    def load(cls, folder: Path, name: str) -> Sequences:
        """Return what :meth:`save` wrote; the tokens are memory-mapped."""
        tokens = np.asarray(np.memmap(folder / f"{name}.tokens", dtype=TOKEN, mode="r"))
        starts = offsets(np.fromfile(folder / f"{name}.lengths", dtype=LENGTH))
        if starts[-1] != len(tokens):
            raise ValueError(f"{name}.tokens and {name}.lengths do not match")
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

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, int64 of shape (sequence,)."""
        return np.diff(self.offsets)


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """Return where successive sequences of these lengths start, and where the last ends: int64 (sequence + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.fromiter(lengths, dtype=np.int64))])


def by_sentences(lengths: np.ndarray, order: np.ndarray, batch_size: int, pool: int) -> list[np.ndarray]:
    """Return batches of ``batch_size`` sentences, int64 indices, as Nematus makes them. The last may be smaller.

    A pool has ``pool`` * ``batch_size`` sentences of ``order``, which are sorted by length, longest first, and cut into
    batches. ``lengths``, of shape (sentence,), has the lengths to sort by.
    """
    pools = cut(order, pool * batch_size)
    return [batch for part in pools for batch in cut(_by_length(lengths, part)[::-1], batch_size)]


def cut(indices: np.ndarray, size: int) -> list[np.ndarray]:
    """Return consecutive parts of ``size`` indices; the last one may be smaller."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def even_parts(batch: np.ndarray, parts: int) -> list[np.ndarray]:
    """Split a batch into ``parts`` consecutive parts, at most one per example, whose sizes differ by at most 1."""
    return np.array_split(batch, min(parts, len(batch)))


def by_tokens(lengths: np.ndarray, order: np.ndarray, tokens: int, pool: int) -> list[list[np.ndarray]]:
    """Return one list of batches, int64 indices, per pool, similar to those of zero, the authors' Transformer toolkit.

    A pool has ``pool`` sentences of ``order``, which are sorted by length, shortest first. A batch ends at the end of
    its pool, or where one more sentence would exceed ``tokens`` positions (number of sentences times the longest
    length, so padding is included); a sentence longer than ``tokens`` is a batch by itself. ``lengths``, of shape
    (sentence,), has the length of the longer side of each sentence pair, at least 1.
    """
    pools = []
    for part in cut(order, pool):
        shortest_first = _by_length(lengths, part)
        starts = [0]
        for index, length in enumerate(lengths[shortest_first].tolist()):
            if index and (index + 1 - starts[-1]) * length > tokens:
                starts.append(index)
        pools.append(np.split(shortest_first, starts[1:]))
    return pools


def by_tokens_carried(
    sources: np.ndarray, targets: np.ndarray, order: np.ndarray, tokens: int, pool: int
) -> list[list[np.ndarray]]:
    """Return one list of batches per pool, as zero makes them (zero, data.py:67-117 and utils/util.py:30-65).

    There are two differences from :func:`by_tokens`. A batch ends where one more sentence would reach ``tokens``
    positions. A batch is used only if one of its sides has at least ``tokens / 2`` tokens without padding. The
    sentences of the others come first in the next pool, which takes that many fewer new sentences. Those of the last
    pool are left out, as in zero, whose process for reading ends with each epoch.

    ``sources`` and ``targets``, of shape (sentence,), have the lengths of both sides of each sentence pair, at least 1.
    """
    lengths, pools = np.maximum(sources, targets), list[list[np.ndarray]]()
    carried, start = order[:0], 0
    while start < len(order):
        end = start + max(1, pool - len(carried))
        indices = np.concatenate([carried, order[start:end]])
        (batches,) = by_tokens(lengths, indices, tokens - 1, len(indices))
        used = [2 * max(sources[batch].sum(), targets[batch].sum()) >= tokens for batch in batches]
        pools.append([batch for batch, is_used in zip(batches, used, strict=True) if is_used])
        unused = [batch for batch, is_used in zip(batches, used, strict=True) if not is_used]
        carried = np.concatenate([order[:0], *unused])
        start = end
    return pools


def _by_length(lengths: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return indices[np.argsort(lengths[indices], kind="stable")].astype(np.int64, copy=False)


def padded(sequences: Sequence[np.ndarray], fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (int64), padded with ``fill`` at the end, and mask (bool), false on padding: (sequence, time)."""
    mask = _mask(sequences)
    tokens = np.full(mask.shape, fill, dtype=np.int64)
    tokens[mask] = np.concatenate(sequences)
    return tokens, mask


def cycled(sequences: Sequence[np.ndarray], end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and mask like :func:`padded`, but pad a row with ``end``, its sequence again, ``end``, and so on.

    The mask is true on the first copy of the sequence only, without its ``end``.
    """
    mask = _mask(sequences)
    rows = [np.resize(np.append(sequence, end), mask.shape[1]) for sequence in sequences]
    return np.stack(rows).astype(np.int64), mask


def _mask(sequences: Sequence[np.ndarray]) -> np.ndarray:
    lengths = np.array([len(sequence) for sequence in sequences])
    return np.arange(lengths.max()) < lengths[:, None]
