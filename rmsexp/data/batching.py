"""Which sequences make a batch, and how they lie in it.

Sentences come in pools of the given order, sorted by length, so that little of a batch is padding.

Nothing is drawn here: the orders are given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def by_sentences(lengths: np.ndarray, order: np.ndarray, batch_size: int, pool: int) -> list[np.ndarray]:
    """Batches of ``batch_size`` sentences, as Nematus makes them; int64 indices, each of ``order`` once.

    ``pool`` x ``batch_size`` sentences are read at a time; the longest of them make the first batch, the shortest the
    last, which may be smaller. ``lengths``, (sentence,), are those of the longer side, so that ``ceil(len(order) /
    batch_size)`` batches come whatever the order is.
    """
    batches = []
    for start in range(0, len(order), pool * batch_size):
        longest_first = _by_length(lengths, order[start : start + pool * batch_size])[::-1]
        batches += [longest_first[at : at + batch_size] for at in range(0, len(longest_first), batch_size)]
    return batches


def by_tokens(lengths: np.ndarray, order: np.ndarray, tokens: int, pool: int) -> list[list[np.ndarray]]:
    """Batches of at most ``tokens`` positions, padding counted, as the authors' Transformer toolkit makes them.

    ``pool`` sentences are read at a time and sorted by length, shortest first; a batch closes when one more would make
    sentences x longest exceed ``tokens``, so that a sentence that is longer than that is a batch of its own.
    ``lengths``, (sentence,), are those of the longer side, at least 1. The batches, int64 indices that hold each of
    ``order`` once, come as one list per pool, for the caller to shuffle within.
    """
    pools = []
    for start in range(0, len(order), pool):
        shortest_first = _by_length(lengths, order[start : start + pool])
        pools.append(np.split(shortest_first, _closings(lengths[shortest_first], tokens)))
    return pools


def _by_length(lengths: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return indices[np.argsort(lengths[indices], kind="stable")].astype(np.int64, copy=False)


def _closings(lengths: np.ndarray, tokens: int) -> list[int]:
    """Where batches of the rising ``lengths`` end, the last one's end left out."""
    ends: list[int] = []
    end = 0
    while True:
        window = lengths[end : end + tokens // int(lengths[end])]  # no more fit, since none after it is shorter
        positions = np.arange(1, len(window) + 1) * window
        end += max(1, int(np.searchsorted(positions, tokens, side="right")))
        if end >= len(lengths):
            return ends
        ends.append(end)


def padded(sequences: Sequence[np.ndarray], fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, int64, and a mask that is true on them, (sequence, time) both; ``fill`` follows a sequence's end."""
    mask = _mask(sequences)
    tokens = np.full(mask.shape, fill, dtype=np.int64)
    tokens[mask] = np.concatenate(sequences)
    return tokens, mask


def cycled(sequences: Sequence[np.ndarray], end: int) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`padded`, with ``end`` and then repetitions of the sequence and ``end`` after it."""
    mask = _mask(sequences)
    return np.stack([np.resize(np.append(one, end), mask.shape[1]) for one in sequences]).astype(np.int64), mask


def _mask(sequences: Sequence[np.ndarray]) -> np.ndarray:
    lengths = np.array([len(one) for one in sequences])
    return np.arange(lengths.max()) < lengths[:, None]
