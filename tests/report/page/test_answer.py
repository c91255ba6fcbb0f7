"""The first view of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers.comparisons import report
from helpers.records import load_timings, write_run, write_timing

from rmsexp.report.page import answer
from rmsexp.report.plots import savings as savings_plot
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables import seed_tests, verdicts
from rmsexp.report.tables.markup import Table

EACH_SEED = r"[+-][\d.]+ \(95 %: [+-][\d.]+ to [+-][\d.]+\) points, 3 seeds"
UNDECIDED = verdicts.table([])
NONE = pd.DataFrame(columns=["series", "task", "setting", "too_wide"]).astype({"too_wide": bool})  # no savings
REAL = {"name": "CIFAR-10", "digest": "0", "builtin": False}


def with_tests(found: SettingReport, numbers: pd.DataFrame | None = None) -> SettingReport:
    """Return the report of a setting with its table of differences from LayerNorm, or with these numbers."""
    numbers = seed_tests.table(found.records) if numbers is None else numbers
    return replace(found, tables=[Table("paired", "", numbers, numbers)])


@pytest.fixture
def first(tmp_path: Path) -> answer.Answer:
    """Return the first view of two settings, of which the second is on real data."""
    for seed in range(3):
        for series in ("ln", "rms"):
            write_run(tmp_path, series, seed)
            write_run(tmp_path, series, seed, setting="small", dataset=REAL)
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.82]})
    reports = [report(tmp_path, setting="small"), report(tmp_path)]
    reports = [with_tests(found) for found in reports]
    savings = savings_plot.rows(load_timings(tmp_path), "eager")
    return answer.answer(reports, UNDECIDED, savings, NONE)


def test_differences_have_intervals(first: answer.Answer) -> None:
    assert first.table["runs"].tolist() == ["small, real data", "demo, built-in data"]
    assert first.table[answer.QUALITY].str.fullmatch(EACH_SEED).all()
    assert first.table[answer.TIME].str.fullmatch(r"19\.0 % \(.*\), demo, AMD EPYC, 1 thread").all()
    assert "eager RMSNorm saves 19.0 % of a training step of eager LayerNorm, on 1 task;" in first.sentences[1]


def test_each_implementation_of_a_setting_has_a_row(tmp_path: Path) -> None:
    for series in ("ln", "rms", "ln+impl=fused", "rms+impl=fused"):
        write_run(tmp_path, series)
    found = report(tmp_path)
    found = with_tests(found)
    table = answer.answer([found], UNDECIDED, NONE, NONE).table
    assert table["runs"].tolist() == ["demo, built-in data", "demo, built-in data, impl=fused"]
    tuning = replace(found, records=replace(found.records, runs=found.records.runs.assign(evaluation="validation")))
    assert answer.answer([tuning], UNDECIDED, NONE, NONE).table.empty


def test_a_positive_difference_is_better_and_intervals_are_those_of_the_paired_table(tmp_path: Path) -> None:
    for seed in range(3):
        for series in ("ln", "rms", "none"):
            write_run(tmp_path, series, seed)
    found = report(tmp_path)
    tests = seed_tests.table(found.records)
    row = tests["series"] == "rms"
    tests.loc[row, ["difference", "interval", "adjusted_interval"]] = [-0.02, 0.01, 0.03]
    (shown,) = answer.answer([with_tests(found, tests)], UNDECIDED, NONE, NONE).table.to_dict("records")
    assert shown[answer.QUALITY] == "+2.00 (95 %, Bonferroni: -1.00 to +5.00) points, 3 seeds"
