"""The figures of the time that norms save relative to LayerNorm on all timed tasks, one per implementation."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.names import in_order, label, without_impl
from rmsexp.report.plots import canvas, marks, style
from rmsexp.rules.ratios import FEWEST_ROUNDS

OFFSET = 0.2  # distance between the marks of two machines in one row, at most, relative to the distance between rows
SPREAD = 0.6  # distance between the first and the last mark of a row, at most
CLOCKS = "os^vXP"  # matplotlib markers of our savings, one per CLOCK
PAPER = "D"  # matplotlib marker of the paper's savings
CLOCK = ("machine", "processor", "threads", "precision")
WIDEST = 0.5  # a saving whose interval, of the ratio of times, is wider says too little to be drawn
SAME = ["task", "setting", "series", "threads", "precision"]  # of what several machines may have measured


def rows(timings: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Return the savings in the figure of an implementation, of which LayerNorm has the same.

    For each task, setting, machine, number of threads and precision, they are those of the comparison with the highest
    :func:`rmsexp.records.frames.comparable.rank`. LayerNorm itself and models without norm are left out, and so is
    what a single process measured if several processes did on another machine; the column ``left_out`` counts these.
    The column ``too_wide`` marks savings that are not drawn, because their intervals are wider than ``WIDEST``; if all
    intervals are, none is marked. Settings in which no timing has ``FEWEST_ROUNDS`` come last.

    ``timings``: see :func:`rmsexp.records.frames.timing_records.load`.
    """
    found = pd.concat([timings.iloc[:0], *(comparison.compared for comparison in _best(timings, impl))])
    found = found[found["norm"] != "none"]
    same = found.groupby(SAME, dropna=False)
    kept = (found["processes"] > 1) | (same["processes"].transform("max") == 1)
    found = found.assign(left_out=(~kept).groupby([found[key] for key in SAME], dropna=False).transform("sum"))[kept]
    wide = found["high"] - found["low"] > WIDEST  # not those without an interval
    few = found.groupby(["task", "setting"])["rounds"].transform("max") < FEWEST_ROUNDS
    order = found["series"].map(in_order(found["series"]).index)
    found = found.assign(too_wide=wide & (not wide.all()), few=few, order=order)
    found = found.sort_values(["few", "setting", "task", "order"], kind="stable", ignore_index=True)
    return found.drop(columns=["few", "order"])


def _best(timings: pd.DataFrame, impl: str) -> list[comparable.Comparison]:
    best: dict[tuple[object, ...], comparable.Comparison] = {}
    for comparison in comparable.comparisons(timings[timings["impl"] == impl]):
        first = comparison.rows.iloc[0]
        key = (first["task"], first["setting"], *first[list(CLOCK)])
        if key not in best or comparable.rank(comparison.pooled) > comparable.rank(best[key].pooled):
            best[key] = comparison
    return list(best.values())


def number_left_out(rows: pd.DataFrame) -> int:
    """Return how many savings are left out of some :func:`rows`."""
    return int(rows.drop_duplicates(SAME)["left_out"].sum())


def draw(rows: pd.DataFrame, impl: str) -> Figure:
    """Return the figure: one row per task, setting and norm, with our savings and, for eager norms, the paper's.

    ``rows``: the :func:`rows` of an implementation.
    """
    table = rows[~rows["too_wide"]].iloc[::-1].reset_index(drop=True)
    one_setting = table["setting"].nunique() == 1
    place_names = table["task"] if one_setting else table["task"] + ", " + table["setting"]
    table["label"] = place_names + ": " + table["series"].map(without_impl).map(label)
    clocks = sorted(set(table[list(CLOCK)].itertuples(index=False, name=None)))
    title = f"Time saved relative to LayerNorm, {impl} norms" + f", {table['setting'].iloc[0]}" * one_setting
    machines, norms = list(map(_machine, clocks)), in_order(table["norm"])
    legend = len(norms) + len("\n".join(machines).splitlines()) + (impl == "eager")
    caption = _caption(table, int(rows["too_wide"].sum()))
    figure, axes = canvas.bars(list(table["label"].unique()), title, caption, legend)
    for y, (_, line) in enumerate(table.groupby("label", sort=False)):
        first = line.iloc[0]
        present = [clock for clock in clocks if clock in set(line[list(CLOCK)].itertuples(index=False, name=None))]
        step = min(OFFSET, SPREAD / max(1, len(present) - 1))
        if impl == "eager":
            marks.paper_savings(axes, str(first["task"]), [(str(first["series"]), y)], PAPER)
        for row in line.to_dict("records"):
            clock = tuple(row[key] for key in CLOCK)
            saving, low, high = (100 * fraction for fraction in timing_records.saving(row))
            colour, marker = style.colour(row["norm"]), CLOCKS[clocks.index(clock) % len(CLOCKS)]
            filling = "none" if row["processes"] == 1 else "full"
            height = y + step * ((len(present) - 1) / 2 - present.index(clock))
            marks.interval(axes, height, saving, low, high, colour, marker, filling)
    _legend(axes, machines, norms, impl)
    marks.zero_line(axes)
    axes.set_xlabel("time saved per training step (%)")
    return figure


def _machine(clock: tuple[str, str, float, str]) -> str:
    """Return the name of a ``CLOCK`` for the legend, in two or three lines."""
    machine, processor, threads, precision = clock
    identity = "" if machine == processor else f"\nmachine {comparable.identity(machine, processor)}"
    return f"{processor}\n{comparable.threads(threads)}{comparable.precision(precision)}{identity}"


def _legend(axes: Axes, machines: Sequence[str], norms: Sequence[str], impl: str) -> None:
    """Draw the legend: the colours of norms, the marker of each machine, and that of the paper."""
    for norm in norms:
        axes.plot([], [], color=style.colour(norm), linewidth=2, label=label(norm))
    for place, name in enumerate(machines):
        axes.plot([], [], CLOCKS[place % len(CLOCKS)], color="black", label=name)
    if impl == "eager":
        axes.plot([], [], PAPER, color=style.GREY, fillstyle="none", label="paper, each framework")
    marks.legend_outside(axes)


def _caption(table: pd.DataFrame, too_wide: int) -> list[str]:
    """Return the caption: how the times were measured, and which of them are less certain.

    ``too_wide``: how many savings are not drawn because of the width of their intervals.
    """
    torch = ", ".join(sorted(set(table["torch"])))
    lines = [f"interleaved times of whole training steps, 95 % intervals; torch {torch}"]
    if (table["processes"] == 1).any():
        lines.append(f"hollow: {timing_records.replication(1)}; the interval does not cover how processes differ")
    if number := number_left_out(table):
        lines.append(f"left out: savings from one process ({number}), as several measured the same elsewhere")
    if too_wide:
        width = f"{100 * WIDEST:.0f} percentage points"
        lines.append(f"left out: savings whose interval is wider than {width} ({too_wide})")
    if (table["processes"] > 1).any():
        counts = sorted({int(count) for count in table["processes"] if count > 1})
        lines.append(f"filled: {', '.join(map(str, counts))} processes, interval over processes")
    clocks = table["processor"] + ", " + table["threads"].map(comparable.threads)
    measured = table["task"] + ", " + table["setting"] + " (" + clocks + ")"
    few = sorted(set(measured[table["rounds"] < FEWEST_ROUNDS]))
    lines += [f"fewer than {FEWEST_ROUNDS} rounds: {'; '.join(few)}"] * bool(few)
    shared = sorted(set(measured[table["time_state"] != "clear"]))
    return lines + [f"time not clear: {'; '.join(shared)}"] * bool(shared)
