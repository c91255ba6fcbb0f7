"""The table of steps until runs reach a level."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.comparisons import setting, write_errors

from rmsexp.records.frames.load import Records
from rmsexp.report.tables import time_to_target

LEVEL = time_to_target.Level("test", "error", "min", 0.5, "for the test")


def table_of(records: Records, series: str) -> dict[str, float]:
    """Return the row of a series for ``LEVEL``."""
    table = time_to_target.table(records, LEVEL)
    return table[table["series"] == series].iloc[0].to_dict()


def test_steps_to_a_level(tmp_path: Path) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.5, 0.4, 0.4])
    write_errors(tmp_path, "rms", 0, [0.9, 0.44, 0.5, 0.3])
    write_errors(tmp_path, "rms", 1, [0.9, 0.6, 0.6, 0.45], contention="contended")
    write_errors(tmp_path, "wn", 0, [0.9, 0.8, 0.8, 0.8])
    goal = time_to_target.level(setting(tmp_path))
    assert goal is not None
    assert goal.value == pytest.approx(0.9 - 0.9 * 0.5)
    assert goal.title.startswith("Steps until test error is 45.00 % (90 % of the way to LayerNorm's")
    assert "; 4 evaluations per run)" in goal.title
    table = time_to_target.table(setting(tmp_path), goal).set_index("series")
    assert table["reached"].to_dict() == {"ln": 1, "rms": 2, "wn": 0}
    assert table["steps"].to_dict() == {"ln": 200, "rms": 200, "wn": math.inf}
    text = time_to_target.readable(table.reset_index()).set_index("norm")
    assert text.loc["RMSNorm"].tolist() == ["2 of 2", "200"]
    assert text.loc["WeightNorm"].tolist() == ["0 of 1", "not reached"]


def write(root: Path, series: str, errors: list[list[float]], **run: object) -> None:
    for seed, of_seed in enumerate(errors):
        write_errors(root, series, seed, of_seed, **run)


@pytest.mark.parametrize(("status", "steps", "diverged"), [("diverged", 250, 1), ("failed", 200, 0)])
def test_a_run_that_diverged_never_reaches_the_level(tmp_path: Path, status: str, steps: int, diverged: int) -> None:
    write(tmp_path, "ln", [[0.9, 0.5]])
    write(tmp_path, "rms", [[0.9, 0.4, 0.4, 0.4], [0.9, 0.9, 0.4, 0.4], [0.9, 0.9, 0.9, 0.4]])
    write_errors(tmp_path, "rms", 3, [0.9], status=status)
    write_errors(tmp_path, "rms", 4, [0.9, 0.9, 0.4, 0.9], status="diverged")  # after it reached the level
    write_errors(tmp_path, "rms", 5, [0.9], status=status)
    records = setting(tmp_path)
    row = table_of(records, "rms")
    assert (row["runs"], row["reached"], row["diverged"]) == (6, 4, 2 * diverged)
    assert row["steps"] == steps


def test_from_six_runs_on_there_is_an_interval(tmp_path: Path) -> None:
    write(tmp_path, "ln", [[0.9, 0.5, 0.5]] * 6)
    write(tmp_path, "rms", [[0.9, 0.4, 0.4]] * 3 + [[0.9, 0.9, 0.4]] * 2 + [[0.9, 0.9, 0.9]])
    text = time_to_target.readable(time_to_target.table(setting(tmp_path), LEVEL)).set_index("norm")
    assert text.loc["LayerNorm"].tolist() == ["6 of 6", "100 (100 to 100)"]
    assert text.loc["RMSNorm"].tolist() == ["5 of 6", "150 (100 to not reached)"]
