"""The report as one page: self-contained HTML that asks the network for nothing.

Here stands what the page holds: the curves of every quantity, the warnings and the tables. ``page.html.j2`` is its
form, ``page.js`` what a reader can switch; the curves are drawn by plotly, whose JavaScript is part of the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import colors
from plotly.offline import get_plotlyjs

from rmsexp.compare import paper
from rmsexp.compare.page.contents import SettingReport
from rmsexp.compare.plots import panels, style
from rmsexp.compare.records import curves, names, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables.formats import NO_VALUE

SEED_POINTS, MEAN_POINTS = 300, 1000  # of one curve, at most
POINTS = 100_000  # of all seeds, and of all means, of one quantity: what a browser still handles well
DARK = "#16181d"  # the background of the dark theme
CONTRAST = 4.0  # of a line on it, at least
DASH_UNIT = 2  # pixels
RUN_COLUMNS = {
    "label": "norm",
    "seed": "seed",
    "status": "status",
    "error": "error",
    "step": "steps",
    "recipe_steps": "recipe's steps",
    "dataset": "data",
    "builtin": "built-in data",
    "impl": "impl",
    "time_state": "time",
    "device": "device",
    "threads": "threads",
    "torch": "torch",
    "parameters": "parameters",
    "folder": "folder",
}


class Limits(NamedTuple):
    """The most points that a seed's and a mean's curve keep."""

    seed: int
    mean: int


def page(settings: Sequence[SettingReport]) -> str:
    """The whole page, settings in the order given.

    Raises:
        ValueError: there is no setting to show.
    """
    if not settings:
        raise ValueError("there is no setting to show; train one first: python -m rmsexp task=cifar10 norm=rms")
    runs = sum(len(one.records.runs) for one in settings)
    series = sum(one.records.runs["series"].nunique() for one in settings)
    limits = Limits(seed=min(SEED_POINTS, POINTS // runs), mean=min(MEAN_POINTS, POINTS // series))
    here = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(
        settings=[_setting(one, name, limits) for one, name in zip(settings, _names(settings), strict=True)],
        limits=limits,
        dark=DARK,
        decades=panels.DECADES,
        css=Markup((here / "page.css").read_text()),
        script=Markup((here / "page.js").read_text()),
        plotly=Markup(get_plotlyjs()),
    )


def _names(settings: Sequence[SettingReport]) -> list[str]:
    """A setting's name within its task: with its root where the task has two of that name."""
    count = Counter((one.task, one.setting) for one in settings)
    return [one.setting + f" ({one.root})" * (count[one.task, one.setting] > 1) for one in settings]


def _setting(report: SettingReport, name: str, limits: Limits) -> dict[str, Any]:
    records = report.records
    return {
        "task": report.task,
        "name": name,
        "series": _series(report.task, records.runs),
        "warnings": _warnings(records),
        "notes": report.notes,
        "sentences": report.sentences,
        "problems": records.problems,
        "tables": report.tables,
        "runs": _runs(records.runs),
        "charts": [*(_chart(records, one, limits) for one in _quantities(records)), *_published(report.task)],
    }


def _quantities(records: Records) -> list[panels.Quantity]:
    """None where no ``run.json`` could be read: what the runs aimed at is then unknown."""
    try:
        return panels.quantities(records)
    except ValueError:
        return []


def _series(task: str, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Each norm's name, its colours on light and on dark ground, its dashes and its number of seeds.

    A norm without any seed is one of which only the paper shows curves.
    """
    curves, seeds = paper.curves(), Counter(runs["series"])
    everyone = names.in_order([*runs["series"], *curves["norm"][curves["task"] == task]])
    shown = []
    for one in everyone:
        colour = style.colour(names.norm_of(one))
        dash = _dash(style.dash_of(one, everyone))
        look = {"colour": colour, "on_dark": on_dark(colour), "dash": dash}
        shown.append({"series": one, "label": names.label(one), "seeds": seeds[one], **look})
    return shown


def _dash(dash: style.Dash) -> str:
    """As SVG and plotly take it."""
    return "solid" if dash == "-" else ",".join(f"{length * DASH_UNIT:g}px" for length in dash[1])


def on_dark(colour: str) -> str:
    """The colour itself, or the least mixture with white that stands out from the dark background."""
    rgb = np.array(colors.to_rgb(colour))
    tints = (rgb + (1 - rgb) * share for share in np.linspace(0, 1, 51))
    return next(colors.to_hex(tint) for tint in tints if contrast(colors.to_hex(tint), DARK) >= CONTRAST)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.2, "relative luminance")."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    rgb = np.array(colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _warnings(records: Records) -> list[str]:
    """Every reason for caution in a few words; the notes say more of each."""
    runs = records.runs
    states = runs["time_state"][runs["time_state"] != "clear"].value_counts().sort_index()
    ends = runs["status"][runs["status"] != "finished"].value_counts().sort_index()
    short = int(((runs["step"] < runs["recipe_steps"]) & (runs["status"] != "diverged")).sum())
    mixed = [(what, runs[what].dropna().unique()) for what in ("impl", "device", "threads", "torch", "dataset")]
    return [
        *(["built-in data"] if runs["builtin"].eq(True).any() else []),
        *(f"{count} of {len(runs)} runs {status}" for status, count in ends.items()),
        *(f"time of {count} of {len(runs)} runs not counted: {state}" for state, count in states.items()),
        *([f"{short} of {len(runs)} runs shorter than the recipe"] if short else []),
        *(f"{what} mixed" for what, values in mixed if len(values) > 1),
        *([f"damaged records: {len(records.problems)}"] if records.problems else []),
    ]


def _runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Where each run comes from, as text."""
    order = runs["series"].map(names.in_order(runs["series"]).index)
    table = runs.assign(label=runs["series"].map(names.label), order=order).sort_values(["order", "seed"])
    table = table[list(RUN_COLUMNS)].rename(columns=RUN_COLUMNS)
    return table.astype(object).map(_text)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return NO_VALUE if np.isnan(value) else f"{value:.0f}"
    return NO_VALUE if value is None else str(value)


def _chart(records: Records, quantity: panels.Quantity, limits: Limits) -> dict[str, Any]:
    """A quantity against steps and against time."""
    columns = ["folder", "step", "time", quantity.metric]
    rows = records.metrics[records.metrics["split"] == quantity.split].reindex(columns=columns)
    rows = rows.dropna(subset=quantity.metric)
    rows[quantity.metric] *= names.scale_and_unit(quantity.metric)[0]
    unit, divisor = speed.time_unit(rows["time"].max())
    rows["time"] /= divisor
    runs = {str(folder): one.to_numpy() for folder, one in rows.set_index("folder").groupby("folder", observed=True)}
    by_axis = {
        axis: {"title": title, "curves": _curves(records.runs, _points(runs, column), limits, timed=axis == "time")}
        for column, (axis, title) in enumerate({"step": "step", "time": f"time in training ({unit})"}.items())
    }
    log = panels.is_logarithmic(quantity, rows[quantity.metric])
    return {"title": str(escape(quantity.title)), "source": "", "log": log, "panels": by_axis}


def _points(runs: dict[str, statistics.Array], column: int) -> dict[str, panels.Points]:
    """Of each run's rows (step, time, value) those that say where they are, if there are any."""
    known = {folder: rows[np.isfinite(rows[:, column])] for folder, rows in runs.items()}
    return {folder: (rows[:, column], rows[:, 2]) for folder, rows in known.items() if len(rows)}


def _curves(
    runs: pd.DataFrame, points: dict[str, panels.Points], limits: Limits, *, timed: bool
) -> list[dict[str, Any]]:
    """Of each series its seeds, then its mean, as the figures draw them."""
    drawn = runs[runs["folder"].isin(list(points))]
    uncounted = (drawn["time_state"] != "clear") & timed
    shapes: list[dict[str, Any]] = []
    for series in names.in_order(drawn["series"]):
        own = drawn[drawn["series"] == series]
        for folder, seed, status, dashed in zip(
            own["folder"], own["seed"], own["status"], uncounted[own.index], strict=True
        ):
            x, y = points[folder]
            kept = curves.thinned(y, limits.seed)
            shape = {"seed": seed, "diverged": status == "diverged", "x": _numbers(x[kept]), "y": _numbers(y[kept])}
            shapes.append({"series": series, **_look(dashed), **shape})
        averaged, _ = curves.averaged(own, timed=timed)
        mean = curves.mean_curve([points[folder] for folder in averaged["folder"]])
        mean = mean.iloc[curves.thinned(mean["mean"].to_numpy(), limits.mean)]
        band = {"low": _numbers(mean["low"]), "high": _numbers(mean["high"])} if len(averaged) > 2 else {}
        shape = {"x": _numbers(mean["x"]), "y": _numbers(mean["mean"])} | band
        shapes.append({"series": series, **_look(bool(uncounted[averaged.index].any())), **shape})
    return shapes


def _look(uncounted: bool) -> dict[str, Any]:
    """Time that does not count has dashes of its own instead of the series'."""
    return {"uncounted": True, "dash": _dash(style.UNCOUNTED)} if uncounted else {"uncounted": False}


def _published(task: str) -> list[dict[str, Any]]:
    """The paper's figures of curves, each with the axes that it has."""
    curves = paper.curves()
    charts: dict[tuple[str, str], dict[str, Any]] = {}
    for (figure, metric, unit), drawn in curves[curves["task"] == task].groupby(["figure", "metric", "x_unit"]):
        name = str(figure).rstrip("ab")  # of Figure 1, one against steps and one against time
        what = panels.Quantity("train", "loss").title if metric == "loss" else names.metric(str(metric))
        empty: dict[str, Any] = {"title": what, "source": f"The paper's {name}, its own setting.", "log": False}
        chart = charts.setdefault((name, str(metric)), empty | {"panels": {}})
        axis, title = ("step", "step") if unit == "step" else ("time", f"time in training ({unit})")
        look = {"uncounted": False, "dash": _dash(style.PUBLISHED)}
        lines = [
            {"series": norm, **look, "x": _numbers(rows["x"]), "y": _numbers(rows["y"])}
            for norm, rows in drawn.groupby("norm")
        ]
        chart["panels"][axis] = {"title": title, "curves": lines}
    return list(charts.values())


def _numbers(values: statistics.Array | pd.Series) -> list[float]:
    """Six significant digits, and whole numbers without a point: half the size of the page."""
    rounded = (float(f"{value:.6g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]
