"""Choices at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Draw:
    """Choices that follow from a seed. Raw numbers make them, which no processor and no version of numpy changes."""

    def __init__(self, *seed: int) -> None:
        self.bits = np.random.PCG64(list(seed))

    def below(self, n: int) -> int:
        return self.bits.random_raw() % n

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """Different ones, in random order."""
        left = list(choices)
        return [left.pop(self.below(len(left))) for _ in range(count)]
