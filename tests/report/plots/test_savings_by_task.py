"""The figures of savings on all tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import load_timings, write_timing
from matplotlib.figure import Figure

from rmsexp.report.plots import savings_by_task


def draw(root: Path, impl: str = "eager") -> Figure:
    return savings_by_task.draw(savings_by_task.rows(load_timings(root), impl), impl)


def test_the_figure_has_the_savings_of_all_tasks_beside_the_papers(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.97, "none": 0.9}, task="transformer")
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, session={"code": "older"})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8], "prms": [0.7, 0.7]}, number=1)
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.2}, number=2, kind="layers")
    write_timing(tmp_path, {"none": 1.0, "rms": 1.5}, task="rnnsearch")
    rows = savings_by_task.rows(load_timings(tmp_path), "eager")
    assert list(zip(rows["task"], rows["series"], rows["ratio"].round(2), strict=True)) == [
        ("cifar10", "rms", 0.8),
        ("cifar10", "prms", 0.7),
        ("transformer", "rms", 0.97),
    ]
    (axes,) = draw(tmp_path).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["transformer: RMSNorm", "cifar10: pRMSNorm", "cifar10: RMSNorm"]
    points = [container[0].get_xdata()[0] for container in axes.containers]
    assert points == pytest.approx([3, 30, 20], abs=0.1)
    fills = [container[0].get_fillstyle() for container in axes.containers]
    assert fills == ["none", "full", "full"]  # a single process is hollow
    published = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "D"]
    assert [pytest.approx(values) for values in published] == [[6.9], [23.1], [20.5], []]


def test_machines_and_numbers_of_threads_share_a_line_of_the_figure(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.97})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9, "prms": 0.8}, number=1, session={"device": "an older processor"})
    other = {"threads": 2, "machine": {"id": "3f", "name": "AMD EPYC"}}
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.95}, number=2, session=other)
    (axes,) = draw(tmp_path).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["cifar10: pRMSNorm", "cifar10: RMSNorm"]
    points = [tuple(float(value[0]) for value in container[0].get_data()) for container in axes.containers]
    step = savings_by_task.OFFSET
    expected = [(20, 0), (10, 1 - step), (3, 1), (5, 1 + step)]  # the machines of a row, around it
    assert sorted(points) == [pytest.approx(point, abs=0.1) for point in sorted(expected)]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    machines = ["AMD EPYC\n2 threads\nmachine 3f", "AMD EPYC\n1 thread", "an older processor\n1 thread"]
    assert legend == ["RMSNorm", "pRMSNorm", *machines, "paper, each framework"]


def test_a_single_process_is_left_out_where_several_measured_the_same(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9, "prms": 0.8})
    session = {"machine": {"id": "3f", "name": "AMD EPYC"}}
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.7, 0.7]}, number=1, session=session)
    two = session | {"threads": 2}
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.6}, number=2, session=two)
    rows = savings_by_task.rows(load_timings(tmp_path), "eager")
    found = sorted(zip(rows["series"], rows["threads"], rows["ratio"].round(2), strict=True))
    assert found == [("prms", 1, 0.8), ("rms", 1, 0.7), ("rms", 2, 0.6)]
    assert savings_by_task.number_left_out(rows) == 1
    texts = "\n".join(text.get_text() for text in draw(tmp_path).texts)
    assert "left out: savings from one process (1), as several measured the same elsewhere" in texts


def test_fused_norms_have_a_figure_of_their_own_against_fused_layernorm(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5, "rms+impl=fused": 0.45})
    (axes,) = draw(tmp_path, "fused").axes
    assert [container[0].get_xdata()[0] for container in axes.containers] == pytest.approx([10], abs=0.1)
    assert not [line for line in axes.lines if line.get_marker() == "D"]


def test_an_interval_that_says_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.9, 0.91]})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.7, 1.1]}, task="rnnsearch")
    rows = savings_by_task.rows(load_timings(tmp_path), "eager")
    assert rows.set_index("task")["too_wide"].to_dict() == {"cifar10": False, "rnnsearch": True}
    (axes,) = draw(tmp_path).axes
    assert len(axes.containers) == 1
    assert "wider than 50 percentage points (1)" in " ".join(text.get_text() for text in draw(tmp_path).texts)
