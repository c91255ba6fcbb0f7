"""The figure of a setting's savings."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import setting, timings
from helpers.records import write_run

from rmsexp.compare.plots import savings as savings_plot
from rmsexp.compare.tables import savings as savings_table


def test_paired_savings_are_filled_and_unpaired_ones_hollow(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    table = savings_table.table(setting(tmp_path), timings())
    (axes,) = savings_plot.draw(table, "cifar10", "title", ["note"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["WeightNorm", "RMSNorm"]
    ours = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_fillstyle() for line in ours] == ["none", "full"]
    assert [float(line.get_xdata()[0]) for line in ours] == pytest.approx([25.0, 20.0])
    (paired,) = axes.containers
    assert paired[2][0].get_segments()[0][:, 0] == pytest.approx([17.0, 22.0])
    (paper,) = [line for line in axes.lines if line.get_label() == "paper, Theano (Lasagne)"]
    assert list(paper.get_xdata()) == pytest.approx([20.5])
