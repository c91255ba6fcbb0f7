"""What norms save over LayerNorm on every task that was timed, in one figure: the paper's question at a glance."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.compare import figures, published, stats, style, timing

LINED = 0.2  # between ours and the paper's, in rows of the figure


def shown(timings: pd.DataFrame) -> pd.DataFrame:
    """The rows that the figure has: of each task's and setting's newest record the norms that are not the baseline.

    Those of another implementation than the baseline's are left out: what they save is not the norm's saving alone.
    ``timings``: :func:`rmsexp.compare.timing.load`. Records with another reference than LayerNorm have no place in it.
    """
    newest = timing.newest(timings)
    against_ln = newest["reference"].map(stats.is_plain_ln).astype(bool)
    others = timing.like_reference(newest) & (newest["series"] != newest["reference"]) & (newest["norm"] != "none")
    return newest[against_ln & others].sort_values(["setting", "task"], kind="stable").reset_index(drop=True)


def draw(timings: pd.DataFrame) -> Figure:
    """Ours with 95 % intervals, the paper's savings of the same task and norm, whatever the framework, beside."""
    rows = shown(timings).iloc[::-1].reset_index(drop=True)
    names = [f"{row['task']}, {row['setting']}: {style.label(row['series'])}" for row in rows.to_dict("records")]
    machines = sorted(
        {f"{row['device']}; threads {row['threads']:.0f}; torch {row['torch']}" for _, row in rows.iterrows()}
    )
    impls = ", ".join(sorted(set(rows["impl"])))
    lines = [f"whole training steps, norms by turns in one process, 95 % intervals; impl {impls}", *machines]
    figure, axes = figures.bars(names, "Time saved against LayerNorm", lines)
    for place, row in enumerate(rows.to_dict("records")):
        shade = style.colour(row["norm"])
        saved, low, high = (100 * share for share in timing.saving(row))
        timing.mark(axes, place, saved, low, high, shade)
        theirs = published.savings(str(row["task"]))
        theirs = theirs[theirs["norm"] == row["norm"]]
        axes.plot(100 * theirs["saving"], [place - LINED] * len(theirs), "D", color="#777777", markersize=5)
    axes.plot([], [], "o", color="black", label="measured here")
    axes.plot([], [], "D", color="#777777", markersize=5, label="paper, each framework")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.set_xlabel("time of a training step saved (%)")
    return figure
