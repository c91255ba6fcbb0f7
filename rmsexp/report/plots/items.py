"""Figures in the paper's own layout: panels with the quantities and axes of the paper, a curve per norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from rmsexp.campaign.item_file import Found, Item, Panel
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.report.plots import canvas, p_sweep, paper_figures
from rmsexp.report.plots.paper_figures import View
from rmsexp.report.tables import p_sweep as p_table
from rmsexp.rules.quantities import Quantity

P_TICKS = range(20, 101, 20)  # in percent, as in the paper
READING = "thin: one seed; thick: the mean over seeds; x: diverged"
READING_P = f"points: seeds; lines: their means{p_sweep.BARS}"


def curves(item: Item, found: Found, sources: Sequence[str]) -> Figure:
    """Return an item's figure, with a panel for each of its panels and a curve for each row of its group.

    Args:
        item: the item.
        found: what the records have of its group.
        sources: where our values come from: scale, data, seeds and machine, as lines of the caption.
    """
    views = [_interim(_view(panel, found), found) for panel in item.panels]
    lines = [item.caption, *sources, READING]
    return paper_figures.draw(item.title, lines, found.records, found.series, views)


def against_p(item: Item, found: Found, sources: Sequence[str]) -> Figure:
    """Return an item's figure, with a panel for each of its panels, against p. Arguments are as in :func:`curves`."""
    records, views = found.records, [_view(panel, found) for panel in item.panels]
    table = p_table.table(records, *records.names)
    lines = [item.caption, *sources, READING_P, *filter(None, [p_table.left_out(records, table)])]
    figure, grid = canvas.grid(len(views), canvas.PANEL[1], item.title, lines)
    for axes, view in zip(grid, views, strict=True):
        p_sweep.draw_quality(axes, table, view.quantity, records)
        values = table[view.quantity.name].dropna() * view.quantity.factor
        paper_figures.set_range(axes, view, records, values.tolist())
        axes.set_xticks(P_TICKS)
    return figure


def _interim(view: View, found: Found) -> View:
    """Return the view of a curve; runs with a score evaluate the whole validation split at their last steps only."""
    if view.quantity.split != names.VALID or not statistics.target(found.records).scored:
        return view
    return view._replace(quantity=replace(view.quantity, split=names.INTERIM))


def _view(panel: Panel, found: Found) -> View:
    """Return a panel with the quantity that the task names or, if it names none, the usual one of the metric."""
    split, metric = panel.quantity.split(" ")
    if panel.label:
        quantity = Quantity(split, metric, panel.label)
    else:
        named = quantities.named(found.records)
        usual = quantities.usual(split, metric)
        quantity = next((one for one in named if (one.split, one.metric) == (split, metric)), usual)
    y_range = (panel.y_range[0], panel.y_range[1]) if panel.y_range else None
    return View(quantity, panel.title, panel.x, panel.per, panel.steps, y_range)
