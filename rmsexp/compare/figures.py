"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rmsexp import record
from rmsexp.compare import published, stats, style
from rmsexp.compare.load import Records
from rmsexp.compare.notes import notes

Dash = Literal["-"] | tuple[float, tuple[float, ...]]  # as matplotlib takes it: offset, then lengths on and off
Points = tuple[stats.Array, stats.Array]

DPI = 150
PANEL = (4.3, 3.1)  # inches, of the axes alone
MOST = int(DPI * PANEL[0])  # points of a mean that are drawn: its least and greatest in every two pixels' columns
GAP = (0.8, 0.65)  # inches between them, for tick labels and axis titles
LINE, ENTRY = 0.165, 0.21  # inches, heights of a line of the notes and of an entry of the legend
THIN, THICK = 0.8, 1.8
UNCOUNTED: Dash = (0, (2, 1.2))  # the dashes of time that does not count
PUBLISHED: Dash = (0, (4, 1, 1, 1))  # of the paper's curves
VARIANTS: tuple[Dash, ...] = (
    "-",
    (0, (7, 1.5)),
    (0, (7, 1.5, 1.5, 1.5)),
    (0, (7, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (12, 3)),
)
DECADES = 100  # a loss that spans more than this factor gets a logarithmic axis
# Text stays text, and the same records give the same file.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rmsexp"}


class Quantity(NamedTuple):
    split: str
    metric: str
    loss_unit: str = "nats"

    @property
    def name(self) -> str:
        return f"{self.split}_{self.metric}"

    @property
    def title(self) -> str:
        unit = self.loss_unit if self.metric == "loss" else style.scale_and_unit(self.metric)[1]
        return f"{self.split} {style.metric(self.metric)}" + (f" ({unit})" if unit else "")


class Seed(NamedTuple):
    """One run's curve, thinned to what is seen."""

    x: stats.Array
    y: stats.Array
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
    aim = stats.target(records)
    wanted = (("train", "loss"), (aim.selection, "loss"), (aim.split, aim.metric))
    return [Quantity(*one, aim.loss_unit) for one in dict.fromkeys(wanted)]


def save(records: Records, folder: Path) -> None:
    """One figure a quantity, and ``curves`` with all of them, each as PNG and SVG."""
    wanted = quantities(records)
    prepared = {one: _prepare(records, one) for one in wanted}
    for name, shown in {**{one.name: [one] for one in wanted}, "curves": wanted}.items():
        write(_draw(records, {one: prepared[one] for one in shown}), folder / name)


def write(figure: Figure, path: Path) -> None:
    """The figure as ``<path>.png`` and ``<path>.svg``."""
    for suffix in ("png", "svg"):
        buffer = BytesIO()
        with matplotlib.rc_context(SVG):
            figure.savefig(buffer, format=suffix, dpi=DPI, metadata={"Date": None} if suffix == "svg" else None)
        record.write_atomic(path.with_name(f"{path.name}.{suffix}"), buffer.getvalue())


def row(panels: int, title: str, lines: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side below a title and notes."""
    lefts = [GAP[0] + column * (PANEL[0] + GAP[0]) for column in range(panels)]
    return _placed(lefts, PANEL, lefts[-1] + PANEL[0] + 0.2, title, lines)


def bars(names: Sequence[str], title: str, lines: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """A figure of one panel with a line for each name, room for the names and, to the right, for a legend."""
    left, width, legend = 0.5 + 0.085 * max(map(len, names)), 1.4 * PANEL[0], 2.4
    figure, (axes,) = _placed([left], (width, 0.3 + 0.4 * len(names)), left + width + legend, title, lines)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    return figure, axes


def _placed(
    lefts: list[float], size: tuple[float, float], width: float, title: str, lines: Sequence[str]
) -> tuple[Figure, list[Axes]]:
    """Panels of one size (inches) at these places from the left, in a figure of this width below its heading."""
    noted = wrapped(lines, width)
    height = 0.65 + LINE * len(noted) + size[1] + GAP[1]
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    _heading(figure, title, noted)
    at = GAP[1] / height, size[0] / width, size[1] / height
    axes = [figure.add_axes((left / width, *at)) for left in lefts]
    for one in axes:
        plain(one)
    return figure, axes


def plain(axes: Axes) -> None:
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def wrapped(lines: Sequence[str], width: float) -> list[str]:
    """Lines broken for a figure of so many inches."""
    return [part for line in lines for part in textwrap.wrap(line, int(width * 14), subsequent_indent="   ")]


def _heading(figure: Figure, title: str, lines: Sequence[str]) -> None:
    width, height = figure.get_size_inches()
    at: dict[str, Any] = {"x": 0.2 / width, "va": "top", "parse_math": False}  # an error message may hold a dollar
    size = min(14, 104 * (width - 0.4) / len(title))  # a setting's name may be long
    figure.text(y=1 - 0.2 / height, s=title, size=size, weight="bold", **at)
    figure.text(y=1 - 0.52 / height, s="\n".join(lines), size=8.5, color="#444444", linespacing=1.35, **at)


def draw(records: Records, shown: list[Quantity]) -> Figure:
    """One row of two panels a quantity, the notes above, the legend to the right; nothing lies over a curve."""
    return _draw(records, {one: _prepare(records, one) for one in shown})


def _draw(records: Records, shown: dict[Quantity, Panels]) -> Figure:
    figure, axes = _layout(records, len(shown))
    for (quantity, panels), row in zip(shown.items(), axes, strict=True):
        for panel, one in zip(row, panels, strict=True):
            _panel(panel, records, quantity, one)
    return figure


def _layout(records: Records, rows: int) -> tuple[Figure, list[list[Axes]]]:
    """Everything is placed in inches, which is exact and much quicker than a layout engine."""
    series = style.in_order(records.runs["series"])
    legend = 1.4 + 0.075 * max(len(style.label(one)) for one in series)
    width = 2 * (GAP[0] + PANEL[0]) + 0.2 + legend
    lines = wrapped(_caption(records), width)
    top = 0.75 + LINE * len(lines)
    height = top + max(rows * (PANEL[1] + GAP[1]), ENTRY * (len(series) + 2))  # the legend may be the taller
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    run = records.runs.iloc[0]
    _heading(figure, f"{run['task']}, {run['setting']}", lines)
    size = PANEL[0] / width, PANEL[1] / height
    lefts = [(GAP[0] + column * (PANEL[0] + GAP[0])) / width for column in range(2)]
    bottoms = [1 - (top + row * (PANEL[1] + GAP[1]) + PANEL[1]) / height for row in range(rows)]
    _legend(figure, records, series, (1 - legend / width, 1 - top / height))
    return figure, [[figure.add_axes((left, bottom, *size)) for left in lefts] for bottom in bottoms]


def _caption(records: Records) -> list[str]:
    seeds = records.runs.groupby("series").size().max()
    band = f"; band: {stats.CONFIDENCE:.0%} t-interval of the mean (from 3 seeds on)" if seeds > 2 else ""
    return [*notes(records), f"thin: one seed; thick: mean over seeds, as far as all of them go{band}"]


def _legend(figure: Figure, records: Records, series: list[str], corner: tuple[float, float]) -> None:
    seeds = records.runs["series"].value_counts()
    handles, labels = [], []
    for one in series:
        colour, dashes = style.colour(style.norm_of(one)), dash_of(one, series)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=THICK))
        labels.append(f"{style.label(one)} ({seeds[one]} seed{'s' if seeds[one] > 1 else ''})")
    if (records.runs["time_state"] != "clear").any():
        handles.append(Line2D([], [], color="black", linestyle=UNCOUNTED))
        labels.append("time not counted")
    if (records.runs["status"] == "diverged").any():
        handles.append(Line2D([], [], color="black", linestyle="none", marker="x"))
        labels.append("diverged")
    if not overlaid(records).empty:
        handles.append(Line2D([], [], color="black", linestyle=PUBLISHED))
        labels.append("the paper's, by its norm's colour")
    layout: dict[str, Any] = {"loc": "upper left", "frameon": False, "borderaxespad": 0, "handlelength": 2.6}
    figure.legend(handles, labels, bbox_to_anchor=corner, fontsize=9, **layout)


def dash_of(series: str, all_series: list[str]) -> Dash:
    """Variants of one norm share its colour and differ in their dashes."""
    same_norm = [one for one in all_series if style.norm_of(one) == style.norm_of(series)]
    return VARIANTS[same_norm.index(series) % len(VARIANTS)]


def is_logarithmic(quantity: Quantity, values: pd.Series) -> bool:
    """Whether the axis of a quantity is: that of a loss which spans decades."""
    low, high = values.min(), values.max()
    return bool(quantity.metric == "loss" and low > 0 and high > DECADES * low)


def _prepare(records: Records, quantity: Quantity) -> Panels:
    """What is drawn of a quantity against steps and against time."""
    rows = records.metrics[records.metrics["split"] == quantity.split]
    rows = rows.reindex(columns=["folder", "step", "time", quantity.metric])
    rows[quantity.metric] *= style.scale_and_unit(quantity.metric)[0]
    unit, divisor = stats.time_unit(rows["time"].max())
    rows["time"] /= divisor
    log = is_logarithmic(quantity, rows[quantity.metric])
    titles = {"step": "step", "time": f"time in training ({unit})"}
    points = {x: stats.curves(rows, x, quantity.metric) for x in titles}
    return [Panel(_curves(records.runs, points[x], timed=x == "time"), titles[x], log, x == "time") for x in titles]


def _curves(runs: pd.DataFrame, points: dict[str, Points], *, timed: bool) -> list[Curve]:
    """The seeds of each series, and the mean of those that count (of all, where none does)."""
    runs = runs[runs["folder"].isin(list(points))]
    found = []
    for series in style.in_order(runs["series"]):
        own = runs[runs["series"] == series]
        uncounted = (own["time_state"] != "clear") & timed
        seeds = [
            Seed(x[kept], y[kept], dashed, status == "diverged")
            for folder, dashed, status in zip(own["folder"], uncounted, own["status"], strict=True)
            for x, y in [points[folder]]
            for kept in [stats.thinned(y, MOST // 2)]
        ]
        averaged, _ = stats.averaged(own, timed=timed)
        mean = stats.mean_curve([points[folder] for folder in averaged["folder"]])
        mean = mean.iloc[stats.thinned(mean["mean"].to_numpy(), MOST)]
        found.append(Curve(series, seeds, mean, bool(uncounted[averaged.index].any())))
    return found


def _panel(axes: Axes, records: Records, quantity: Quantity, panel: Panel) -> None:
    everyone = style.in_order(records.runs["series"])
    if not panel.timed and (quantity.split, quantity.metric) == ("train", "loss"):
        published_lines(axes, overlaid(records))
    for curve in panel.curves:
        _lines(axes, curve, dash_of(curve.series, everyone))
    axes.set_xlabel(panel.title)
    axes.set_ylabel(quantity.title)
    axes.locator_params(nbins=5)
    plain(axes)
    if panel.log:
        axes.set_yscale("log")
    if not panel.curves:
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", color="#777777")


def overlaid(records: Records) -> pd.DataFrame:
    """The paper's curves of training loss against steps where they are of the same setting; else none."""
    curves, run = published.curves(), records.runs.iloc[0]
    same = (curves["task"] == run["task"]) & (curves["metric"] == "loss") & (curves["x_unit"] == "step")
    return curves[same & (run["setting"] == "paper")]


def published_lines(axes: Axes, curves: pd.DataFrame) -> None:
    """One dashed line a norm; ``curves``: rows of :func:`rmsexp.compare.published.curves` with the same axes."""
    for norm in style.in_order(curves["norm"]):
        own = curves[curves["norm"] == norm]
        label = f"{style.label(norm)} (paper)"
        axes.plot(own["x"], own["y"], color=style.colour(norm), linestyle=PUBLISHED, linewidth=1.2, label=label)


def _lines(axes: Axes, curve: Curve, dash: Dash) -> None:
    """Thin lines, a cross where one diverged, the thick mean, and its band where it has one."""
    colour, mean = style.colour(style.norm_of(curve.series)), curve.mean
    for seed in curve.seeds:
        thin = UNCOUNTED if seed.uncounted else dash
        axes.plot(seed.x, seed.y, color=colour, linestyle=thin, linewidth=THIN, alpha=0.5)
        if seed.diverged:
            axes.plot(seed.x[-1:], seed.y[-1:], color=colour, marker="x", markersize=8, markeredgewidth=2, zorder=3)
    thick = UNCOUNTED if curve.uncounted else dash
    axes.plot(mean["x"], mean["mean"], color=colour, linestyle=thick, linewidth=THICK)
    if mean["low"].notna().any():
        axes.fill_between(mean["x"], mean["low"], mean["high"], color=colour, alpha=0.15, linewidth=0)
