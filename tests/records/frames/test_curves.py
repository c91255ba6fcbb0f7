"""The mean over seeds on a common grid, thinned curves, and seconds per 1k steps."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp.records.frames import curves


def test_seeds_are_interpolated_onto_a_common_grid() -> None:
    first = np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])
    second = np.array([1.0, 3.0, 6.0]), np.array([2.0, 4.0, 7.0])
    mean = curves.mean_curve([first, second])
    assert mean["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 6.0]
    assert mean["seeds"].tolist() == [1, 2, 2, 2, 2, 1]
    assert mean["mean"].tolist() == [0.0, 1.5, 2.5, 3.5, 4.5, 7.0]
    assert mean["low"].isna().all()
    assert curves.mean_curve([first, first, first])["high"].tolist() == [0.0, 2.0, 4.0]


def test_a_mean_goes_as_far_as_at_least_half_the_seeds() -> None:
    lines = [(np.arange(end + 1.0), np.full(end + 1, value)) for end, value in ((4, 1.0), (3, 2.0), (2, 3.0), (9, 6.0))]
    mean = curves.mean_curve(lines)
    assert mean["x"].tolist() == [0, 1, 2, 3, 4]
    assert mean["seeds"].tolist() == [4, 4, 4, 3, 2]
    assert mean["mean"].tolist() == [3, 3, 3, 3, 3.5]
    assert mean["low"].isna().tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("count", [2, 3])
def test_seeds_without_a_common_x_have_one_point_in_the_mean(count: int) -> None:
    mean = curves.mean_curve([(np.array([2.0 * seed, 2.0 * seed + 1]), np.array([9.0, seed])) for seed in range(count)])
    assert mean[["x", "mean", "seeds"]].to_numpy().tolist() == [[count, (count - 1) / 2, count]]
    assert mean["low"].isna().tolist() == [count < 3]


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
    units = [curves.time_unit(longest)[0] for longest in (300, 301, 3 * 3600, 3 * 3600 + 1)]
    assert units == ["seconds", "minutes", "minutes", "hours"]
