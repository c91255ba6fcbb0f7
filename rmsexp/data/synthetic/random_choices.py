"""Random choices that are the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class RandomChoices:
    """Choices that follow from a seed.

    They are computed from the generator's raw integers, which no processor and no version of numpy changes.
    """

    def __init__(self, *seed: int) -> None:
        self.bits = np.random.PCG64(list(seed))

    def below(self, n: int) -> int:
        """Return an integer from 0 to n - 1."""
        return self.bits.random_raw() % n

    def choice(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """Return ``count`` of the choices in random order, each at most once."""
        left = list(choices)
        return [left.pop(self.below(len(left))) for _ in range(count)]
