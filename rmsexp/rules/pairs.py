"""Pairs of runs of two norms with the same seed, and the differences of their scores.

Scores are given by norm and seed. NaN stands for a run that diverged; a run that is missing has no entry.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scores = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Pairs:
    """The seeds of pairs, by how the two runs ended, and the scores of the pairs with at most one diverged run.

    Attributes:
        finished: seeds of pairs of which both runs finished.
        diverged_a, diverged_b: seeds of pairs of which only the run of a, or only that of b, diverged.
        diverged_both: seeds of pairs of which both runs diverged. They have no scores here.
        missing: seeds of pairs of which at least one run is missing.
        scores: oriented scores, higher is better, shape ``(finished + diverged_a + diverged_b, 2)``, in this order of
            pairs; column 0 is a, column 1 is b. A diverged run has the score -inf.
    """

    finished: tuple[int, ...]
    diverged_a: tuple[int, ...]
    diverged_b: tuple[int, ...]
    diverged_both: tuple[int, ...]
    missing: tuple[int, ...]
    scores: Array

    @property
    def differences(self) -> Array:
        """The differences a - b of the finished pairs; positive means that a is better."""
        finished = self.scores[: len(self.finished)]
        return finished[:, 0] - finished[:, 1]

    @property
    def total(self) -> int:
        """The number of all pairs, with those that are missing."""
        return len(self.scores) + len(self.diverged_both) + len(self.missing)


def sign(mode: str) -> int:
    """Return 1 if high values of a metric are better, and -1 if low ones are."""
    return 1 if mode == "max" else -1


def pair(a: Mapping[int, float], b: Mapping[int, float], seeds: Sequence[int], mode: str) -> Pairs:
    """Return the pairs of the scores ``a`` and ``b``, by seed; ``seeds`` are those that the comparison needs."""
    groups: dict[tuple[bool, bool] | None, list[int]] = {}
    for seed in seeds:
        there = seed in a and seed in b
        groups.setdefault((math.isnan(a[seed]), math.isnan(b[seed])) if there else None, []).append(seed)
    finished, only_a, only_b, both, missing = (
        tuple(groups.get(key, ())) for key in ((False, False), (True, False), (False, True), (True, True), None)
    )
    scores = np.array([(a[seed], b[seed]) for seed in (*finished, *only_a, *only_b)], dtype=float).reshape(-1, 2)
    oriented = np.where(np.isnan(scores), -np.inf, sign(mode) * scores)
    return Pairs(finished, only_a, only_b, both, missing, oriented)
