"""The figure of the time that norms save relative to LayerNorm in one setting."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.compare import paper
from rmsexp.compare.plots import canvas, marks, style
from rmsexp.compare.records import names

PAPER_OFFSET = 0.22  # distance of the paper's marks below ours, relative to the distance between rows


def draw(table: pd.DataFrame, task: str, title: str, caption: list[str]) -> Figure:
    """Return a figure with one row per series: our saving and the paper's.

    A paired saving is a filled point with its interval; an unpaired one is a hollow point. The reference is left out,
    and so are series for which neither we nor the paper have a saving. ``table``: see
    :func:`rmsexp.compare.tables.savings.table`.
    """
    rows = table[table["saving"].notna() | table["series"].isin(paper.savings(task)["norm"])]
    rows = rows[rows["kind"] != "reference"].iloc[::-1].reset_index(drop=True)
    figure, axes = canvas.bars([names.label(series) for series in rows["series"]], title, [*caption, _key(rows)])
    for y, row in enumerate(rows.to_dict("records")):
        colour = style.colour(names.norm_of(row["series"]))
        if row["kind"] == "paired":
            saving, low, high = (100 * row[key] for key in ("saving", "low", "high"))
            marks.interval(axes, y, saving, low, high, colour)
        elif not math.isnan(row["saving"]):
            axes.plot(100 * row["saving"], y, "o", color=colour, fillstyle="none")
    heights = [(series.lower(), y - PAPER_OFFSET) for y, series in enumerate(rows["series"])]
    if marks.paper_savings(axes, task, heights):
        marks.legend_outside(axes)
    marks.zero_line(axes)
    axes.set_xlabel("time saved relative to LayerNorm (%)")
    return figure


def _key(rows: pd.DataFrame) -> str:
    kinds = {
        "paired": "filled: ours, interleaved (paired), with 95 % interval",
        "unpaired": "hollow: ours, from separate runs (unpaired)",
    }
    return "; ".join([text for kind, text in kinds.items() if kind in set(rows["kind"])] + ["grey: paper"])
