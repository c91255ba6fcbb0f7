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
LONG = 18  # characters of the changed options of a setting that are not shown
WIDEST = 0.5  # a saving whose interval, of the ratio of times, is wider says too little to be drawn


def rows(timings: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Return the savings over LayerNorm of the same implementation, for its figure.

    For each task, setting, machine, number of threads and precision, they are those of the comparison with the highest
    :func:`rmsexp.records.frames.comparable.rank`. LayerNorm itself and models without norm are left out.
    The column ``too_wide`` marks savings whose intervals are wider than ``WIDEST``, so that they do not set the range
    of the axis; if all intervals are, none is marked. Settings in which no timing has ``FEWEST_ROUNDS`` come last.

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

    Savings that were measured beside other programs, or in few rounds, are grey. The ends of intervals that are wider
    than ``WIDEST`` may be beyond the axis. ``rows``: the :func:`rows` of an implementation.
    """
    table = rows.assign(clock=[clock(row) for row in rows.to_dict("records")], series=rows["series"].map(without_impl))
    table["weak"] = (table["time_state"] != "undisturbed") | (table["rounds"] < FEWEST_ROUNDS)
    shown = _short(table)
    looks = style.looks(in_order(table["series"]))
    labels, marks, ends = list[str](), list[Mark](), [0.0]
    for names_of_row, line in table.groupby(["task", "setting", "series"], sort=False):
        task, setting, series = map(str, names_of_row)
        y = -float(len(labels))
        scale, plus, changes = setting.partition("+")
        place = scale + plus + (changes if len(changes) < LONG else "…")
        labels.append(textwrap.fill(f"{task}, {place}: {label(series)}", 26))
        for of_paper in paper.select(task, "saving_vs_ln").to_dict("records") if impl == "eager" else []:
            if of_paper["norm"] == series.lower():
                text = f"paper, {of_paper['framework']}"
                marks.append(Mark("hollow", style.PAPERS, [100 * of_paper["value"]], [y], label=text))
                ends.append(100 * of_paper["value"])
        step = min(APART, SPREAD / max(1, len(line) - 1))
        for number, row in enumerate(line.sort_values("clock").to_dict("records")):
            marker, symbol = MACHINES[list(shown).index(row["clock"]) % len(MACHINES)]
            look = looks[series]._replace(marker=marker, symbol=symbol)
            if row["weak"]:
                look = look._replace(colour=style.PAPERS.colour, on_dark=style.PAPERS.on_dark)
            saving, low, high = (100 * part for part in timing_records.saving(row))
            height = y + step * ((len(line) - 1) / 2 - number)
            text = f"{label(series)}, {row['clock']}"
            marks.append(interval(look, height, (saving, low, high), text, series, single=row["processes"] == 1))
            ends += [saving] if row["too_wide"] else [saving, low, high]
    x = Axis("time saved per step (%)", padded(ends))
    machines = [
        (style.OTHER_LOOKS[-1]._replace(marker=marker, symbol=symbol, dash=""), textwrap.fill(name, 34))
        for name, (marker, symbol) in zip(shown.values(), MACHINES, strict=False)
    ]
    published = [(style.PAPERS, "paper, each framework")] * (impl == "eager")
    legend = [*((look._replace(marker=""), label(series)) for series, look in looks.items()), *machines, *published]
    notes = {
        "hollow: one process": (table["processes"] == 1).any(),
        f"grey: disturbed by other programs, or fewer than {FEWEST_ROUNDS} rounds": table["weak"].any(),
    }
    caption = [
        "whole training steps, timed interleaved; 95 % intervals over processes",
        "; ".join(note for note, applies in notes.items() if applies),
    ]
    title = f"Time saved relative to LayerNorm, {impl} norms"
    return Chart(title, list(filter(None, caption)), [panel_of_rows(labels, marks, x, 0)], legend)


def _short(table: pd.DataFrame) -> dict[str, str]:
    """Return a name for people of each clock, without the identity of its machine: "AMD EPYC (2), 1 thread"."""
    shown: dict[str, str] = {}
    for _, same in table.groupby("processor", sort=True):
        machines = sorted(set(map(str, same["machine"])))
        for row in same.sort_values("clock").to_dict("records"):
            number = f" ({machines.index(str(row['machine'])) + 1})" * (len(machines) > 1)
            rest = f"{comparable.threads(row['threads'])}{comparable.precision(row['precision'])}"
            shown[row["clock"]] = f"{row['processor']}{number}, {rest}"
    return shown
