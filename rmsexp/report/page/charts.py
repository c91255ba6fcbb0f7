"""The charts of :mod:`rmsexp.report.plots.panels` as the JSON that ``page.js`` draws with plotly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import escape
from numpy.typing import ArrayLike

from rmsexp.records.frames import names, statistics
from rmsexp.report import paper
from rmsexp.report.page.colours import on_dark
from rmsexp.report.plots import panels, style
from rmsexp.report.plots.verdict_panels import GAP, Panel

DASH_UNIT = 2  # pixels per unit of the dash lengths in ``style``


def charts(drawn: Sequence[panels.Chart], task: str, limits: panels.Limits) -> list[dict[str, Any]]:
    """Return the charts of a setting, with curves thinned to ``limits``, then the paper's charts for the task."""
    return [_chart(panels.thinned(chart, limits)) for chart in drawn] + [
        _chart(chart) for chart in panels.paper_charts(task)
    ]


def verdict_panel(panel: Panel) -> dict[str, Any]:
    """Return a panel of a figure of campaigns as JSON; texts are escaped, since plotly renders some HTML tags."""
    bands = [
        {"low": band.low, "high": band.high, "bottom": band.y - GAP / 2, "top": band.y + GAP / 2}
        for band in panel.bands
    ]
    texts = [{"y": text.y, "text": "<br>".join(str(escape(line)) for line in text.lines)} for text in panel.texts]
    marks = [
        {"norm": entry.norm, "label": str(escape(entry.label)), "kind": entry.kind}
        | {key: _numbers(getattr(entry, key)) for key in ("x", "y", "low", "high")}
        for entry in panel.marks
    ]
    titles = {key: str(escape(getattr(panel, key))).replace("\n", "<br>") for key in ("x_title", "y_title")}
    ranges = {"x_range": _numbers(panel.x_range), "y_range": _numbers(panel.y_range), "ticks": list(panel.ticks)}
    return titles | ranges | {"zero": panel.zero, "bands": bands, "texts": texts, "marks": marks}


def look(series: str, all_series: list[str]) -> dict[str, str]:
    """Return the label of a series, its marker, its dashes, and its colours on light and on dark background.

    ``all_series``: those in the same figure.
    """
    colour, _, symbol = style.look(norm := names.norm_of(series))
    line = {"symbol": symbol, "outline": style.outline(norm), "dash": _dash(style.dash_of(series, all_series))}
    return {"norm": series, "label": names.label(series), "colour": colour, "on_dark": on_dark(colour), **line}


def looks(task: str, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the :func:`look` of each series with its name and its number of seeds.

    Norms of the paper's curves for the task are included; those that we have not trained have 0 seeds.
    """
    curves, seeds = paper.curves(), Counter(runs["series"])
    all_series = names.in_order([*runs["series"], *curves["norm"][curves["task"] == task]])
    return [look(series, all_series) | {"series": series, "seeds": seeds[series]} for series in all_series]


def _dash(dash: style.Dash) -> str:
    """Return dashes in the notation of SVG and plotly, such as "14px,3px", or "solid"."""
    return "solid" if dash == "-" else ",".join(f"{length * DASH_UNIT:g}px" for length in dash[1])


def _chart(chart: panels.Chart) -> dict[str, Any]:
    source = f"{chart.source} of the paper, at its own setting." if chart.source else ""
    by_axis = {
        axis: {
            "title": panel.x_title,
            "curves": [line for curve in panel.curves for line in _lines(curve)],
            "beyond": [point._asdict() for point in panel.beyond],
        }
        for axis, panel in chart.panels.items()
    }
    low, high, log = chart.limits
    y_axis = {"title": str(escape(chart.title)), "log": log, "may_be_log": chart.may_be_log}
    return y_axis | {"range": _numbers([low, high]), "source": source, "panels": by_axis}


def _lines(curve: panels.Curve) -> list[dict[str, Any]]:
    """Return the lines of a curve: one per seed, then the mean; for a curve of the paper, that curve alone."""
    lines = [
        _line(curve.series, seed) | {"seed": seed.number, "diverged": seed.diverged, **_points(seed.x, seed.y)}
        for seed in curve.seeds
    ]
    mean = curve.mean
    band = {"low": _bounds(mean["low"]), "high": _bounds(mean["high"])} if curve.has_band else {}
    source = {"paper": True} if curve.from_paper else {"averaged": curve.averaged, "at_end": curve.at_end}
    return [*lines, _line(curve.series, curve) | source | _points(mean["x"], mean["mean"]) | band]


def _line(series: str, curve: panels.Seed | panels.Curve) -> dict[str, Any]:
    dash = {} if curve.dash is None else {"dash": _dash(curve.dash)}
    return {"series": series, "time_excluded": bool(curve.time_excluded), **dash}


def _points(x: statistics.Array | pd.Series, y: statistics.Array | pd.Series) -> dict[str, list[float]]:
    return {"x": _numbers(x), "y": _numbers(y)}


def _bounds(values: ArrayLike) -> list[float | None]:
    """Return the values as :func:`_numbers`, but None where fewer than three seeds are in the mean."""
    return [None if math.isnan(value) else value for value in _numbers(values)]


def _numbers(values: ArrayLike) -> list[float]:
    """Return the values with six significant digits, and whole numbers as integers, which halves the page's size.

    A page of 1,000 runs has some millions of values, so they are rounded together.
    """
    array = np.asarray(values, dtype=float)
    with np.errstate(all="ignore"):  # zeros and values that are not finite remain as they are
        decimals = 5 - np.floor(np.log10(np.abs(array)))
        factors = 10.0 ** np.abs(decimals)  # exact, unlike negative powers
        rounded = np.where(decimals > 0, np.rint(array * factors) / factors, np.rint(array / factors) * factors)
    rounded = np.where(np.isfinite(rounded), rounded, array)
    return [int(value) if value.is_integer() else value for value in rounded.tolist()]
