"""The mean over seeds, thinned curves, and seconds per 1k steps."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp.records.frames import curves


def rows_of(*runs: list[tuple[int, float, float]]) -> pd.DataFrame:
    """Return rows of metrics of runs, each a list of step, time and loss."""
    rows = [(str(run), *row) for run, of_run in enumerate(runs) for row in of_run]
    return pd.DataFrame(rows, columns=["folder", "step", "time", "loss"])


def test_a_mean_is_of_each_step_at_its_mean_time() -> None:
    rows = rows_of([(1, 1.0, 8.0), (2, 2.0, 6.0), (3, 3.0, 1.0)], [(1, 3.0, 4.0), (2, 6.0, 3.0)])
    mean, seeds = curves.mean_curve(curves.curves(rows, "step", "time", "loss").values())
    assert mean.T.tolist() == [[2.0, 6.0, 4.0, 8.0], [4.0, 4.5, 3.0, 6.0]]  # no jump at step 3
    assert seeds == 2


def test_runs_of_less_than_half_of_the_steps_are_not_in_the_mean() -> None:
    rows = rows_of([(step, step, 1.0) for step in range(1, 6)], [(1, 1.0, 9.0), (2, 2.0, 9.0)])
    (x, mean, *_), seeds = curves.mean_curve(curves.curves(rows, "step", "step", "loss").values())
    assert (x.tolist(), set(mean), seeds) == ([1, 2, 3, 4, 5], {1.0}, 1)


@pytest.mark.parametrize("count", [3, 10, 11, 1000, 12_345])
def test_thinning_keeps_ends_and_extremes(count: int) -> None:
    values = np.sin(np.arange(count) * 1.7) + np.arange(count) / count
    values[count // 3] = 9.0
    indices = curves.thinned(values, 10)
    assert len(indices) <= 10
    assert (np.diff(indices) > 0).all()
    assert {0, count - 1, count // 3} <= set(indices.tolist())


def test_curves_skip_missing_values() -> None:
    rows = pd.DataFrame({"folder": ["a", "b", "a", "c"], "step": [1, 1, 2, 1], "loss": [3.0, 4.0, 5.0, math.nan]})
    points = curves.curves(rows, "step", "loss")
    assert {folder: (x.tolist(), y.tolist()) for folder, (x, y) in points.items()} == {
        "a": ([1, 2], [3, 5]),
        "b": ([1], [4]),
    }


def test_disturbed_runs_are_excluded_from_times(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", 0, seconds_per_step=0.1)
    write_run(tmp_path, "rms", 1, seconds_per_step=0.9, contention="disturbed")
    write_run(tmp_path, "bn", seconds_per_step=0.3, contention="unknown")
    table = summary(tmp_path)
    assert table["seconds_per_1k_steps"].to_dict() == pytest.approx({"rms": 100, "bn": 300})
    assert table["time_state"].to_dict() == {"rms": "1 disturbed, 1 undisturbed", "bn": "1 disturbed"}
    assert table.loc["rms", "seconds_train"] == pytest.approx(400 * 0.1 * 0.75)


def test_an_untrained_run_has_no_time(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", steps=0)
    assert summary(tmp_path)["seconds_per_1k_steps"].isna().all()


def test_unit_of_times_up_to_a_limit() -> None:
    units = [curves.time_unit(longest)[0] for longest in (300, 301, 3 * 3600, 3 * 3600 + 1)]
    assert units == ["seconds", "minutes", "minutes", "hours"]
