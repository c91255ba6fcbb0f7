"""The figure of the time that norms save relative to LayerNorm in one setting, by one clock."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.records.frames import names
from rmsexp.report.plots import canvas, marks, style

INTERLEAVED = ("paired", "quotient")  # kinds of savings with an interval


def draw(table: pd.DataFrame, task: str, title: str, caption: list[str]) -> Figure:
    """Return a figure with one row per series: our saving and, for eager norms, the paper's.

    An interleaved saving, paired or a quotient, is a filled point with its interval; an unpaired one is a hollow point.
    Baselines are left out, and so are series without a saving. ``table``: the numbers of a
    :class:`rmsexp.report.tables.savings.Table`.
    """
    rows = table[table["kind"].isin([*INTERLEAVED, "unpaired"])].iloc[::-1].reset_index(drop=True)
    labels = [names.label(names.without_impl(series)) for series in rows["series"]]
    figure, axes = canvas.bars(labels, title, [*caption, _key(rows)])
    for y, row in enumerate(rows.to_dict("records")):
        colour = style.colour(names.norm_of(row["series"]))
        if row["kind"] in INTERLEAVED:
            saving, low, high = (100 * row[key] for key in ("saving", "low", "high"))
            marks.interval(axes, y, saving, low, high, colour)
        else:
            axes.plot(100 * row["saving"], y, "o", color=colour, fillstyle="none")
    marks.zero_line(axes)
    if set(table["impl"]) == {"eager"}:
        heights = [(series.lower(), float(y)) for y, series in enumerate(rows["series"])]
        if marks.paper_savings(axes, task, heights, largest=marks.reach(axes)):
            marks.legend_outside(axes)
    axes.set_xlabel("time saved relative to LayerNorm (%)")
    return figure


def _key(rows: pd.DataFrame) -> str:
    interleaved = rows["kind"].isin(INTERLEAVED).all()
    ours = "filled: interleaved, with 95 % interval" if interleaved else "hollow: from separate runs (unpaired)"
    return ours + ("; grey: paper" if set(rows["impl"]) == {"eager"} else "")
