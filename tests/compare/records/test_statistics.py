"""Means and intervals over seeds, the common step, the best evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp import record
from rmsexp.compare import load
from rmsexp.compare.records import statistics


def test_intervals_need_three_seeds() -> None:
    assert statistics.estimate(np.array([1.0, 3.0])) == (
        2.0,
        pytest.approx(math.sqrt(2)),
        pytest.approx(math.nan, nan_ok=True),
    )
    mean, sd, interval = statistics.estimate(np.array([1.0, 2.0, 3.0, math.nan]))
    assert (mean, sd) == (2.0, 1.0)
    assert interval == pytest.approx(4.302653 / math.sqrt(3))  # t of 2 degrees of freedom at 97.5 %


@pytest.mark.parametrize(("mode", "worst"), [("min", math.inf), ("max", -math.inf)])
def test_diverged_runs_are_the_worst_of_those_of_which_the_median_is_taken(mode: str, worst: float) -> None:
    values = np.array([3.0, 1.0, 2.0, math.nan])
    assert statistics.median(values, 0, mode) == 2.0
    assert statistics.median(values, 2, mode) == (3.0 if mode == "min" else 1.0)
    assert statistics.median(values, 3, mode) == statistics.median(np.array([]), 1, mode) == worst
    assert math.isnan(statistics.median(np.array([]), 0, mode))


def test_tables_compare_at_the_last_common_step(results: Path) -> None:
    write_run(results, "rms+eps=0.1", steps=200, status="interrupted")
    records = load(results).select("cifar10", "demo")
    assert statistics.common_step(records) == 200  # the diverged run, which ended at 120, does not hold the others back
    row = summary(results).loc["ln"]
    at_200 = records.metrics.query("series == 'ln' and split == 'test' and step == 200")["error"]
    assert row["final"] == pytest.approx(at_200.mean())
    assert row["final_sd"] == pytest.approx(at_200.std())
    assert row["compared_at_step"] == 200


def test_runs_that_were_evaluated_only_before_training_do_not_hold_the_others_back(results: Path) -> None:
    write_run(results, "ln", 7, steps=4, status="interrupted")
    records = load(results).select("cifar10", "demo")
    assert statistics.common_step(records) == 400
    row = summary(results).loc["ln"]
    others = records.metrics.query("series == 'ln' and split == 'test' and step == 400")["error"]
    assert row["final_n"] == row["best_on_test_n"] == len(others) == row["seeds"] - 1


def test_runs_that_were_all_evaluated_only_before_training_are_compared_there(tmp_path: Path) -> None:
    write_run(tmp_path, "ln", steps=4, status="interrupted")
    assert summary(tmp_path).loc["ln", "compared_at_step"] == 0


def test_best_is_chosen_on_the_selection_split(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    folder = write_run(tmp_path, "rms", target=target)
    valid = [{"step": step, "split": "valid", "error": abs(step - 80) / 1000} for step in range(0, 401, 40)]
    record.RunFolder(folder).append(valid)
    tests = load(tmp_path).metrics.query("split == 'test'").set_index("step")["error"]
    row = summary(tmp_path).loc["rms"]
    assert row["best_on_valid"] == tests[80]
    assert row["final"] == tests[400]


def test_the_best_step_is_not_after_the_one_of_the_comparison(tmp_path: Path) -> None:
    """As when another run was stopped earlier."""
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    folder = write_run(tmp_path, "rms", target=target)
    valid = [{"step": step, "split": "valid", "error": abs(step - 320) / 1000} for step in range(0, 401, 40)]
    record.RunFolder(folder).append(valid)
    records = load(tmp_path)
    tests = records.metrics.query("split == 'test'").set_index("step")["error"]
    assert statistics.best_metric(records, 400).tolist() == [tests[320]]
    assert statistics.best_metric(records, 200).tolist() == [tests[200]]


def test_no_best_without_evaluations_of_the_selection_split(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", target={"split": "test", "metric": "error", "mode": "min", "selection": "valid"})
    assert math.isnan(summary(tmp_path).loc["rms", "best_on_valid"])
