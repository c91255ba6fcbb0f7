"""The range of a y axis without outliers."""

from __future__ import annotations

import math

import numpy as np

from rmsexp.report.plots import ranges

SMOOTH = np.linspace(2.6, 1.4, 50)


def test_a_spike_and_a_first_point_do_not_set_the_range() -> None:
    spiky = SMOOTH.copy()
    spiky[[0, 30]] = 40.0, 198.0
    found = ranges.robust("loss", [SMOOTH, spiky], [1.4, 1.4], may_be_log=True)
    assert found.range is not None
    assert not found.log
    assert found.range[0] < 1.4 < 2.6 < found.range[1] < 10


def test_the_end_of_a_curve_is_never_beyond_the_range() -> None:
    for end, above in ((80.0, 80.0), (math.nan, 2.6)):
        found = ranges.robust("loss", [SMOOTH], [end], may_be_log=False).range
        assert found is not None
        assert above < found[1] < 1.1 * above


def test_only_a_range_over_decades_is_logarithmic() -> None:
    decaying = 10.0 ** np.linspace(2, -2, 50)
    assert ranges.robust("loss", [decaying], [0.01], may_be_log=True).log
    assert not ranges.robust("loss", [decaying], [0.01], may_be_log=False).log
    assert not ranges.robust("loss", [decaying - 1], [], may_be_log=True).log
    assert ranges.robust("loss", [], [], may_be_log=True).range == (0, 1)
