"""The figures of the paper in its own layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import write_run
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rmsexp.compare import load
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import paper_figures, style
from rmsexp.report.plots.paper_figures import View
from rmsexp.rules.quantities import Quantity, loss

ROWS = {"Baseline": "none", "LayerNorm": "ln"}
FIGURE_1 = [View(loss("train"), "(a)", "step", 100, 10_000, (0, 10)), View(loss("train"), "(b)", "time")]


def runs(root: Path, *series: str, setting: str = "demo", **run: object) -> Records:
    for name in series:
        write_run(root, name, task="rnnsearch", setting=setting, **run)  # type: ignore[arg-type]
    return load(root)


def lines(axes: Axes, width: float) -> list[str]:
    return [to_hex(line.get_color()) for line in axes.lines if line.get_linewidth() == width]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes if (legend := axes.get_legend()) for text in legend.get_texts()]


def test_a_figure_has_the_papers_rows_and_units_and_its_curves_beside_ours(tmp_path: Path) -> None:
    figure = paper_figures.draw("Figure 1", ["caption"], runs(tmp_path, "ln", "none", "rms"), ROWS, FIGURE_1)
    by_step, by_time, papers_step, papers_time = figure.axes
    for axes in (by_step, by_time):
        assert lines(axes, style.THICK) == [style.colour("none"), style.colour("ln").lower()]
    assert [axes.get_xlabel() for axes in figure.axes] == [
        *("step / 100", "time in training (seconds)"),
        *("step / 100", "time in training (minutes)"),
    ]
    assert {axes.get_ylabel() for axes in figure.axes} == {"train loss (nats)"}
    assert max(by_step.lines[-1].get_xdata()) == 4  # of 400 steps
    assert max(papers_step.lines[-1].get_xdata()) == 100  # of 10,000 steps
    assert [axes.get_title() for axes in (by_step, papers_time)] == [
        *("(a) here", "(b) in the paper, at its own setting"),
    ]
    assert labels(figure) == ["Baseline", "LayerNorm", "paper, in the norm's colour"]
    assert by_step.get_ylim() != (0, 10)


def test_at_the_papers_setting_its_curves_are_laid_over_ours_except_against_time(tmp_path: Path) -> None:
    records = runs(tmp_path, "none", setting="paper", scale="paper")
    by_step, _, papers = paper_figures.draw("Figure 1", [], records, ROWS, FIGURE_1).axes
    assert len([line for line in by_step.lines if "(paper)" in str(line.get_label())]) == 2
    assert by_step.get_ylim() == (0, 10)
    assert papers.get_xlabel() == "time in training (minutes)"


def test_an_error_rate_against_epochs_is_a_fraction(tmp_path: Path) -> None:
    view = View(Quantity("train", "error", "error rate"), x="epoch")
    (axes,) = paper_figures.draw("Figure 9", [], runs(tmp_path, "ln"), ROWS, [view]).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "train error rate")
    assert max(axes.lines[-1].get_xdata()) == pytest.approx(4)
    assert max(axes.lines[-1].get_ydata()) < 1


def test_a_range_that_would_hide_the_end_of_a_curve_is_not_used(tmp_path: Path) -> None:
    records = runs(tmp_path, "none", setting="paper", scale="paper")  # its last loss is about 0.3
    axes = paper_figures.draw("Figure 1", [], records, ROWS, [View(loss("train"), y_range=(4, 10))]).axes[0]
    assert axes.get_ylim()[0] < 0.5


def test_the_steps_that_the_paper_draws(tmp_path: Path) -> None:
    (axes,) = paper_figures.draw("Figure 2", [], runs(tmp_path, "ln"), ROWS, [View(loss("train"), steps=100)]).axes
    assert max(axes.lines[-1].get_xdata()) == 100
