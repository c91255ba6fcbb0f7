"""Records of ``python -m rmsexp.timing``: step times of norms that took turns in one process, as paired ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. Everything that is said of it is computed
here from the seconds of its blocks.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.compare import paper
from rmsexp.compare.paper import matching
from rmsexp.compare.plots import canvas, marks
from rmsexp.compare.plots.style import colour
from rmsexp.compare.records import timing_records
from rmsexp.compare.records.names import label


def draw(timings: pd.DataFrame) -> Figure:
    """One record: the time that each norm saves against the reference, with intervals, and the paper's savings."""

    first = timings.iloc[0]
    figure, (times, savings) = canvas.row(
        2,
        f"{first['task']}, {first['setting']}: time of {timing_records.KINDS[first['kind']]}",
        timing_records.notes(timings),
    )
    places = [-float(place) for place in range(len(timings))]
    for place, row in zip(places, timings.to_dict("records"), strict=True):
        median, shade = row["median_seconds_per_1k_steps"], colour(row["norm"])
        marks.mark(times, place, median, row["q25"], row["q75"], shade)
        if row["series"] != first["reference"]:
            saved, low, high = (100 * share for share in timing_records.saving(row))
            marks.mark(savings, place, saved, low, high, shade)
    frameworks = _mark_paper(savings, timings) if matching.savings_are_comparable(timings) else 0
    for axes in (times, savings):
        axes.set_yticks(places, [""] * len(places))
        foot = 0.35 * frameworks * max(1.0, len(places) / 4)  # where the legend is
        axes.set_ylim(places[-1] - 0.6 - foot, 0.6)
    for place, name in zip(places, timing_records.labels(timings), strict=True):
        times.text(0.015, place + 0.12, name, transform=times.get_yaxis_transform(), size=9)
    savings.axvline(0, color="#777777", linewidth=0.8)
    times.set_xlim(left=0)
    times.set_xlabel("ms per step, median and quartiles")
    savings.set_xlabel(f"time saved vs {label(first['reference'])} (%), 95 % interval")
    return figure


def _mark_paper(axes: Axes, timings: pd.DataFrame) -> int:
    """The paper's savings as hollow markers below ours, one form a framework; returns how many there are."""
    theirs = paper.savings(timings["task"].iloc[0])
    frameworks = list(dict.fromkeys(theirs["framework"]))
    for marker, framework in zip("sD^v", frameworks, strict=False):
        of = theirs[theirs["framework"] == framework].set_index("norm")["saving"]
        rows = [
            (-place - 0.25, 100 * of[norm], colour(norm))
            for place, (norm, alike) in enumerate(
                zip(timings["norm"], timing_records.like_reference(timings), strict=True)
            )
            if alike and norm in of
        ]
        if rows:
            y, x, shades = zip(*rows, strict=True)
            axes.scatter(x, y, marker=marker, facecolors="none", edgecolors=shades, label=f"paper, {framework}")
    if frameworks:
        axes.legend(loc="lower right", fontsize=8, frameon=False)
    return len(frameworks)
