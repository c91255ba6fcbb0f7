"""Seconds per 1k steps of training runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp.records.frames import speed


def test_contended_runs_are_excluded_from_times(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", 0, seconds_per_step=0.1)
    write_run(tmp_path, "rms", 1, seconds_per_step=0.9, contention="contended")
    write_run(tmp_path, "bn", seconds_per_step=0.3, contention="unknown")
    table = summary(tmp_path)
    assert table["seconds_per_1k_steps"].to_dict() == pytest.approx({"rms": 100, "bn": 300})
    assert table["time_state"].to_dict() == {"rms": "1 clear, 1 contended", "bn": "1 contended"}
    assert table.loc["rms", "seconds_train"] == pytest.approx(400 * 0.1 * 0.75)


def test_an_untrained_run_has_no_time(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", steps=0)
    assert summary(tmp_path)["seconds_per_1k_steps"].isna().all()


def test_unit_of_times_up_to_a_limit() -> None:
    units = [speed.time_unit(longest)[0] for longest in (300, 301, 3 * 3600, 3 * 3600 + 1)]
    assert units == ["seconds", "minutes", "minutes", "hours"]
