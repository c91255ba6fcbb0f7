"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

import textwrap
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
from rmsexp.compare import stats, style
from rmsexp.compare.load import Records
from rmsexp.compare.notes import notes

Dash = Literal["-"] | tuple[float, tuple[float, ...]]  # as matplotlib takes it: offset, then lengths on and off
Points = tuple[stats.Array, stats.Array]

DPI = 150
PANEL = (4.3, 3.1)  # inches, of the axes alone
GAP = (0.8, 0.65)  # inches between them, for tick labels and axis titles
LINE, ENTRY = 0.165, 0.21  # inches, heights of a line of the notes and of an entry of the legend
THIN, THICK = 0.8, 1.8
UNCOUNTED: Dash = (0, (2, 1.2))  # the dashes of time that does not count
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


def quantities(records: Records) -> list[Quantity]:
    """Training loss, loss on the split by which "best" is chosen, and the target; each once."""
    aim = stats.target(records)
    wanted = (("train", "loss"), (aim.selection, "loss"), (aim.split, aim.metric))
    return [Quantity(*one, aim.loss_unit) for one in dict.fromkeys(wanted)]


def save(records: Records, folder: Path) -> None:
    """One figure a quantity, and ``curves`` with all of them, each as PNG and SVG."""
    wanted = quantities(records)
    for name, shown in {**{one.name: [one] for one in wanted}, "curves": wanted}.items():
        figure = draw(records, shown)
        for suffix in ("png", "svg"):
            buffer = BytesIO()
            with matplotlib.rc_context(SVG):
                figure.savefig(buffer, format=suffix, dpi=DPI, metadata={"Date": None} if suffix == "svg" else None)
            record.write_atomic(folder / f"{name}.{suffix}", buffer.getvalue())


def draw(records: Records, shown: list[Quantity]) -> Figure:
    """One row of two panels a quantity, the notes above, the legend to the right; nothing lies over a curve."""
    figure, axes = _layout(records, len(shown))
    for quantity, (by_step, by_time) in zip(shown, axes, strict=True):
        _panel(by_step, records, quantity, "step")
        _panel(by_time, records, quantity, "time")
    return figure


def _layout(records: Records, rows: int) -> tuple[Figure, list[list[Axes]]]:
    """Everything is placed in inches, which is exact and much quicker than a layout engine."""
    series = style.in_order(records.runs["series"])
    legend = 1.4 + 0.075 * max(len(style.label(one)) for one in series)
    width = 2 * (GAP[0] + PANEL[0]) + 0.2 + legend
    lines = [
        part for note in _caption(records) for part in textwrap.wrap(note, int(width * 14), subsequent_indent="   ")
    ]
    top = 0.75 + LINE * len(lines)
    height = top + max(rows * (PANEL[1] + GAP[1]), ENTRY * (len(series) + 2))  # the legend may be the taller
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    run = records.runs.iloc[0]
    title = f"{run['task']}, {run['setting']}"
    at: dict[str, Any] = {"x": 0.2 / width, "va": "top", "parse_math": False}  # an error message may hold a dollar
    figure.text(y=1 - 0.2 / height, s=title, size=14, weight="bold", **at)
    figure.text(y=1 - 0.52 / height, s="\n".join(lines), size=8.5, color="#444444", linespacing=1.35, **at)
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
        colour, dash = style.colour(style.norm_of(one)), _dash(one, series)
        handles.append(Line2D([], [], color=colour, linestyle=dash, linewidth=THICK))
        labels.append(f"{style.label(one)} ({seeds[one]} seed{'s' if seeds[one] > 1 else ''})")
    if (records.runs["time_state"] != "clear").any():
        handles.append(Line2D([], [], color="black", linestyle=UNCOUNTED))
        labels.append("time not counted")
    if (records.runs["status"] == "diverged").any():
        handles.append(Line2D([], [], color="black", linestyle="none", marker="x"))
        labels.append("diverged")
    layout: dict[str, Any] = {"loc": "upper left", "frameon": False, "borderaxespad": 0, "handlelength": 2.6}
    figure.legend(handles, labels, bbox_to_anchor=corner, fontsize=9, **layout)


def _dash(series: str, all_series: list[str]) -> Dash:
    """Variants of one norm share its colour and differ in their dashes."""
    same_norm = [one for one in all_series if style.norm_of(one) == style.norm_of(series)]
    return VARIANTS[same_norm.index(series) % len(VARIANTS)]


def _panel(axes: Axes, records: Records, quantity: Quantity, x: str) -> None:
    rows = records.metrics[records.metrics["split"] == quantity.split]
    rows = rows.reindex(columns=["folder", "step", "time", quantity.metric])
    rows[quantity.metric] *= style.scale_and_unit(quantity.metric)[0]
    unit, divisor = ("step", 1.0) if x == "step" else _time_unit(rows["time"].max())
    rows[x] /= divisor
    points = {str(folder): stats.curve(one, x, quantity.metric) for folder, one in rows.groupby("folder")}
    points = {folder: curve for folder, curve in points.items() if len(curve[0])}
    series = style.in_order(records.runs["series"])
    for one in series:
        runs = records.runs[(records.runs["series"] == one) & records.runs["folder"].isin(list(points))]
        if not runs.empty:
            _series(axes, runs, points, _dash(one, series), timed=x == "time")
    axes.set_xlabel("step" if x == "step" else f"time in training ({unit})")
    axes.set_ylabel(quantity.title)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    values = rows[quantity.metric]
    if quantity.metric == "loss" and values.min() > 0 and values.max() > DECADES * values.min():
        axes.set_yscale("log")
    if not points:
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", color="#777777")


def _time_unit(longest: float) -> tuple[str, float]:
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)


def _series(axes: Axes, runs: pd.DataFrame, points: dict[str, Points], dash: Dash, *, timed: bool) -> None:
    """The seeds of one series, and the mean of those that count (of all, where none does)."""
    colour = style.colour(runs["norm"].iloc[0])
    dashed = (runs["time_state"] != "clear") & timed
    lost = runs["status"].isin(stats.LOST)
    for run, uncounted in zip(runs.itertuples(), dashed, strict=True):
        x, y = points[str(run.folder)]
        axes.plot(x, y, color=colour, linestyle=UNCOUNTED if uncounted else dash, linewidth=THIN, alpha=0.5)
        if run.status == "diverged":
            axes.plot(x[-1:], y[-1:], color=colour, marker="x", markersize=8, markeredgewidth=2, zorder=3)
    averaged = next(some for some in (runs[~lost & ~dashed], runs[~lost], runs) if not some.empty)
    mean = stats.mean_curve([points[folder] for folder in averaged["folder"]])
    mean_dash = UNCOUNTED if dashed[averaged.index].any() else dash
    axes.plot(mean["x"], mean["mean"], color=colour, linestyle=mean_dash, linewidth=THICK)
    if len(averaged) > 2:
        axes.fill_between(mean["x"], mean["low"], mean["high"], color=colour, alpha=0.15, linewidth=0)
