"""The number formats that tables share."""

from __future__ import annotations

import math

import pytest

from rmsexp.report.tables import formats
from rmsexp.rules.ratios import Interval


@pytest.mark.parametrize(
    ("value", "text"), [(123456.7, "123457"), (12.3, "12.30"), (0.01234567, "0.01235"), (0.0, "0"), (-2.5, "-2.500")]
)
def test_numbers_have_at_least_four_significant_digits(value: float, text: str) -> None:
    assert formats.four_digits(value) == formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(27.504, "27.5"), (9999.4, "9999"), (9999.6, "10000"), (10240, "10240"), (123456.7, "123457")]
)
def test_steps_and_seconds_have_no_exponent(value: float, text: str) -> None:
    assert formats.without_exponent(value) == text


def test_qualities_have_their_unit_and_the_interval_and_remarks_that_are_known() -> None:
    assert formats.quality(0.0951, "error", 0.002, ["sd 0.12", "2 of 3 runs"]) == "9.510 ± 0.2 (sd 0.12, 2 of 3 runs) %"
    assert formats.quality(23.5, "bleu") == "23.50"
    assert formats.two_decimals(0.0951, "error") == "9.51 %"
    assert formats.difference(-0.0049, "error", "+.2f") == "-0.49"


@pytest.mark.parametrize(
    ("low", "high", "margin", "text"),
    [
        (-0.03, 0.9963, 1.0, "-0.03 to +0.996"),
        (-1.0004, 0.25, 1.0, "-1.0004 to +0.25"),
        (0.0021, 1.0, 1.0, "+0.002 to +1.00"),
        (0.0021, 0.9963, math.nan, "+0.002 to +1.00"),
        (-math.inf, 1e-12, 1.0, "no bound to +0.00"),
    ],
)
def test_ends_of_intervals_are_on_their_side_of_zero_and_margins(
    low: float, high: float, margin: float, text: str
) -> None:
    assert formats.ends(low, high, "error", margin) == text


def test_times_and_savings_have_their_range() -> None:
    assert formats.median_and_range(50, 49, 51.5) == "50.00 (49.00 to 51.50)"
    assert formats.median_and_range(50, 49, 51.5, "1 contended") == "50.00 (49.00 to 51.50, 1 contended)"
    assert formats.saving(0.2, 0.17, 0.22) == "20.0 % (17.0 to 22.0 %)"
    assert formats.saving(-0.01) == "-1.0 %"
    assert formats.saving(-0.0004, -0.0003, 0.028) == "0.0 % (0.0 to 2.8 %)"
    assert formats.ratio(Interval(0.9, 0.8, 1.0)) == "0.900 (0.800 to 1.000)"
    assert formats.ratio(Interval(0.9, math.nan, math.nan)) == "0.900"


def test_missing_values_are_a_dash() -> None:
    missing = [formats.number(math.nan), formats.quality(math.nan, "error"), formats.two_decimals(math.nan, "error")]
    missing += [formats.difference(math.nan, "bleu", "+.2f"), formats.median_and_range(math.nan, math.nan, math.nan)]
    assert set(missing) == {formats.NO_VALUE}
