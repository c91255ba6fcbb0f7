"""The figures of the paper in its own layout: our curves in its panels and, beside or below them, its own curves."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.campaign import item_file
from rmsexp.campaign.item_file import Found, Item
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records, options
from rmsexp.report import paper
from rmsexp.report.plots import canvas, setting_curves, style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Panel, padded, robust
from rmsexp.report.plots.setting_curves import X
from rmsexp.report.plots.style import Look
from rmsexp.rules.quantities import Quantity

CURVE_SPLITS = {"loss": "train", "bleu": "valid"}  # metric of the paper's curves -> its split
PARTIAL = "prms"
UNITS: dict[X, str] = {"step": "step", "time": "minutes"}  # of the paper's x axes


def curves(item: Item, found: Found, sources: Sequence[str]) -> Figure:
    """Return an item's figure, with a panel for each of its panels and a curve for each row of its group.

    ``sources``: where our values come from: scale, data, seeds and machine, as lines of the caption.
    """
    looks = style.looks(found.series.values())
    ours = [_ours(panel, found.records, looks) for panel in item.panels]
    published = [
        replace(beside, title=f"{panel.title} in the paper, at its own setting".strip())
        for panel in item.panels
        if (beside := of_paper(item.title, _quantity(panel, found.records), panel.x, looks))
    ]
    ours = [replace(panel, title=(panel.title + " here" * bool(published)).strip()) for panel in ours]
    trained = set(found.records.runs["series"])
    legend = [(looks[series], row + " (no run)" * (series not in trained)) for row, series in found.series.items()]
    caption = [item.caption, *sources, setting_curves.reading(ours)]
    return canvas.draw(Chart(item.title, caption, [*ours, *published], legend, max(2, min(len(ours), 3))))


def against_p(item: Item, found: Found, sources: Sequence[str]) -> Figure:
    """Return the figure of an item whose rows are pRMSNorm, with a panel for each of its panels, against p.

    Arguments are as in :func:`curves`.
    """
    panels = [_against_p(panel, found.records) for panel in item.panels]
    reading = f"points: seeds; line: their means; band: {statistics.CONFIDENCE:.0%} t-interval, from three seeds on"
    legend = [(style.LOOKS[PARTIAL], names.label(PARTIAL))]
    return canvas.draw(Chart(item.title, [item.caption, *sources, reading], panels, legend))


def _against_p(panel: item_file.Panel, records: Records) -> Panel:
    """Return a quantity against p: a point per run, and means over seeds. Runs with unknown p are left out."""
    quantity, look = _quantity(panel, records), style.LOOKS[PARTIAL]
    values = statistics.final_metric(records, statistics.common_step(records), quantity.split, quantity.metric)
    series = records.runs.set_index("folder")["series"]
    p = pd.Series({folder: 100 * _p(str(folder), series[folder]) for folder in values.index}, dtype=float).dropna()
    values = values[p.index] * quantity.factor
    means = {float(str(at)): statistics.estimate(runs.to_numpy(float)) for at, runs in values.groupby(p)}
    y = [mean for mean, *_ in means.values()]
    low, high = ([mean + sign * half for mean, _, half in means.values()] for sign in (-1, 1))
    points = Mark("points", look._replace(marker="o", symbol="circle"), [*p], [*values])
    line = Mark("line", look, [*means], y, low, high, names.label(PARTIAL), PARTIAL)
    title = f"{quantities.title(quantity)}, {statistics.final_label(statistics.target(records))}"
    x = Axis("p (% of the units)", (0, 104), ticks=range(0, 101, 20))
    return Panel(x, Axis(title, padded([*values, *y, *low, *high])), [points, line], title=panel.title)


def _p(folder: str, series: str) -> float:
    """Return p of pRMSNorm, from the name of the series, else from the config in the run's folder, else NaN."""
    _, is_named, value = names.without_impl(series).partition("+p=")
    with suppress(ValueError, TypeError):
        return float(value if is_named else options(folder).get("norm.p", math.nan))
    return math.nan


def _quantity(panel: item_file.Panel, records: Records) -> Quantity:
    """Return the quantity of a panel, with the panel's label, else the task's, else the usual one."""
    split, metric = panel.quantity.split(" ")
    if panel.label:
        return Quantity(split, metric, panel.label)
    usual = quantities.usual(split, metric)
    return next((one for one in quantities.named(records) if (one.split, one.metric) == (split, metric)), usual)


def _ours(panel: item_file.Panel, records: Records, looks: Mapping[str, Look]) -> Panel:
    """Return a panel with our curves; recalls have an axis from 0, so that those of several panels compare.

    Runs with a score evaluate the whole validation split at their last steps only; theirs are of the validation sample.
    """
    quantity = _quantity(panel, records)
    if quantity.split == names.VALID and statistics.target(records).scored:
        quantity = replace(quantity, split=names.SAMPLE)
    if panel.steps is not None:
        records = Records(records.runs, records.metrics[records.metrics["step"] <= panel.steps], records.problems)
    (drawn,) = setting_curves.panels(records, quantity, looks, [panel.x])
    y = drawn.y
    if y.range is not None and quantity.metric in names.RECALLS:
        y = y._replace(range=(0.0, y.range[1]))
    return replace(drawn, title=panel.title, y=y)


def of_paper(figure: str, quantity: Quantity, x: X, looks: Mapping[str, Look]) -> Panel | None:
    """Return a panel with the curves of a figure of the paper, such as "Figure 1"; None if they are not known.

    ``looks``: those of the series that are drawn.
    """
    points = paper.curves()
    is_shown = (points["figure"] == figure) & (points["metric"] == quantity.metric) & (points["x_unit"] == UNITS.get(x))
    points = points[is_shown & (CURVE_SPLITS.get(quantity.metric) == quantity.split)]
    marks = []
    for series, look in looks.items():
        rows = points[points["norm"] == names.without_impl(series)]
        if len(rows):
            label = f"{names.label(series)} (paper)"
            at, value = rows["x"].to_numpy(float), rows["y"].to_numpy(float)
            marks.append(Mark("line", look._replace(dash=style.PAPER), at, value, label=label))
    if not marks:
        return None
    values = [mark.y for mark in marks]
    y = robust(quantities.title(quantity), values, [y[-1] for y in values], quantity.log)
    return Panel(Axis("step" if x == "step" else "time in training (minutes)"), y, marks)
