"""The range of a y axis without outliers, and the points where curves leave it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rmsexp.report.plots import ranges
from rmsexp.report.plots.ranges import Range

SMOOTH = np.linspace(2.6, 1.4, 50)


def test_a_spike_and_a_first_point_do_not_set_the_range() -> None:
    spiky = SMOOTH.copy()
    spiky[[0, 30]] = 40.0, 198.0
    found = ranges.robust([SMOOTH, spiky], [1.4, 1.4], may_be_log=True)
    assert not found.log
    assert found.low < 1.4 < 2.6 < found.high < 10
    (beyond,) = ranges.beyond({"ln": [(np.arange(50.0), SMOOTH)], "wn": [(np.arange(50.0), spiky)]}, found)
    assert beyond == ("wn", 30.0, 198.0, True)


def test_the_end_of_a_curve_is_never_beyond_the_range() -> None:
    assert ranges.robust([SMOOTH], [80.0], may_be_log=False).high > 80
    assert ranges.robust([SMOOTH], [math.nan], may_be_log=False).high < 3


def test_only_a_range_over_decades_is_logarithmic() -> None:
    decaying = 10.0 ** np.linspace(2, -2, 50)
    assert ranges.robust([decaying], [0.01], may_be_log=True).log
    assert not ranges.robust([decaying], [0.01], may_be_log=False).log
    assert not ranges.robust([decaying - 1], [-0.99], may_be_log=True).log


def test_constant_and_missing_values_have_a_range() -> None:
    constant = ranges.robust([np.full(3, 7.0)], [7.0], may_be_log=True)
    assert constant.low < 7 < constant.high
    assert ranges.robust([], [], may_be_log=True) == Range(0, 1)


def test_bounds_of_possible_values() -> None:
    assert ranges.bounds([SMOOTH], "%") == (0, 100)
    assert ranges.bounds([SMOOTH], "nats") == (0, math.inf)
    assert ranges.bounds([SMOOTH - 2], "") == (-math.inf, math.inf)


def test_labels_are_spread_in_their_order() -> None:
    found = ranges.spread([0.5, 0.51, 0.99, 1.0, 0.0], 0.1, 0, 1)
    assert found == pytest.approx([0.5, 0.6, 0.9, 1.0, 0.0])
