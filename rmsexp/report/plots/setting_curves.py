"""The curves of one setting: each quantity against steps and against time in training, side by side.

A series is a norm with the options that were changed. In each panel, a series has a thick line of the mean over seeds
and a band from its lowest to its highest seed. The mean leaves out runs that diverged or failed and, against time, runs
that were disturbed: these have thin lines of their own. Against time, it is drawn at the mean time of each step. A
note counts the seeds of means that leave some out. A spike does not set the range of the y axis
(:func:`rmsexp.report.plots.chart.robust`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mode
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from rmsexp.records.frames import caveats, curves, names, quantities
from rmsexp.records.frames.load import Records, options
from rmsexp.records.frames.statistics import Array
from rmsexp.report.plots import canvas, style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Panel, beyond, robust
from rmsexp.report.plots.style import Look
from rmsexp.report.tables.formats import counted
from rmsexp.rules.quantities import Quantity

X = Literal["step", "time", "epoch"]
SEED_POINTS, MEAN_POINTS = 200, 400  # of a curve, at most; a panel of a PNG is 645 pixels wide
OTHER_RECALLS = ("image_r5", "image_r10")  # the curves of recall@1 stand for them; tables have all
DISTURBED = "time disturbed or unknown, do not compare"
# Of a series in a panel: a line per seed, a cross where a diverged seed ends, and the mean; the last values of the mean
# and of seeds that did not diverge; and the number of seeds in the mean, if it leaves some out, else "".
Lines = tuple[list[Mark], list[float], str]


def draw(records: Records, shown: Sequence[Quantity]) -> Figure:
    """Return the figure of :func:`chart`."""
    return canvas.draw(chart(records, shown))


def chart(records: Records, shown: Sequence[Quantity]) -> Chart:
    """Return the chart of these quantities. ``records``: those of one setting."""
    looks = style.looks(names.in_order(records.runs["series"]))
    in_bits = {quantity.split for quantity in shown if quantity.metric == "bits_per_byte"}  # the loss in another unit
    shown = [quantity for quantity in shown if quantity.metric != "loss" or quantity.split not in in_bits]
    shown = [quantity for quantity in shown if quantity.metric not in OTHER_RECALLS]
    drawn = [panel for quantity in shown for panel in panels(records, quantity, looks)]
    seeds, impls, labels = records.runs["series"].value_counts(), records.runs["impl"].unique(), names.labels(looks)
    of_impl = [f"{impl} norms" for impl in impls if len(impls) == 1]
    legend = [(look, f"{labels[name]} ({counted(seeds[name], 'seed')})") for name, look in looks.items()]
    data = f"data: {', '.join(sorted(records.runs['dataset'].dropna().unique())) or 'unknown'}"
    caption = ["; ".join([data, *caveats.warnings(records), *of_impl, *_rate(records)]), reading(drawn)]
    task, setting = records.names
    return Chart(f"{names.task_label(task)}, {names.setting_label(setting)}", caption, drawn, legend, columns=2)


def _rate(records: Records) -> list[str]:
    """Return the learning rates of a setting that does not name one, and whether its runs are of tuning."""
    setting, folders = records.names[1], records.runs.groupby("series")["folder"].first()
    rates = {names.label(str(series)): options(folder).get("optim.lr") for series, folder in folders.items()}
    usual = mode(rates.values())
    others = [f"{rate} for {norm}" for norm, rate in rates.items() if rate not in (usual, None)]
    told = [", ".join([f"learning rate {usual}", *others])] * (usual is not None and "optim.lr=" not in setting)
    return told + ["one rate, not tuned for each norm"] * ("evaluation=validation" in setting)


def reading(drawn: Sequence[Panel]) -> str:
    """Return how to read the lines of panels."""
    marks = [mark for panel in drawn for mark in panel.marks]
    parts = {
        "mean over seeds; band: lowest to highest seed": any(len(mark.low) for mark in marks),
        "thin: a seed that is not in the mean": any(mark.kind == "seed" for mark in marks),
        f"pale: {DISTURBED}": any(mark.label.endswith(DISTURBED) for mark in marks),
        "x: diverged": any(mark.kind == "cross" for mark in marks),
    }
    return "; ".join(text for text, applies in parts.items() if applies)


def panels(
    records: Records, quantity: Quantity, looks: Mapping[str, Look], axes: Sequence[X] = ("step", "time")
) -> list[Panel]:
    """Return a panel of a quantity against each of the ``axes``, all with the same y axis.

    ``looks``: the look of each series that is drawn, in their order.
    """
    rows = quantities.values(records, quantity)
    unit, seconds = curves.time_unit(rows["time"].max())
    units = {"step": ("step", 1), "time": (f"time in training ({unit})", seconds), "epoch": ("epoch", 1)}
    every_run = records.runs[["folder", "series", "status", "time_state"]].to_dict("records")
    total, drawn = Counter(run["series"] for run in every_run), list[tuple[str, dict[str, Lines]]]()
    for x in axes:
        title, length = units[x]
        of_runs = curves.curves(rows, "step", x, quantity.metric).items()
        by_run = {run: np.array([step, at / length, y * quantity.factor]) for run, (step, at, y) in of_runs}
        runs = [run for run in every_run if run["folder"] in by_run]
        if x != "time":
            runs = [run | {"time_state": "undisturbed"} for run in runs]
        by_series = {name: [run for run in runs if run["series"] == name] for name in looks}
        lines = {name: _lines(own, by_run, looks[name], total[name]) for name, own in by_series.items() if own}
        drawn.append((title, lines))
    every_line = [line for _, lines in drawn for line in lines.values()]
    values = [mark.y for marks, *_ in every_line for mark in marks]
    ends = [end for _, own, _ in every_line for end in own]
    if len(looks) == 1:  # no other series needs the room
        ends += [end for marks, *_ in every_line for mark in marks for end in (*mark.y, *mark.low, *mark.high)]
    y_axis = robust(quantities.title(quantity), values, ends, quantity.log)
    return [_panel(Axis(title), y_axis, lines) for title, lines in drawn]


def _lines(runs: Sequence[curves.Run], by_run: Mapping[str, Array], look: Look, seeds: int) -> Lines:
    """Return the lines of a series, whose mean is over the runs of :func:`rmsexp.records.frames.curves.averaged`.

    ``runs``: the runs of the series that have points. ``by_run``: the step, x and y of their points, by folder.
    ``seeds``: the number of all runs of the series.
    """
    series, pale = runs[0]["series"], style.mixed(look, style.PALE, "#ffffff", style.DARK)
    averaged, marks, ends = curves.averaged(runs, timed=True), list[Mark](), list[float]()
    mean, count = curves.mean_curve([by_run[run["folder"]] for run in averaged])
    for run in runs:
        _, x, y = by_run[run["folder"]]
        kept = curves.thinned(y, SEED_POINTS)
        own = look if run["time_state"] == "undisturbed" else pale
        if count < len(averaged) or run not in averaged:
            marks.append(Mark("seed", own, x[kept], y[kept], label=DISTURBED * (own is pale), series=series))
        if run["status"] == "diverged":
            marks.append(Mark("cross", look, x[-1:], y[-1:], label="diverged", series=series))
        else:
            ends.append(float(y[-1]))
    x, y, low, high = mean[:, curves.thinned(mean[1], MEAN_POINTS)]
    if ends and len(y):  # otherwise all runs diverged, or no step is common to them
        ends.append(float(y[-1]))
    if count == 1:
        low = high = np.empty(0)
    is_clear = all(run["time_state"] == "undisturbed" for run in averaged)
    label = names.label(series) + f", {DISTURBED}" * (not is_clear)
    line = Mark("line", look if is_clear else pale, x, y, low, high, label, series)
    return [*marks, line], ends, f"mean of {count} of {seeds} seeds" if count < seeds else ""


def _panel(x: Axis, y: Axis, lines: Mapping[str, Lines]) -> Panel:
    """Return a panel with crosses within its range, and notes: on seeds of means, and on values beyond it."""
    assert y.range is not None
    low, high = y.range
    marks = [mark for of_series, *_ in lines.values() for mark in of_series]
    marks = [replace(mark, y=np.clip(mark.y, low, high)) if mark.kind == "cross" else mark for mark in marks]
    notes = [] if marks else ["nothing recorded yet"]
    labels = names.labels(lines)
    for count in dict.fromkeys(count for *_, count in lines.values() if count):
        of = [labels[name] for name, (*_, own) in lines.items() if own == count]
        notes.append(f"{count}: {'every norm' if len(of) == len(lines) > 1 else ', '.join(of)}")
    return Panel(x, y, marks, note="; ".join([*notes, *(beyond(marks, low, high) if marks else [])]))
