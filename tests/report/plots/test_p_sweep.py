"""The chart of quality and time against p."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import marks_of
from helpers.records import write_run
from scipy import stats as scipy_stats

from rmsexp.compare import load
from rmsexp.report.plots import canvas, p_sweep
from rmsexp.report.plots.chart import Chart
from rmsexp.report.tables import p_sweep as p_table


def chart(root: Path) -> Chart:
    records = load(root)
    return p_sweep.chart(p_table.table(records), records, "title")


def test_quality_and_time_against_p_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    for p in ("0.1", "0.5"):
        for seed in range(2):
            write_run(tmp_path, f"prms+p={p}", seed, contention="contended" if seed else "clear")
    quality, time = chart(tmp_path).panels
    assert (quality.y.title, time.y.title) == ("test error (%), last", "seconds per 1k steps")
    (mean,) = marks_of(quality, "prms", "line")
    table = p_table.table(load(tmp_path))
    expected = table[table["series"] != "rms"].groupby("p")["test_error"].mean() * 100
    assert list(mean.x) == [10, 50]
    assert list(mean.y) == pytest.approx(expected.tolist())
    assert sum(len(mark.x) for mark in time.marks if mark.kind == "hollow") == 2
    assert len(canvas.draw(chart(tmp_path)).axes) == 2


def test_means_of_three_seeds_have_intervals_and_the_caption_counts_seeds(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path, "prms+p=0.5", seed, status="diverged" if seed == 3 else "finished")
        write_run(tmp_path, "rms", seed)
    found, table = chart(tmp_path), p_table.table(load(tmp_path))
    for series, name in (("rms", "rms"), ("prms", "prms+p=0.5")):
        values = table.loc[table["series"] == name, "test_error"].dropna() * 100
        (mean,) = marks_of(found.panels[0], series, "line")
        assert [mean.low[-1], mean.high[-1]] == pytest.approx(
            list(scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95))
        )
    assert "seeds per mean: 3 to 4 in quality, 4 in time" in found.caption
    assert "runs that diverged or failed, whose quality is not drawn: 1" in found.caption
