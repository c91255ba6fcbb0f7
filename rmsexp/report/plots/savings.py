"""The charts of the time that norms save relative to LayerNorm on all timed tasks, one per implementation."""

import textwrap
from typing import Any

import pandas as pd

from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.names import in_order, label, without_impl
from rmsexp.report import paper
from rmsexp.report.plots import style
from rmsexp.report.plots.chart import Axis, Chart, Mark, interval, padded
from rmsexp.report.plots.chart import rows as panel_of_rows
from rmsexp.rules.ratios import FEWEST_ROUNDS

SPREAD, APART = 0.7, 0.2  # in a row: distance of the first mark from the last, and of two machines, at most
MACHINES = (("o", "circle"), ("s", "square"), ("^", "triangle-up"), ("v", "triangle-down"), ("X", "x"), ("P", "cross"))
CLOCK = ["machine", "processor", "threads", "precision"]
WIDEST = 0.5  # a saving whose interval, of the ratio of times, is wider says too little to be drawn


def rows(timings: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Return the savings in the figure of an implementation, of which LayerNorm has the same.

    For each task, setting, machine, number of threads and precision, they are those of the comparison with the highest
    :func:`rmsexp.records.frames.comparable.rank`. LayerNorm itself and models without norm are left out.
    The column ``too_wide`` marks savings that are not drawn, because their intervals are wider than ``WIDEST``; if all
    intervals are, none is marked. Settings in which no timing has ``FEWEST_ROUNDS`` come last.

    ``timings``: see :func:`rmsexp.records.frames.timing_records.load`.
    """
    best: dict[tuple[object, ...], comparable.Comparison] = {}
    for comparison in comparable.comparisons(timings[timings["impl"] == impl]):
        key = tuple(comparison.rows.iloc[0][["task", "setting", *CLOCK]])
        if key not in best or comparable.rank(comparison.pooled) > comparable.rank(best[key].pooled):
            best[key] = comparison
    found = pd.concat([timings.iloc[:0], *(comparison.compared for comparison in best.values())])
    found = found[found["norm"] != "none"]
    wide = found["high"] - found["low"] > WIDEST  # not those without an interval
    few = found.groupby(["task", "setting"])["rounds"].transform("max") < FEWEST_ROUNDS
    order = found["series"].map(in_order(found["series"]).index)
    found = found.assign(too_wide=wide & (not wide.all()), few=few, order=order)
    found = found.sort_values(["few", "setting", "task", "order"], kind="stable", ignore_index=True)
    return found.drop(columns=["few", "order"])


def clock(row: dict[Any, Any]) -> str:
    """Return machine, threads and precision of a row."""
    return f"{comparable.machine(row)}, {comparable.threads(row['threads'])}{comparable.precision(row['precision'])}"


def chart(rows: pd.DataFrame, impl: str) -> Chart:
    """Return the chart: a row per task, setting and norm, with our savings and, for eager norms, the paper's.

    ``rows``: the :func:`rows` of an implementation.
    """
    table = rows[~rows["too_wide"]]
    table = table.assign(clock=[clock(row) for row in table.to_dict("records")])
    table["series"] = table["series"].map(without_impl)
    clocks = sorted(set(table["clock"]))
    looks = style.looks(in_order(table["series"]))
    labels, marks = list[str](), list[Mark]()
    for names_of_row, line in table.groupby(["task", "setting", "series"], sort=False):
        task, setting, series = map(str, names_of_row)
        y = -float(len(labels))
        labels.append(textwrap.fill(f"{task}, {setting}: {label(series)}", 26))
        for of_paper in paper.select(task, "saving_vs_ln").to_dict("records") if impl == "eager" else []:
            if of_paper["norm"] == series.lower():
                text = f"paper, {of_paper['framework']}"
                marks.append(Mark("hollow", style.PAPERS, [100 * of_paper["value"]], [y], label=text))
        step = min(APART, SPREAD / max(1, len(line) - 1))
        for place, row in enumerate(line.sort_values("clock").to_dict("records")):
            marker, symbol = MACHINES[clocks.index(row["clock"]) % len(MACHINES)]
            look = looks[series]._replace(marker=marker, symbol=symbol)
            saving, low, high = (100 * part for part in timing_records.saving(row))
            height = y + step * ((len(line) - 1) / 2 - place)
            text = f"{label(series)}, {row['clock']}"
            marks.append(interval(look, height, (saving, low, high), text, series, single=row["processes"] == 1))
    ends = [0.0, *(end for mark in marks for end in (*mark.x, *mark.low, *mark.high))]
    x = Axis("time saved per step (%)", padded(ends))
    machines = [
        (style.OTHER_LOOKS[-1]._replace(marker=marker, symbol=symbol, dash=""), textwrap.fill(name, 34))
        for name, (marker, symbol) in zip(clocks, MACHINES, strict=False)
    ]
    published = [(style.PAPERS, "paper, each framework")] * (impl == "eager")
    legend = [*((look._replace(marker=""), label(series)) for series, look in looks.items()), *machines, *published]
    processes = sorted({int(count) for count in table["processes"] if count > 1})
    measured = table["task"] + ", " + table["setting"] + " (" + table["clock"] + ")"
    too_wide = int(rows["too_wide"].sum())
    few = sorted(set(measured[table["rounds"] < FEWEST_ROUNDS]))
    unclear = sorted(set(measured[table["time_state"] != "clear"]))
    caption = {  # each line, and whether it applies
        f"interleaved times of whole training steps, 95 % intervals; torch {', '.join(sorted(set(table['torch'])))}": 1,
        f"hollow: {timing_records.replication(1)}; the interval does not cover how processes differ": (
            (table["processes"] == 1).any()
        ),
        f"left out: savings whose interval is wider than {100 * WIDEST:.0f} percentage points ({too_wide})": too_wide,
        f"filled: {', '.join(map(str, processes))} processes, interval over processes": processes,
        f"fewer than {FEWEST_ROUNDS} rounds: {'; '.join(few)}": few,
        f"time not clear: {'; '.join(unclear)}": unclear,
    }
    lines = [line for line, applies in caption.items() if applies]
    return Chart(f"Time saved relative to LayerNorm, {impl} norms", lines, [panel_of_rows(labels, marks, x, 0)], legend)
