"""The figure of the time that norms save relative to LayerNorm on all timed tasks."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.compare.plots import canvas, marks, style
from rmsexp.compare.records import names, timing_records

OFFSET = 0.2  # distance between the marks of two machines in one row, relative to the distance between rows
MACHINES = "os^vXP"  # matplotlib markers of our savings, one per machine
PAPER = "D"  # matplotlib marker of the paper's savings


def rows(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the savings in the figure, from each machine's newest record of whole steps for each task and setting.

    Records whose reference is not LayerNorm are left out. So are the reference itself, models without norm, and norms
    with another implementation than the reference, whose saving would not be due to the norm alone.

    ``timings``: see :func:`rmsexp.compare.records.timing_records.load`.
    """
    newest = timing_records.newest(timings, per=("task", "setting", "device"))
    against_ln = newest["reference"].map(names.is_plain_ln).astype(bool)
    is_norm = (newest["series"] != newest["reference"]) & (newest["norm"] != "none")
    selected = newest[against_ln & is_norm & timing_records.has_reference_impl(newest)]
    return selected.sort_values(["setting", "task"], kind="stable").reset_index(drop=True)


def draw(timings: pd.DataFrame) -> Figure:
    """Return a figure with one row per task, setting and norm: our savings with 95 % intervals, and the paper's."""
    table = rows(timings).iloc[::-1].reset_index(drop=True)
    table["label"] = table["task"] + ", " + table["setting"] + ": " + table["series"].map(names.label)
    machines = sorted(table["device"].unique())
    figure, axes = canvas.bars(list(table["label"].unique()), "Time saved relative to LayerNorm", _caption(table))
    for y, (_, line) in enumerate(table.groupby("label", sort=False)):
        for row in line.to_dict("records"):
            machine = machines.index(row["device"])
            saving, low, high = (100 * fraction for fraction in timing_records.saving(row))
            colour, marker = style.colour(row["norm"]), MACHINES[machine % len(MACHINES)]
            marks.interval(axes, y - OFFSET * machine, saving, low, high, colour, marker)
        first = line.iloc[0]
        marks.paper_savings(axes, str(first["task"]), [(first["norm"], y - OFFSET * len(machines))], PAPER)
    for machine, device in enumerate(machines):
        label = "measured here" if len(machines) == 1 else device
        axes.plot([], [], MACHINES[machine % len(MACHINES)], color="black", label=label)
    axes.plot([], [], PAPER, color=style.GREY, markersize=5, label="paper, each framework")
    marks.legend_outside(axes)
    marks.zero_line(axes)
    axes.set_xlabel("time saved per training step (%)")
    return figure


def _caption(table: pd.DataFrame) -> list[str]:
    impls = ", ".join(sorted(set(table["impl"])))
    machines = {f"{row['device']}; threads {row['threads']:.0f}; torch {row['torch']}" for _, row in table.iterrows()}
    return [f"interleaved times of whole training steps, 95 % intervals; impl {impls}", *sorted(machines)]
