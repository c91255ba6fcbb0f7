"""Figures of the paper's curves."""

from __future__ import annotations

from itertools import groupby

from matplotlib.figure import Figure

from rmsexp.report.plots import canvas, panels
from rmsexp.report.plots.setting_curves import draw_panel


def figures(task: str) -> dict[str, Figure]:
    """Return figures of the paper's curves for a task, by the name of the paper's figure, such as "Figure 1"."""
    result = {}
    for name, charts in groupby(panels.paper_charts(task), key=lambda chart: chart.source):
        parts = [(chart, panel) for chart in charts for panel in chart.panels.values()]
        title = f"{name} of the paper: {task}"
        figure, rows = canvas.row(len(parts), title, ["the paper's own setting; points read from its drawing"])
        for axes, (chart, panel) in zip(rows, parts, strict=True):
            draw_panel(axes, chart, panel, [])
        rows[0].legend(frameon=False, fontsize=9)
        result[name] = figure
    return result
