"""The figure of a setting's savings."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import setting
from helpers.records import load_timings, write_run, write_timing
from matplotlib.axes import Axes

from rmsexp.report.plots import savings as savings_plot
from rmsexp.report.tables import savings as savings_table


def drawn(root: Path, number: int) -> Axes:
    """Return the axes of the figure of a table."""
    table = savings_table.tables(setting(root), load_timings(root))[number]
    (axes,) = savings_plot.draw(table.numbers, "cifar10", "title", table.caption).axes
    return axes


def test_paired_savings_are_filled_and_stand_beside_the_papers(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.79, 0.81]})
    axes = drawn(tmp_path, 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["RMSNorm"]
    (ours,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert ours.get_fillstyle() == "full"
    assert float(ours.get_xdata()[0]) == pytest.approx(20, abs=0.1)
    assert len(axes.containers) == 1
    (paper,) = [line for line in axes.lines if line.get_label() == "paper, Theano (Lasagne)"]
    assert list(paper.get_xdata()) == pytest.approx([20.5])


def test_savings_of_norms_that_were_timed_beside_another_reference_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    groups = [["none", "ln", "rms"], ["none", "bn", "wn"]]
    write_timing(tmp_path, {"none": 1.0, "ln": 1.3, "rms": 1.2, "bn": 1.4, "wn": 1.1}, groups=groups * 2)
    axes = drawn(tmp_path, 0)
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert set(shown) == {"no norm", "RMSNorm", "BatchNorm", "WeightNorm"}


def test_unpaired_savings_are_hollow(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    axes = drawn(tmp_path, 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["WeightNorm", "RMSNorm"]
    ours = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_fillstyle() for line in ours] == ["none", "none"]
    assert [float(line.get_xdata()[0]) for line in ours] == pytest.approx([25.0, 50.0])


def test_fused_savings_do_not_stand_beside_the_papers(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_timing(tmp_path, {"ln+impl=fused": 1.0, "rms+impl=fused": 0.9})
    assert not [line for line in drawn(tmp_path, 0).lines if str(line.get_label()).startswith("paper")]
