"""Runs and times of another precision: no curve, row or average without its label."""

from __future__ import annotations

from pathlib import Path

from helpers.records import load_timings, write_run, write_timing

from rmsexp.compare import load
from rmsexp.records.frames import comparable
from rmsexp.report.plots import savings as savings_plot

HALF = {"precision": "bfloat16"}


def test_the_precision_is_recorded_or_that_of_the_settings_name(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "ln", setting="demo+batch_size=8+precision=bfloat16+reduce=fast")
    write_run(tmp_path, "ln", setting="large", precision="bfloat16")
    runs = load(tmp_path).runs
    assert dict(zip(runs["setting"].str[:5], runs["precision"], strict=True)) == {
        "demo": "float32",
        "demo+": "bfloat16",
        "large": "bfloat16",
    }
    assert set(runs["series"]) == {"ln"}  # the figures and tables of a setting share a precision


def test_timing_records_of_two_precisions_are_in_different_tables(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, number=1, **HALF)
    clocks = sorted(comparable.clock(found) for found in comparable.comparisons(load_timings(tmp_path)))
    assert [clock[:38] for clock in clocks] == [
        "interleaved, eager, 1 thread, AMD EPYC",
        "interleaved, eager, bfloat16, 1 thread",
    ]
    chart = savings_plot.chart(savings_plot.rows(load_timings(tmp_path), "eager"), "eager")
    assert {"AMD EPYC, 1 thread, bfloat16", "AMD EPYC, 1 thread"} < {text for _, text in chart.legend}
