"""The figure of quality and time against p."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import write_run
from scipy import stats as scipy_stats

from rmsexp.compare import load
from rmsexp.report.plots import p_sweep as p_plot
from rmsexp.report.tables import p_sweep as p_table


def test_quality_and_time_against_p_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    for p in ("0.1", "0.5"):
        for seed in range(2):
            write_run(tmp_path, f"prms+p={p}", seed, contention="contended" if seed else "clear")
    records = load(tmp_path)
    table = p_table.table(records, "cifar10", "demo")
    quality, time = p_plot.draw(table, records, "title").axes
    assert (quality.get_ylabel(), time.get_ylabel()) == ("test error (%), last", "seconds per 1k steps")
    (mean,) = [line for line in quality.lines if line.get_label() == "pRMSNorm"]
    expected = table[table["series"] != "rms"].groupby("p")["test_error"].mean() * 100
    assert mean.get_xdata().tolist() == [10, 50]
    assert mean.get_ydata().tolist() == pytest.approx(expected.tolist())
    hollow = [line for line in time.lines if line.get_fillstyle() == "none" and line.get_marker() == "o"]
    assert sum(len(line.get_xdata()) for line in hollow) == 2


def test_means_of_three_seeds_have_intervals_and_the_caption_counts_seeds(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path, "prms+p=0.5", seed, status="diverged" if seed == 3 else "finished")
        write_run(tmp_path, "rms", seed, contention="contended" if seed else "clear")
    write_run(tmp_path, "prms+p=0.1")
    records = load(tmp_path)
    table = p_table.table(records, "cifar10", "demo")
    figure = p_plot.draw(table, records, "title")
    quality, time = figure.axes
    for series, (_, _, (bars,)) in zip(("rms", "prms+p=0.5"), quality.containers, strict=True):
        values = table.loc[table["series"] == series, "test_error"].dropna() * 100
        low, high = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert bars.get_segments()[-1][:, 1].tolist() == pytest.approx([low, high])
    assert "seeds per mean: 1 to 4 in quality, 1 to 4 in time" in figure.texts[1].get_text()
    assert "bars: 95%" in figure.texts[1].get_text()
    assert "diverged or failed, whose quality is not drawn: 1" in figure.texts[1].get_text()
    assert len(time.containers) == 2
