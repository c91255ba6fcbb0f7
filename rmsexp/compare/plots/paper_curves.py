"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.compare import paper
from rmsexp.compare.plots import canvas, style
from rmsexp.compare.records import names


def published_lines(axes: Axes, curves: pd.DataFrame) -> None:
    """One dashed line a norm; ``curves``: rows of :func:`rmsexp.compare.published.curves` with the same axes."""
    for norm in names.in_order(curves["norm"]):
        own = curves[curves["norm"] == norm]
        label = f"{names.label(norm)} (paper)"
        axes.plot(own["x"], own["y"], color=style.colour(norm), linestyle=style.PUBLISHED, linewidth=1.2, label=label)


def curve_figures(task: str) -> dict[str, Figure]:
    """The paper's curves of a task, a figure each by name, such as "Figure 1"; several axes are panels side by side."""
    curves = paper.curves()
    curves = curves[curves["task"] == task]
    drawn = {}
    for name, own in curves.groupby(curves["figure"].str.rstrip("ab")):
        parts = list(own.groupby(["figure", "metric", "x_unit"]))
        title = f"{name} of the paper: {task}"
        figure, panels = canvas.row(len(parts), title, ["its own setting; read from the drawing"])
        for axes, ((_, metric, unit), lines) in zip(panels, parts, strict=True):
            published_lines(axes, lines)
            axes.set_xlabel("step" if unit == "step" else f"time in training ({unit})")
            axes.set_ylabel(names.metric(str(metric)))
        panels[0].legend(frameon=False, fontsize=9)
        drawn[str(name)] = figure
    return drawn
