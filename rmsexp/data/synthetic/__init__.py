"""Small built-in substitutes for the paper's data sets, generated from a seed, with equal results on every machine."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class RandomChoices:
    """Random choices from raw integers of PCG64, which are the same on every processor and with every NumPy."""

    def __init__(self, *seed: int) -> None:
        self.bits = np.random.PCG64(list(seed))

    def below(self, n: int) -> int:
        """Return a random integer from 0 to n - 1."""
        return self.bits.random_raw() % n

    def choice(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """Return ``count`` entries of ``choices`` in random order, none of them twice."""
        remaining = list(choices)
        return [remaining.pop(self.below(len(remaining))) for _ in range(count)]
