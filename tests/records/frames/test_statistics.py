"""Means and intervals over seeds, the common step, the best evaluation."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.comparisons import summary, write_errors
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import caveats, statistics
from rmsexp.report.tables import seed_tests


def test_intervals_need_three_seeds() -> None:
    assert statistics.estimate(np.array([1.0, 3.0])) == pytest.approx((2.0, math.sqrt(2), math.nan), nan_ok=True)
    mean, sd, interval = statistics.estimate(np.array([1.0, 2.0, 3.0, math.nan]))
    assert (mean, sd) == (2.0, 1.0)
    assert interval == pytest.approx(4.302653 / math.sqrt(3))  # t of 2 degrees of freedom at 97.5 %


def test_diverged_runs_are_the_lowest_of_the_median_where_high_values_are_better(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "error", "mode": "max", "selection": "test"}
    for seed, median in enumerate([0.3, 0.2, 0.2, 0.15, 0.1, -math.inf]):
        errors, status = [0.9, (0.3, 0.1, 0.2)[seed % 3]], "finished" if seed < 3 else "diverged"
        write_errors(tmp_path, "ln", seed, errors, target=target, status=status)
        assert summary(tmp_path).loc["ln", "final_median"] == pytest.approx(median)


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


def test_short_runs_are_left_out_by_name_if_the_others_share_no_trained_step_with_them(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "ln", seed)
        write_run(tmp_path, "rms", seed, steps=20, every=2)
    records = load(tmp_path)
    assert statistics.common_step(records) == 400
    table = summary(tmp_path)
    assert (table.loc["ln", "final_n"], table.loc["rms", "final_n"]) == (3, 0)
    text = "\n".join(caveats.caveats(records))
    assert "not compared, since too short (the others are compared at step 400): RMSNorm seed 0 (step 20), " in text


def test_runs_that_went_on_after_the_compared_step_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "rms", steps=200)
    assert statistics.common_step(load(tmp_path)) == 200
    text = "\n".join(caveats.caveats(load(tmp_path)))
    assert "longer than the shortest runs, where the tables compare (step 200): LayerNorm seed 0 (step 400)" in text


@pytest.mark.parametrize(
    ("metric", "chance", "values", "near"),
    [
        ("error", 0.9, {"ln": 0.89, "rms": 0.875}, {"ln", "rms"}),
        ("error", 0.9, {"ln": 0.89, "rms": 0.85}, {"ln"}),
        ("loss", math.log(500), {"ln": 6.1, "rms": 5.9}, {"ln"}),
        ("bleu", 0.0, {"ln": 0.4, "rms": 20.0}, {"ln"}),
        ("bleu", 0.0, {"ln": 0.0, "rms": 0.0}, {"ln", "rms"}),
        ("image_recall", 0.005, {"ln": 0.02, "rms": 0.2}, {"ln"}),
        ("error", None, {"ln": 0.9, "rms": 0.9}, set()),
    ],
)
def test_near_chance(
    metric: str, chance: float | None, values: dict[str, float], near: set[str], tmp_path: Path
) -> None:
    mode = "min" if metric in ("error", "loss") else "max"
    target: dict[str, Any] = {"split": "test", "metric": metric, "mode": mode, "selection": "test", "chance": chance}
    of_runs = {str(write_run(tmp_path, series, target=target)): value for series, value in values.items()}
    assert statistics.near_chance(load(tmp_path), pd.Series(of_runs)) == near


def test_best_is_chosen_on_the_selection_split_up_to_the_step_of_the_comparison(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    folder = write_run(tmp_path, "rms", target=target)
    valid = [{"step": step, "split": "valid", "error": abs(step - 320) / 1000} for step in range(0, 401, 40)]
    record.RunFolder(folder).append(valid)
    records = load(tmp_path)
    tests = records.metrics.query("split == 'test'").set_index("step")["error"]
    assert statistics.best_metric(records, 400).tolist() == [tests[320]]
    assert statistics.best_metric(records, 200).tolist() == [tests[200]]
    assert summary(tmp_path).loc["rms", ["best_on_valid", "final"]].tolist() == [tests[320], tests[400]]


def test_no_test_of_norms_that_are_both_near_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "test", "chance": 0.9}
    for series in ("ln", "rms", "none"):
        for seed in range(3):
            write_run(tmp_path, series, seed, target=target)
    values = {"ln": 0.89, "rms": 0.88, "none": 0.5}
    headline = {path: values[Path(path).parent.name] for path in load(tmp_path).runs["folder"]}
    for name in ("headline_metric", "final_metric"):
        monkeypatch.setattr(statistics, name, lambda *_: pd.Series(headline))
    table = seed_tests.table(load(tmp_path))
    assert list(table["series"]) == ["none"]
    assert summary(tmp_path)["near_chance"].to_dict() == {"ln": True, "rms": True, "none": False}


def test_runs_that_were_all_evaluated_only_before_training_are_compared_there(tmp_path: Path) -> None:
    write_run(tmp_path, "ln", steps=4, status="interrupted")
    assert summary(tmp_path).loc["ln", "compared_at_step"] == 0
