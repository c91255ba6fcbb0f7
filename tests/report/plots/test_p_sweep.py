"""Quality and time against p of pRMSNorm: the table and the chart."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import marks_of
from helpers.records import write_run
from scipy import stats as scipy_stats

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.report.plots import canvas, p_sweep
from rmsexp.report.plots.chart import Chart


def chart(root: Path) -> Chart:
    records = load(root)
    return p_sweep.chart(p_sweep.table(records), records, "title")


def test_quality_and_time_against_p_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    for p in ("0.1", "0.5"):
        for seed in range(2):
            write_run(tmp_path, f"prms+p={p}", seed, contention="contended" if seed else "clear")
    quality, time = chart(tmp_path).panels
    assert (quality.y.title, time.y.title) == ("test error (%), last", "seconds per 1k steps")
    (mean,) = marks_of(quality, "prms", "line")
    table = p_sweep.table(load(tmp_path))
    expected = table[table["series"] != "rms"].groupby("p")["test_error"].mean() * 100
    assert list(mean.x) == [10, 50]
    assert list(mean.y) == pytest.approx(expected.tolist())
    assert sum(len(mark.x) for mark in time.marks if mark.kind == "hollow") == 2
    assert len(canvas.draw(chart(tmp_path)).axes) == 2


def test_means_of_three_seeds_have_intervals_and_the_caption_counts_seeds(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path, "prms+p=0.5", seed, status="diverged" if seed == 3 else "finished")
        write_run(tmp_path, "rms", seed)
    found, table = chart(tmp_path), p_sweep.table(load(tmp_path))
    for series, name in (("rms", "rms"), ("prms", "prms+p=0.5")):
        values = table.loc[table["series"] == name, "test_error"].dropna() * 100
        (mean,) = marks_of(found.panels[0], series, "line")
        assert [mean.low[-1], mean.high[-1]] == pytest.approx(
            list(scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95))
        )
    assert "seeds per mean: 3 to 4 in quality, 4 in time" in found.caption
    assert "runs that diverged or failed, whose quality is not drawn: 1" in found.caption


def test_p_comes_from_the_series_name_or_the_config(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    write_run(tmp_path, "prms+p=0.5", seconds_per_step=0.2)
    write_run(tmp_path, "prms+eps=0.1+p=0.5")  # differs in more than p
    write_run(tmp_path, "ln")
    (write_run(tmp_path, "prms") / record.CONFIG).write_text("norm:\n  p: 0.0625\n")
    write_run(tmp_path, "prms", 1)  # p is unknown without a config
    table = p_sweep.table(load(tmp_path))
    assert list(table) == [*p_sweep.IDENTITY, "test_error", *p_sweep.TIME]
    assert table[["series", "p", "seed"]].to_numpy().tolist() == [
        ["prms", 0.0625, 0],
        ["prms+p=0.5", 0.5, 0],
        ["rms", 1.0, 0],
    ]
    assert table["seconds_per_1k_steps"].tolist() == pytest.approx([100, 200, 100])
    errors = load(tmp_path).metrics.query("split == 'test' and step == 400").set_index("series")["error"]
    assert table["test_error"].tolist() == pytest.approx([errors["prms"].iloc[0], errors["prms+p=0.5"], errors["rms"]])


def test_runs_of_the_implementation_with_fewer_runs_are_left_out(tmp_path: Path) -> None:
    for series in ("rms", "prms+p=0.5", "prms+p=0.25", "prms+impl=fused+p=0.5", "ln+impl=fused"):
        write_run(tmp_path, series)
    table = p_sweep.table(load(tmp_path))
    assert (set(table["impl"]), len(table)) == ({"eager"}, 3)
