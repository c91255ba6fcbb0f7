"""The table of steps and seconds until runs reach a level."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import setting, write_errors

from rmsexp.compare.tables import time_to_target
from rmsexp.compare.tables.formats import NO_VALUE


def test_steps_and_seconds_to_a_level(tmp_path: Path) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.5, 0.4, 0.4])
    write_errors(tmp_path, "rms", 0, [0.9, 0.44, 0.5, 0.3])
    write_errors(tmp_path, "rms", 1, [0.9, 0.6, 0.6, 0.45], contention="contended")
    write_errors(tmp_path, "wn", 0, [0.9, 0.8, 0.8, 0.8])
    goal = time_to_target.level(setting(tmp_path))
    assert goal is not None
    assert goal.value == pytest.approx(0.9 - 0.9 * 0.5)
    assert time_to_target.title(goal).startswith("Time until test error is 45.00 % (90 % of the way to LayerNorm's")
    table = time_to_target.table(setting(tmp_path), goal).set_index("series")
    assert table["reached"].to_dict() == {"ln": 1, "rms": 2, "wn": 0}
    assert table.loc["ln", ["steps", "seconds"]].tolist() == pytest.approx([200, 20])
    assert table.loc["rms", ["steps", "seconds", "timed"]].tolist() == pytest.approx([200, 10, 1])
    text = time_to_target.readable(table.reset_index()).set_index("norm")
    assert text.loc["WeightNorm"].tolist() == ["0 of 1", NO_VALUE, NO_VALUE]


def test_without_ln_the_worst_norm_determines_the_level(tmp_path: Path) -> None:
    write_errors(tmp_path, "rms", 0, [0.9, 0.3])
    write_errors(tmp_path, "wn", 0, [0.8, 0.6])
    goal = time_to_target.level(setting(tmp_path))
    assert goal is not None
    assert goal.value == pytest.approx(0.8 - 0.9 * 0.2)
    assert "WeightNorm" in goal.source
