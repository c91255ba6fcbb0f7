"""The figure of quality and time against p, the fraction of units in pRMSNorm's mean square (the paper's Figure 3)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.compare.plots import canvas, style
from rmsexp.compare.plots.panels import Quantity
from rmsexp.compare.records import names, statistics
from rmsexp.compare.tables.p_sweep import PARTIAL, WHOLE

RMS_LINE: style.Dash = (0, (5, 2))  # the dashes of the horizontal line of RMSNorm
CAPTION = "points: seeds; hollow: time excluded; lines: means over the filled points"


def draw(table: pd.DataFrame, target: statistics.Target, title: str) -> Figure:
    """Return a figure with two panels, the headline metric and the seconds per 1k steps against p.

    Each point is a run. Times that are not clear are hollow points and excluded from means. A line joins the means of
    pRMSNorm over seeds; a horizontal line is the mean of RMSNorm. ``table``: see
    :func:`rmsexp.compare.tables.p_sweep.table`.
    """
    headline = statistics.headline(target)
    lost = int(table["status"].isin(statistics.LOST).sum())
    captions = [CAPTION, f"runs that diverged or failed, whose quality is not drawn: {lost}"] if lost else [CAPTION]
    figure, (quality, time) = canvas.row(2, title, captions)
    values = table[headline] * names.scale_and_unit(target.metric)[0]
    _panel(quality, table, values, pd.Series(True, table.index))
    evaluation = statistics.final_label(target) if headline == "final" else f"best on {target.selection}"
    quality.set_ylabel(f"{Quantity(target.split, target.metric, target.loss_unit).title}, {evaluation}")
    _panel(time, table, table["seconds_per_1k_steps"], table["time_state"] == "clear")
    time.set_ylabel("seconds per 1k steps")
    figure.legend(*quality.get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, table: pd.DataFrame, values: pd.Series, included: pd.Series) -> None:
    p, is_whole = table["p"] * 100, table["series"] == WHOLE
    for norm, is_norm in ((WHOLE, is_whole), (PARTIAL, ~is_whole)):
        for selected, fill in ((is_norm & included, "full"), (is_norm & ~included, "none")):
            look: dict[str, Any] = {"color": style.colour(norm), "alpha": 0.6, "markersize": 4, "fillstyle": fill}
            axes.plot(p[selected], values[selected], "o", **look)
    partial = values[~is_whole & included]
    mean = partial.groupby(p).mean()
    axes.plot(mean.index, mean, color=style.colour(PARTIAL), linewidth=style.THICK, label=names.label(PARTIAL))
    whole = values[is_whole & included]
    if whole.notna().any():
        label = f"{names.label(WHOLE)} (p = 100 %)"
        axes.axhline(whole.mean(), color=style.colour(WHOLE), linestyle=RMS_LINE, label=label)
    axes.set_xlabel("p (% of the units)")
    axes.set_xlim(0, 104)
