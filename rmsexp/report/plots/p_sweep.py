"""The figure of quality and time against p, the fraction of units in pRMSNorm's mean square (the paper's Figure 3)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import canvas, marks, style
from rmsexp.report.tables.p_sweep import EAGER, PARTIAL, WHOLE, compared, left_out
from rmsexp.rules.quantities import Quantity

RMS_LINE: style.Dash = (0, (5, 2))  # the dashes of the horizontal line of RMSNorm
CAPTION = "points: seeds; hollow: time excluded; lines: means over the filled points"
BARS = f"; bars: {statistics.CONFIDENCE:.0%} t-interval of the mean, from three seeds on"


def draw(table: pd.DataFrame, records: Records, title: str) -> Figure:
    """Return a figure with a panel per quantity and one with the seconds per 1k steps, all against p.

    Each point is a run. Times that are not clear, or of another clock than most, are hollow points and excluded from
    means. A line joins the means of pRMSNorm over seeds; a horizontal line is the mean of RMSNorm. From three seeds on,
    means have 95 % t-intervals. The caption has the numbers of seeds. ``table``: the
    :func:`rmsexp.report.tables.p_sweep.table` of ``records``.
    """
    shown = compared(records)
    qualities = pd.DataFrame({quantity.name: table[quantity.name] * quantity.factor for quantity in shown})
    clear = table["seconds_per_1k_steps"].where(table["time_state"] == "clear")
    lines = [*_captions(table, qualities, clear), *filter(None, [left_out(records, table)])]
    figure, (*panels, time) = canvas.grid(len(shown) + 1, canvas.PANEL[1], title, lines)
    for axes, quantity in zip(panels, shown, strict=True):
        draw_quality(axes, table, quantity, records)
    _panel(time, table, table["seconds_per_1k_steps"], clear)
    time.set_ylabel("seconds per 1k steps")
    marks.legend_outside([*panels, time][: canvas.COLUMNS][-1])
    return figure


def draw_quality(axes: Axes, table: pd.DataFrame, quantity: Quantity, records: Records) -> None:
    """Draw a quantity against p. ``table``: the :func:`rmsexp.report.tables.p_sweep.table` of ``records``."""
    values = table[quantity.name] * quantity.factor
    _panel(axes, table, values, values)
    axes.set_ylabel(f"{quantities.title(quantity)}, {statistics.final_label(statistics.target(records))}")


def _captions(table: pd.DataFrame, qualities: pd.DataFrame, time: pd.Series) -> list[str]:
    """Return the caption: the marks, the numbers of averaged seeds, and the number of runs without quality."""
    norms = [table["series"] == WHOLE, table["p"]]
    seeds = [values.notna().groupby(norms).sum().to_numpy() for values in (qualities, time)]
    counts = [f"{few}" if few == many else f"{few} to {many}" for few, many in ((n.min(), n.max()) for n in seeds)]
    bars = BARS if max(count.max() for count in seeds) > 2 else ""
    lost = int(table["status"].isin(statistics.LOST).sum())
    impls = sorted(set(table["impl"]) - {EAGER})
    lines = [
        CAPTION + bars + (f"; norms: {impls[0]}" if impls else ""),
        f"seeds per mean: {counts[0]} in quality, {counts[1]} in time",
    ]
    return [*lines, f"runs that diverged or failed, whose quality is not drawn: {lost}"] if lost else lines


def _panel(axes: Axes, table: pd.DataFrame, values: pd.Series, included: pd.Series) -> None:
    """Draw one panel. ``values``: those of all runs. ``included``: those in means; NaN for the other runs."""
    p, is_whole = table["p"] * 100, table["series"] == WHOLE
    for norm, is_norm in ((WHOLE, is_whole), (PARTIAL, ~is_whole)):
        colour = style.colour(norm)
        for selected, fill in ((included.notna(), "full"), (included.isna(), "none")):
            look: dict[str, Any] = {"color": colour, "alpha": 0.6, "markersize": 4, "fillstyle": fill}
            axes.plot(p[is_norm & selected], values[is_norm & selected], "o", **look)
        estimates = {float(at): statistics.estimate(runs.to_numpy(float)) for at, runs in included[is_norm].groupby(p)}
        means, bars = (
            [estimate.mean for estimate in estimates.values()],
            [found.interval for found in estimates.values()],
        )
        if norm == PARTIAL:
            axes.plot(list(estimates), means, color=colour, linewidth=style.THICK, label=names.label(norm))
        elif means:  # a mean of no times is NaN, of which only the entry of the legend is seen
            axes.axhline(means[0], color=colour, linestyle=RMS_LINE, label=f"{names.label(norm)} (p = 100 %)")
        axes.errorbar(list(estimates), means, yerr=bars, color=colour, fmt="none", capsize=4, elinewidth=1)
    axes.set_xlabel("p (% of the units)")
    axes.set_xlim(0, 104)
