"""The charts of savings on all tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import load_timings, write_timing

from rmsexp.report.plots import canvas, savings
from rmsexp.report.plots.chart import Chart


def chart(root: Path, impl: str = "eager") -> Chart:
    return savings.chart(savings.rows(load_timings(root), impl), impl)


def test_the_chart_has_the_savings_of_all_tasks_beside_the_papers(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.97, "none": 0.9}, task="transformer")
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, session={"code": "older"})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8], "prms": [0.7, 0.7]}, number=1)
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.2}, number=2, kind="layers")
    write_timing(tmp_path, {"none": 1.0, "rms": 1.5}, task="rnnsearch")
    rows = savings.rows(load_timings(tmp_path), "eager")
    assert list(zip(rows["task"], rows["series"], rows["ratio"].round(2), strict=True)) == [
        ("cifar10", "rms", 0.8),
        ("cifar10", "prms", 0.7),
        ("transformer", "rms", 0.97),
    ]
    found = chart(tmp_path)
    (panel,) = found.panels
    assert list(panel.y.labels) == ["cifar10, demo: RMSNorm", "cifar10, demo: pRMSNorm", "transformer, demo: RMSNorm"]
    ours = [mark for mark in panel.marks if mark.series]
    assert [mark.x[0] for mark in ours] == pytest.approx([20, 30, 3], abs=0.1)
    assert [mark.kind for mark in ours] == ["interval", "interval", "hollow"]  # a single process is hollow
    papers = [(mark.x[0], mark.y[0]) for mark in panel.marks if not mark.series]
    assert papers == [pytest.approx((20.5, 0)), pytest.approx((23.1, -1)), pytest.approx((6.9, -2))]
    assert [text for _, text in found.legend][-1] == "paper, each framework"
    (axes,) = canvas.draw(found).axes
    assert len(axes.containers) == 3


def test_machines_and_numbers_of_threads_share_a_row(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.97})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9, "prms": 0.8}, number=1, session={"device": "an older processor"})
    other = {"threads": 2, "machine": {"id": "3f", "name": "AMD EPYC"}}
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.95}, number=2, session=other)
    found = chart(tmp_path)
    rms = [mark for mark in found.panels[0].marks if mark.series == "rms"]
    assert sorted((mark.y[0], round(mark.x[0])) for mark in rms) == [(-0.2, 10), (0, 3), (0.2, 5)]
    assert len({mark.look.marker for mark in rms}) == 3
    machines = ["AMD EPYC (3f), 2 threads", "AMD EPYC, 1 thread", "an older processor, 1 thread"]
    assert [text for _, text in found.legend] == ["RMSNorm", "pRMSNorm", *machines, "paper, each framework"]


def test_fused_norms_have_a_chart_of_their_own_against_fused_layernorm(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5, "rms+impl=fused": 0.45})
    (mark,) = chart(tmp_path, "fused").panels[0].marks
    assert mark.x == pytest.approx([10], abs=0.1)


def test_an_interval_that_says_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.9, 0.91]})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.7, 1.1]}, task="rnnsearch")
    rows = savings.rows(load_timings(tmp_path), "eager")
    assert rows.set_index("task")["too_wide"].to_dict() == {"cifar10": False, "rnnsearch": True}
    assert len(chart(tmp_path).panels[0].y.labels) == 1
    assert "wider than 50 percentage points (1)" in " ".join(chart(tmp_path).caption)
