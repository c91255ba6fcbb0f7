"""Learn the merges of byte-pair encoding as subword-nmt does, with about a quarter of its memory.

The loop is that of ``subword_nmt.learn_bpe.learn_bpe``, and its functions do the work, so the merges are the same. They
are given more compact tables: subword-nmt keeps a dictionary of words for each pair of symbols, and a copy of a symbol
for each word, which takes more than 2 GiB for the words of WMT14's training text.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

END = "</w>"  # is added to the last letter of a word
LEAST = 2  # occurrences of a pair that is merged

Pair = tuple[str, str]


class _Words(list[tuple[tuple[str, ...], int]]):
    """Words as tuples of symbols, with their numbers of occurrences. Equal symbols are one object."""

    def __setitem__(self, place, word) -> None:  # type: ignore[no-untyped-def]
        symbols, count = word
        super().__setitem__(place, (tuple(map(sys.intern, symbols)), count))


class _Occurrences:
    """The numbers of occurrences of a pair of symbols in words, stored as a list of their changes, 4 bytes each.

    ``occurrences[word] += 1`` and ``occurrences[word] -= 1`` add a change; reading a number always returns 0.
    """

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes = array("i")

    def __getitem__(self, word: int) -> int:
        return 0

    def __setitem__(self, word: int, change: int) -> None:
        self.changes.append(change * (word + 1))

    def items(self) -> Iterator[tuple[int, int]]:
        """Return the numbers of the words, and of occurrences in each."""
        changes = np.array(self.changes, dtype=np.int64)
        words, places = np.unique(np.abs(changes), return_inverse=True)
        counts = np.bincount(places, weights=np.sign(changes)).astype(np.int64)
        return zip((words - 1).tolist(), counts.tolist(), strict=True)


def learn(words: Counter[str], most: int) -> list[Pair]:
    """Return at most ``most`` merges, the first learnt first. ``words`` has numbers of occurrences; it is emptied.

    There are fewer if no further pair occurs twice.
    """
    from subword_nmt.learn_bpe import prune_stats, replace_pair, update_pair_statistics

    vocabulary, counts = _Words(), defaultdict[Pair, int](int)
    occurrences = defaultdict[Pair, _Occurrences](_Occurrences)
    while words:
        word, count = words.popitem()
        symbols = (*word[:-1], sys.intern(word[-1] + END))
        for pair in pairwise(symbols):
            counts[pair] += count
            occurrences[pair][len(vocabulary)] += 1
        vocabulary.append((symbols, count))
    # every has all pairs, as they were when counts lost those below the threshold, which only makes the loop faster
    merges, every = list[Pair](), counts.copy()
    threshold = max(counts.values(), default=0) / 10
    while every and len(merges) < most:
        best = _most_frequent(counts) if counts else None
        if best is None or (merges and counts[best] < threshold):
            prune_stats(counts, every, threshold)
            counts = every.copy()
            best = _most_frequent(counts)
            threshold = counts[best] * len(merges) / (len(merges) + 10_000)
            prune_stats(counts, every, threshold)
        if counts[best] < LEAST:
            break
        merges.append(best)
        changed = replace_pair(best, vocabulary, occurrences)
        update_pair_statistics(best, changed, counts, occurrences)
        counts[best] = 0
        if len(merges) % 100 == 1:
            prune_stats(counts, every, threshold)
    return merges


def _most_frequent(counts: dict[Pair, int]) -> Pair:
    return max(counts, key=lambda pair: (counts[pair], pair))
