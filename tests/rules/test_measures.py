"""Slopes along a ladder, and stable ranges of rates."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from rmsexp.rules import measures

GRID = (1.0, 2.0, 4.0, 8.0, 16.0)
NAN = math.nan


def scores(means: Mapping[float, float], seeds: int = 1) -> dict[float, dict[int, float]]:
    return {rate: dict.fromkeys(range(seeds), mean) for rate, mean in means.items()}


def parabola(centre: float, curvature: float = 1.0) -> dict[float, float]:
    """Return losses that grow with the square of the octaves to the centre."""
    return {rate: 2 + curvature * math.log2(rate / centre) ** 2 for rate in GRID}


def test_a_slope_is_that_of_the_least_squares_line() -> None:
    rng = np.random.default_rng(0)
    sizes, values = (500.0, 1000.0, 2000.0, 4000.0), rng.normal(size=(4, 3))
    found = measures.slopes(sizes, [dict(enumerate(of_size)) for of_size in values])
    for seed, slope in found.items():
        assert slope == pytest.approx(np.polyfit(np.log2(sizes), values[:, seed], 1)[0])
    assert list(found) == [0, 1, 2]


def test_a_seed_without_a_score_at_a_size_has_no_slope_and_a_diverged_one_has_nan() -> None:
    found = measures.slopes((1, 2, 4), [{0: 1.0, 1: 1.0, 2: 0.0}, {0: 2.0, 1: NAN, 2: 1.0}, {0: 3.0, 1: 3.0}])
    assert found[0] == pytest.approx(1.0)
    assert math.isnan(found[1])
    assert list(found) == [0, 1]


def test_rates_between_the_ends_are_linear_in_logarithms() -> None:
    assert measures.rates_between((500, 1000, 2000, 4000), 8e-3, 1e-3) == [4e-3, 2e-3]
    assert measures.rates_between((500, 1000, 4000), 2e-3, 2e-3) == [2e-3]
    assert measures.rates_between((500, 4000), 2e-3, 1e-3) == []


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_ends_of_a_range_are_interpolated(mode: str) -> None:
    """The loss is 0.25, 1.25, 4 worse one, two and three octaves away: the line reaches 0.75 at half an octave more."""
    losses = {1.0: 2.25, 2.0: 2.0, 4.0: 2.25, 8.0: 3.25, 16.0: 6.0}
    signed = losses if mode == "min" else {rate: -loss for rate, loss in losses.items()}
    found = measures.stable_range(scores(signed), mode, 0.75)
    assert (found.best, found.low, found.at_least) == (2, 1, True)
    assert found.high == pytest.approx(4 * 2**0.5)
    assert found.width == pytest.approx(2.5)
    assert found.beside == (4, 8, 1)


def test_a_range_that_ends_within_the_grid_is_not_at_least() -> None:
    found = measures.stable_range(scores(parabola(4.0)), "min", 0.5)
    assert (found.low, found.high) == pytest.approx((4 / 2**0.5, 4 * 2**0.5))
    assert not found.at_least
    assert set(found.beside) == {2, 4, 8}


def test_a_rate_with_a_diverged_seed_is_outside_and_so_is_what_lies_beyond() -> None:
    values = scores(dict.fromkeys(GRID, 2.0), seeds=2)
    values[8.0][1] = NAN
    found = measures.stable_range(values, "min", 0.1)
    assert (found.low, found.high, found.at_least) == (1, 4, True)
    values[2.0][0] = NAN
    found = measures.stable_range(values | {1.0: {0: 1.9, 1: 1.9}}, "min", 0.5)
    assert (found.best, found.low, found.high, found.width) == (1, 1, 1, 0)


def test_no_range_if_every_rate_diverged() -> None:
    lost = scores(dict.fromkeys(GRID, NAN), seeds=2)
    assert measures.stable_range(lost, "min", 0.1) is None
    assert all(math.isnan(width) for width in measures.widths(lost, (0, 1), "min", 0.1).values())
    assert len(measures.runs_of_range(scores(dict.fromkeys(GRID, NAN)), GRID, (0, 1), "min", 0.1)) == len(GRID)


def test_every_rate_has_one_seed_and_those_that_matter_have_all() -> None:
    seeds, values = (0, 1, 2), dict[float, dict[int, float]]()
    rounds = []
    while missing := [
        (rate, seed)
        for rate, seed in measures.runs_of_range(values, GRID, seeds, "min", 0.5)
        if seed not in values.get(rate, {})
    ]:
        for rate, seed in missing:
            # with the second and the third seed the best rate is an octave higher
            values.setdefault(rate, {})[seed] = parabola(4.0 if seed == 0 else 8.0)[rate]
        rounds.append(missing)
    assert rounds[0] == [(rate, 0) for rate in GRID]
    assert {rate for rate, _ in rounds[1]} == {2, 4, 8}
    assert {rate for rate, _ in rounds[2]} == {16}
    assert len(rounds) == 3


def test_pseudo_values_of_a_linear_statistic_are_its_values() -> None:
    """The mean shifts with the seed, and the width with it, if only the distance of one end changes."""
    values = {
        1.0: {0: 5.0},
        2.0: {0: 2.0, 1: 2.0, 2: 2.0},
        4.0: {0: 2.5, 1: 2.5, 2: 2.5},
        8.0: {0: 4.5, 1: 5.5, 2: 6.5},
    }
    widths = measures.widths(values, (0, 1, 2), "min", 1.0)
    whole = measures.stable_range(values, "min", 1.0)
    by_hand = {}
    for seed in (0, 1, 2):
        rest = {rate: {s: x for s, x in of.items() if s != seed} or of for rate, of in values.items()}
        without = measures.stable_range(rest, "min", 1.0)
        by_hand[seed] = 3 * whole.width - 2 * without.width
    assert widths == pytest.approx(by_hand)
    assert whole.width == pytest.approx(1 / 3 + 1 + 0.5 / 3)
    assert widths[0] > widths[1] > widths[2]
