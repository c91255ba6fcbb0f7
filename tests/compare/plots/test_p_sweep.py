"""The figure of quality and time against p."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.compare.plots import p_sweep as p_plot
from rmsexp.compare.records import statistics
from rmsexp.compare.tables import p_sweep as p_table


def test_quality_and_time_against_p_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    for p in ("0.1", "0.5"):
        for seed in range(2):
            write_run(tmp_path, f"prms+p={p}", seed, contention="contended" if seed else "clear")
    table = p_table.table(load(tmp_path), "cifar10", "demo")
    quality, time = p_plot.draw(table, statistics.target(load(tmp_path)), "title").axes
    assert (quality.get_ylabel(), time.get_ylabel()) == ("test error (%), last", "seconds per 1k steps")
    (mean,) = [line for line in quality.lines if line.get_label() == "pRMSNorm"]
    expected = table[table["series"] != "rms"].groupby("p")["final"].mean() * 100
    assert mean.get_xdata().tolist() == [10, 50]
    assert mean.get_ydata().tolist() == pytest.approx(expected.tolist())
    hollow = [line for line in time.lines if line.get_fillstyle() == "none" and line.get_marker() == "o"]
    assert sum(len(line.get_xdata()) for line in hollow) == 2
