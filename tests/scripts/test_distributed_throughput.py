"""The script that measures what a second process gains: its ratios and its line of text."""

from __future__ import annotations

from typing import Any

import distributed_throughput as throughput
import pytest


def repetition(wide: float, share: float = 0.1, state: str = "clear") -> dict[str, Any]:
    """Return what a repetition measures if two processes take half the time of one process of one thread."""
    noise = [1.0, 1.01, 0.99, 1.02]
    seconds = {throughput.PAIR: [0.5] * 4, throughput.WIDE: [wide] * 4, throughput.SINGLE: noise}
    return {"seconds": seconds, "share": share, "parts": {}, "state": state, "steps": 3}


def test_ratios_above_1_mean_that_two_processes_are_faster() -> None:
    found = throughput.summary([repetition(0.6), repetition(0.7, 0.3)])
    over_wide, over_single = found["ratios"].values()
    assert over_wide["ratio"] == pytest.approx((1.2 * 1.4) ** 0.5)
    assert over_wide["low"] < 1.2 < 1.4 < over_wide["high"]
    assert over_single["ratio"] == pytest.approx(2, rel=0.02)
    assert found["communication_share"] == pytest.approx(0.2)


def test_one_repetition_has_the_interval_of_its_rounds() -> None:
    ratio = throughput.summary([repetition(0.6)])["ratios"]["two processes over one process of one thread"]
    assert 1.5 < ratio["low"] < ratio["ratio"] < ratio["high"] < 2.5
