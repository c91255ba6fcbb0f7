"""Figures in the paper's own layout: panels with the quantities and axes of the paper, a curve per norm."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from rmsexp.compare.paper.items import Item, Part
from rmsexp.compare.plots import canvas, style
from rmsexp.compare.records import curves as curves_of
from rmsexp.compare.records import names, statistics


def curves(item: Item, parts: Sequence[Part]) -> Figure:
    """Return an item's figure, with a panel for each of its panels and a curve for each row of its groups.

    A curve is the mean over seeds (:func:`rmsexp.compare.records.curves.mean_curve`).
    """
    figure, panels = canvas.row(len(item.panels), f"{item.content.title}: {item.content.caption}", [])
    for axes, panel in zip(panels, item.panels, strict=True):
        split, metric = panel.quantity.split(" ")
        for found in (part.found for part in parts if part.found is not None):
            rows = statistics.evaluations(found.records, split, metric)
            for label, series in found.series.items():
                of_series = rows[rows["series"] == series].sort_values("step")
                lines = [curves_of.curve(run, "step", "value") for _, run in of_series.groupby("folder")]
                if lines:
                    mean = curves_of.mean_curve(lines)
                    axes.plot(mean["x"], mean["mean"], color=style.colour(names.norm_of(series)), label=label)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.quantity)
        canvas.add_grid(axes)
    panels[0].legend(frameon=False)
    return figure
