"""The charts of the time that norms save relative to LayerNorm on all timed tasks, one per implementation."""

import textwrap
from dataclasses import replace
from typing import Any

import pandas as pd

from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.names import in_order, label, setting_label, task_label, without_impl
from rmsexp.report import paper
from rmsexp.report.plots import style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Text, arrows, interval, padded
from rmsexp.report.plots.chart import rows as panel_of_rows
from rmsexp.rules.ratios import FEWEST_ROUNDS

SPREAD, APART = 0.7, 0.2  # in a row: distance of the first mark from the last, and of two machines, at most
SYMBOLS = "circle square triangle-up triangle-down x cross star pentagon diamond-tall hexagon"
MACHINES = tuple(zip("os^vXP*pdh", SYMBOLS.split(), strict=True))  # the last one is of all further machines
CLOCK = ["machine", "processor", "threads", "precision"]
LONG = 18  # characters of the changed options of a setting that are not shown
WIDEST = 0.5  # a saving whose interval, of the ratio of times, is wider says too little to be drawn


def rows(timings: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Return the savings over LayerNorm of the same implementation, for its figure.

    For each task, setting, machine, number of threads and precision, they are those of the comparison with the highest
    :func:`rmsexp.records.frames.comparable.rank`. LayerNorm itself and models without norm are left out.
    The column ``too_wide`` marks savings whose intervals are wider than ``WIDEST``, so that they do not set the range
    of the axis; if all intervals are, none is marked. Settings in which no timing has ``FEWEST_ROUNDS`` come last.
    """
    best: dict[tuple[object, ...], comparable.Comparison] = {}
    for comparison in comparable.comparisons(timings[timings["impl"] == impl]):
        key = tuple(comparison.rows.iloc[0][["task", "setting", *CLOCK]])
        best.setdefault(key, comparison)  # they are sorted by rank
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


def chart(rows: pd.DataFrame, impl: str, timings: pd.DataFrame) -> Chart:
    """Return the chart: a row per task, setting and norm, with our savings and, for eager norms, the paper's.

    At each end beyond the axis of an interval that is too wide is an arrow, and its ends are written.

    ``rows``: the :func:`rows` of an implementation. ``timings``: all of them, whose machines are counted.
    """
    table = rows.assign(clock=[clock(row) for row in rows.to_dict("records")], series=rows["series"].map(without_impl))
    table["weak"] = (table["time_state"] != "undisturbed") | (table["rounds"] < FEWEST_ROUNDS)
    clocks = sorted(set(table["clock"]))
    markers = {name: MACHINES[min(number, len(MACHINES) - 1)] for number, name in enumerate(clocks)}
    looks = style.looks(in_order(table["series"]))
    labels, marks, ends, wide = list[str](), list[Mark](), [0.0], list[tuple[style.Look, float, float, float]]()
    for names_of_row, line in table.groupby(["task", "setting", "series"], sort=False):
        task, setting, series = map(str, names_of_row)
        y = -float(len(labels))
        scale, plus, changes = setting_label(setting).partition(", ")
        place = f"scale {scale}" + plus + (changes if len(changes) < LONG else "…")
        labels.append(textwrap.fill(f"{task_label(task)}, {place}: {label(series)}", 30))
        for published in paper.select(task, "saving_vs_ln").to_dict("records") if impl == "eager" else []:
            if published["norm"] == series.lower():
                text = f"paper, {published['framework']}"
                marks.append(Mark("hollow", style.PAPERS, [100 * published["value"]], [y], label=text))
                ends.append(100 * published["value"])
        step = min(APART, SPREAD / max(1, len(line) - 1))
        for number, row in enumerate(line.sort_values("clock").to_dict("records")):
            marker, symbol = markers[row["clock"]]
            look = looks[series]._replace(marker=marker, symbol=symbol)
            if row["weak"]:
                look = look._replace(colour=style.PAPERS.colour, on_dark=style.PAPERS.on_dark)
            saving, low, high = (100 * part for part in timing_records.saving(row))
            height = y + step * ((len(line) - 1) / 2 - number)
            text = f"{label(series)}, {row['clock']}"
            marks.append(interval(look, height, (saving, low, high), text, series, single=row["processes"] == 1))
            ends += [saving] if row["too_wide"] else [saving, low, high]
            wide += [(look, height, low, high)] * row["too_wide"]
    left, right = padded(ends)
    for look, height, low, high in wide:
        for side, end, is_beyond in (("left", left, low < left), ("right", right, high > right)):
            marks += [arrows(look, side, [end], [height])] * is_beyond
    texts = [Text(height - 0.13, [f"{low:z.1f} to {high:z.1f} %"]) for _, height, low, high in wide]
    machines = [
        (style.OTHER_LOOKS[-1]._replace(marker=marker, symbol=symbol, dash=""), textwrap.fill(name, 34))
        for name, (marker, symbol) in markers.items()
    ]
    of_paper = [(style.PAPERS, "paper, each framework")] * (impl == "eager")
    legend = [*((look._replace(marker=""), label(series)) for series, look in looks.items()), *machines, *of_paper]
    notes = {
        "hollow: one process, and the interval is over its rounds": (table["processes"] == 1).any(),
        f"grey: disturbed, not known to be undisturbed, or fewer than {FEWEST_ROUNDS} rounds": table["weak"].any(),
    }
    caption = [
        "whole training steps, timed interleaved; 95 % intervals over processes"
        + "; arrow: interval beyond the axis, ends written" * bool(wide),
        f"{table['machine'].nunique()} of {timings.loc[timings['kind'] == 'steps', 'machine'].nunique()} machines: "
        f"those that timed {impl} norms and LayerNorm",
        "; ".join(note for note, applies in notes.items() if applies),
    ]
    title = f"Time saved relative to LayerNorm, {impl} norms"
    panel = panel_of_rows(labels, marks, Axis("time saved per step (%)", (left, right)), 0)
    return Chart(title, list(filter(None, caption)), [replace(panel, texts=texts)], legend)
