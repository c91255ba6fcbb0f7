"""What norms save over LayerNorm on every task that was timed, in one figure: the paper's question at a glance."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.compare import paper
from rmsexp.compare.plots import canvas, marks, style
from rmsexp.compare.records import names, timing_records

LINED = 0.2  # from one mark of a line of the figure to the next
MARKERS = "os^vXP"  # a machine's; the diamond is the paper's


def shown(timings: pd.DataFrame) -> pd.DataFrame:
    """The rows that the figure has: of a machine's newest record of each task and setting the norms but the baseline.

    Those of another implementation than the baseline's are left out: what they save is not the norm's saving alone.
    ``timings``: :func:`rmsexp.compare.timing.load`. Records with another reference than LayerNorm have no place in it.
    """
    newest = timing_records.newest(timings, each=("task", "setting", "device"))
    against_ln = newest["reference"].map(names.is_plain_ln).astype(bool)
    others = (
        timing_records.like_reference(newest) & (newest["series"] != newest["reference"]) & (newest["norm"] != "none")
    )
    return newest[against_ln & others].sort_values(["setting", "task"], kind="stable").reset_index(drop=True)


def draw(timings: pd.DataFrame) -> Figure:
    """Ours with 95 % intervals, the paper's savings of the same task and norm, whatever the framework, beside."""
    rows = shown(timings).iloc[::-1].reset_index(drop=True)
    rows["name"] = rows["task"] + ", " + rows["setting"] + ": " + rows["series"].map(names.label)
    lines = list(rows["name"].unique())
    machines = sorted(rows["device"].unique())
    sessions = {f"{row['device']}; threads {row['threads']:.0f}; torch {row['torch']}" for _, row in rows.iterrows()}
    impls = ", ".join(sorted(set(rows["impl"])))
    heading = [f"whole training steps, norms by turns in one process, 95 % intervals; impl {impls}", *sorted(sessions)]
    figure, axes = canvas.bars(lines, "Time saved against LayerNorm", heading)
    for line, name in enumerate(lines):
        own = rows[rows["name"] == name]
        for row in own.to_dict("records"):
            machine = machines.index(row["device"])
            saved, low, high = (100 * share for share in timing_records.saving(row))
            shade, marker = style.colour(row["norm"]), MARKERS[machine % len(MARKERS)]
            marks.mark(axes, line - LINED * machine, saved, low, high, shade, marker)
        first = own.iloc[0]
        theirs = paper.savings(str(first["task"]))
        theirs = theirs[theirs["norm"] == first["norm"]]
        below = line - LINED * len(machines)
        axes.plot(100 * theirs["saving"], [below] * len(theirs), "D", color="#777777", markersize=5)
    for machine, device in enumerate(machines):
        label = "measured here" if len(machines) == 1 else device
        axes.plot([], [], MARKERS[machine % len(MARKERS)], color="black", label=label)
    axes.plot([], [], "D", color="#777777", markersize=5, label="paper, each framework")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.set_xlabel("time of a training step saved (%)")
    return figure
