"""The figure of a timing record: the step time of each norm, and the time that it saves."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.records.frames import timing_records
from rmsexp.records.frames.names import label
from rmsexp.report.paper import matching
from rmsexp.report.plots import canvas, marks
from rmsexp.report.plots.style import colour

PROCESS_OFFSET = 0.15  # distance of the points of single processes above ours


def draw(timings: pd.DataFrame) -> Figure:
    """Return the figure of one timing record (``timing.json``).

    The left panel has median times with quartiles. The right panel has savings with 95 % intervals, small points above
    them for the single processes if there are several, and the paper's savings.
    ``timings``: the rows of the record, see :func:`rmsexp.records.frames.timing_records.load`.
    """
    first = timings.iloc[0]
    title = f"{first['task']}, {first['setting']}: time of {timing_records.KINDS[first['kind']]}"
    figure, (times, savings) = canvas.row(2, title, timing_records.notes(timings))
    heights = [-float(line) for line in range(len(timings))]
    for y, row in zip(heights, timings.to_dict("records"), strict=True):
        marks.interval(times, y, row["median_seconds_per_1k_steps"], row["q25"], row["q75"], colour(row["norm"]))
        if row["series"] != first["reference"]:
            saving, low, high = (100 * fraction for fraction in timing_records.saving(row))
            marks.interval(savings, y, saving, low, high, colour(row["norm"]))
            if row["processes"] > 1:
                each = [100 * (1 - ratio) for ratio in row["estimates"]]
                savings.plot(each, [y + PROCESS_OFFSET] * len(each), ".", color=colour(row["norm"]), markersize=4)
    marks.zero_line(savings)
    frameworks = _paper_savings(savings, timings, heights)
    for axes in (times, savings):
        axes.set_yticks(heights, [""] * len(heights))
        legend = 0.35 * frameworks * max(1.0, len(heights) / 4)  # the height of the legend, below the last row
        axes.set_ylim(heights[-1] - 0.6 - legend, 0.6)
    for y, name in zip(heights, timing_records.labels(timings), strict=True):
        times.text(0.015, y + 0.12, name, transform=times.get_yaxis_transform(), size=9)
    times.set_xlim(left=0)
    times.set_xlabel("ms per step, median and quartiles")
    each_process = ", each process" if timings["processes"].max() > 1 else ""
    savings.set_xlabel(f"time saved vs {label(first['reference'])} (%), 95 % interval{each_process}")
    return figure


def _paper_savings(axes: Axes, timings: pd.DataFrame, heights: list[float]) -> int:
    """Draw the paper's savings and a legend, where they are comparable; return the number of frameworks drawn."""
    lines = zip(timings["series"], heights, matching.comparable_savings(timings), strict=True)
    rows = [(series, y) for series, y, comparable in lines if comparable]
    frameworks = marks.paper_savings(axes, timings["task"].iloc[0], rows, largest=marks.reach(axes))
    if frameworks:
        axes.legend(loc="lower right", fontsize=8, frameon=False)
    return frameworks
