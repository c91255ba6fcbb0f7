"""Balanced orders of contestants."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest

from rmsexp.measure.orders import balanced


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_every_contestant_is_equally_often_at_each_position_and_after_each_other(n: int) -> None:
    squares = 2 if n % 2 else 1
    orders = [balanced(n, place, 7, "round") for place in range(4 * n)]
    for start in range(0, 4 * n, n):
        square = orders[start : start + n]
        assert all(sorted(line) == list(range(n)) for line in (*square, *zip(*square, strict=True)))
    for start in range(0, 4 * n, squares * n):
        neighbours = Counter(pair for order in orders[start : start + squares * n] for pair in pairwise(order))
        assert neighbours == dict.fromkeys(permutations(range(n), 2), squares)


def test_orders_depend_on_seed_name_and_square() -> None:
    def sequence(seed: int, name: str, first: int = 0) -> list[list[int]]:
        return [balanced(4, place, seed, name) for place in range(first, first + 4)]

    assert sequence(1, "round") == sequence(1, "round")
    assert len({str(each) for each in (sequence(1, "round"), sequence(2, "round"), sequence(1, "parts"))}) == 3
    assert sequence(1, "round") != sequence(1, "round", 4)
    assert len({tuple(balanced(4, 0, seed, "round")) for seed in range(200)}) == 24
