"""Quality and time against p, the share of units that pRMSNorm takes its mean over (section 4, Figure 3)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.compare.plots import canvas, style
from rmsexp.compare.records import names, statistics
from rmsexp.compare.tables import p_sweep as p_table

REFERENCE = (0, (5, 2))  # the dashes of RMSNorm's level


def draw(table: pd.DataFrame, aim: statistics.Target, title: str) -> Figure:
    """The target metric (the setting's headline) and seconds per 1k steps against p: a point a seed, a line of means.

    RMSNorm is a level of its own across each panel; a time that does not count is hollow. ``table``: :func:`p_table`.
    """
    headline = statistics.headline(aim)
    factor, unit = names.scale_and_unit(aim.metric)
    name = f"{aim.split} {names.metric(aim.metric)}" + (f" ({unit})" if unit else "")
    figure, (quality, time) = canvas.row(
        2, title, ["points: one seed; line: mean of those that count; hollow: time that does not"]
    )
    everything = pd.Series(True, table.index)
    _panel(quality, table, table[headline] * factor, everything)
    quality.set_ylabel(f"{name}, {'last' if headline == 'final' else f'best on {aim.selection}'}")
    _panel(time, table, table["seconds_per_1k_steps"], table["time_state"] == "clear")
    time.set_ylabel("seconds per 1k steps")
    figure.legend(*quality.get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, table: pd.DataFrame, values: pd.Series, counts: pd.Series) -> None:
    p, whole = table["p"] * 100, table["series"] == p_table.WHOLE
    for some, norm in ((whole, p_table.WHOLE), (~whole, p_table.PARTIAL)):
        for shown, fill in ((some & counts, "full"), (some & ~counts, "none")):
            axes.plot(p[shown], values[shown], "o", color=style.colour(norm), alpha=0.6, markersize=4, fillstyle=fill)
    partial = ~whole & counts
    mean = values[partial].groupby(p[partial]).mean()
    axes.plot(
        mean.index, mean, color=style.colour(p_table.PARTIAL), linewidth=style.THICK, label=names.label(p_table.PARTIAL)
    )
    if values[whole & counts].notna().any():
        level = values[whole & counts].mean()
        axes.axhline(
            level,
            color=style.colour(p_table.WHOLE),
            linestyle=REFERENCE,
            label=f"{names.label(p_table.WHOLE)} (p = 100 %)",
        )
    axes.set_xlabel("p (% of the units)")
    axes.set_xlim(0, 104)
