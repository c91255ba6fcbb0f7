"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rmsexp.compare.plots import canvas
from rmsexp.compare.records import curves, names, speed, statistics
from rmsexp.compare.records.load import Records

Points = tuple[statistics.Array, statistics.Array]
MOST = int(
    canvas.DPI * canvas.PANEL[0]
)  # points of a mean that are drawn: its least and greatest in every two pixels' columns
DECADES = 100  # a loss that spans more than this factor gets a logarithmic axis


class Quantity(NamedTuple):
    split: str
    metric: str
    loss_unit: str = "nats"

    @property
    def name(self) -> str:
        return f"{self.split}_{self.metric}"

    @property
    def title(self) -> str:
        unit = self.loss_unit if self.metric == "loss" else names.scale_and_unit(self.metric)[1]
        return f"{self.split} {names.metric(self.metric)}" + (f" ({unit})" if unit else "")


class Seed(NamedTuple):
    """One run's curve, thinned to what is seen."""

    x: statistics.Array
    y: statistics.Array
    uncounted: bool
    diverged: bool


class Curve(NamedTuple):
    """A series: its seeds and their mean (columns ``x mean low high``), thinned to what is seen."""

    series: str
    seeds: list[Seed]
    mean: pd.DataFrame
    uncounted: bool


class Panel(NamedTuple):
    """One quantity against steps or time, with the title of the x axis."""

    curves: list[Curve]
    title: str
    log: bool
    timed: bool


Panels = list[Panel]


def quantities(records: Records) -> list[Quantity]:
    """Training loss, loss on the split by which "best" is chosen, and the target; each once."""
    aim = statistics.target(records)
    wanted = (("train", "loss"), (aim.selection, "loss"), (aim.split, aim.metric))
    return [Quantity(*one, aim.loss_unit) for one in dict.fromkeys(wanted)]


def is_logarithmic(quantity: Quantity, values: pd.Series) -> bool:
    """Whether the axis of a quantity is: that of a loss which spans decades."""
    low, high = values.min(), values.max()
    return bool(quantity.metric == "loss" and low > 0 and high > DECADES * low)


def panels(records: Records, quantity: Quantity) -> Panels:
    """What is drawn of a quantity against steps and against time."""
    rows = records.metrics[records.metrics["split"] == quantity.split]
    rows = rows.reindex(columns=["folder", "step", "time", quantity.metric])
    rows[quantity.metric] *= names.scale_and_unit(quantity.metric)[0]
    unit, divisor = speed.time_unit(rows["time"].max())
    rows["time"] /= divisor
    log = is_logarithmic(quantity, rows[quantity.metric])
    titles = {"step": "step", "time": f"time in training ({unit})"}
    points = {x: curves.curves(rows, x, quantity.metric) for x in titles}
    return [Panel(_curves(records.runs, points[x], timed=x == "time"), titles[x], log, x == "time") for x in titles]


def _curves(runs: pd.DataFrame, points: dict[str, Points], *, timed: bool) -> list[Curve]:
    """The seeds of each series, and the mean of those that count (of all, where none does)."""
    runs = runs[runs["folder"].isin(list(points))]
    found = []
    for series in names.in_order(runs["series"]):
        own = runs[runs["series"] == series]
        uncounted = (own["time_state"] != "clear") & timed
        seeds = [
            Seed(x[kept], y[kept], dashed, status == "diverged")
            for folder, dashed, status in zip(own["folder"], uncounted, own["status"], strict=True)
            for x, y in [points[folder]]
            for kept in [curves.thinned(y, MOST // 2)]
        ]
        averaged, _ = curves.averaged(own, timed=timed)
        mean = curves.mean_curve([points[folder] for folder in averaged["folder"]])
        mean = mean.iloc[curves.thinned(mean["mean"].to_numpy(), MOST)]
        found.append(Curve(series, seeds, mean, bool(uncounted[averaged.index].any())))
    return found
