"""Group sentences into batches, and put the token sequences of a batch into padded arrays.

The caller gives the order of the sentences, for example a random permutation. Consecutive sentences form a pool, and
each pool is sorted by length, so that batches need little padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def by_sentences(lengths: np.ndarray, order: np.ndarray, batch_size: int, pool: int) -> list[np.ndarray]:
    """Return batches of ``batch_size`` sentences, as Nematus makes them.

    A batch is an int64 array of indices; each index of ``order`` is in one batch. A pool has ``pool`` x ``batch_size``
    sentences, which are sorted by length, longest first, and cut into batches. The last batch of all may be smaller.
    ``lengths``, of shape (sentence,), has the length of the longer side of each sentence pair. The number of batches
    is ``ceil(len(order) / batch_size)`` for any order.
    """
    batches = []
    for start in range(0, len(order), pool * batch_size):
        longest_first = _by_length(lengths, order[start : start + pool * batch_size])[::-1]
        batches += [longest_first[at : at + batch_size] for at in range(0, len(longest_first), batch_size)]
    return batches


def by_tokens(lengths: np.ndarray, order: np.ndarray, tokens: int, pool: int) -> list[list[np.ndarray]]:
    """Return batches of at most ``tokens`` positions, padding included, as the authors' Transformer toolkit makes them.

    A batch is an int64 array of indices; each index of ``order`` is in one batch. A pool has ``pool`` sentences, which
    are sorted by length, shortest first. A batch ends where one more sentence would make the number of sentences times
    the longest length exceed ``tokens``; a sentence longer than ``tokens`` is a batch by itself. ``lengths``, of shape
    (sentence,), has the length of the longer side of each sentence pair, at least 1. The result has one list of batches
    per pool; the caller may shuffle it.
    """
    pools = []
    for start in range(0, len(order), pool):
        shortest_first = _by_length(lengths, order[start : start + pool])
        pools.append(np.split(shortest_first, _batch_ends(lengths[shortest_first], tokens)))
    return pools


def _by_length(lengths: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return indices[np.argsort(lengths[indices], kind="stable")].astype(np.int64, copy=False)


def _batch_ends(lengths: np.ndarray, tokens: int) -> list[int]:
    """Return the index at which each batch but the last ends (exclusive). ``lengths`` must be in ascending order."""
    ends: list[int] = []
    end = 0
    while True:
        window = lengths[end : end + tokens // int(lengths[end])]  # no more sentences fit, because lengths ascend
        positions = np.arange(1, len(window) + 1) * window
        end += max(1, int(np.searchsorted(positions, tokens, side="right")))
        if end >= len(lengths):
            return ends
        ends.append(end)


def padded(sequences: Sequence[np.ndarray], fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens, int64, padded with ``fill`` at the end, and their mask, bool; both of shape (sequence, time)."""
    mask = _mask(sequences)
    tokens = np.full(mask.shape, fill, dtype=np.int64)
    tokens[mask] = np.concatenate(sequences)
    return tokens, mask


def cycled(sequences: Sequence[np.ndarray], end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and mask as :func:`padded`, but fill each row with repetitions of its sequence and ``end``.

    The mask is true on the first occurrence of the sequence, and false on everything after it.
    """
    mask = _mask(sequences)
    rows = [np.resize(np.append(sequence, end), mask.shape[1]) for sequence in sequences]
    return np.stack(rows).astype(np.int64), mask


def _mask(sequences: Sequence[np.ndarray]) -> np.ndarray:
    lengths = np.array([len(sequence) for sequence in sequences])
    return np.arange(lengths.max()) < lengths[:, None]
