"""The report as one HTML page that makes no network requests.

This module collects the curves, the warnings and the table of runs. ``page.html.j2`` is the template, ``page.js`` has
the controls, and ``verdicts.js`` draws the figures of campaigns. Plotly draws the curves in the browser; the page
contains Plotly's JavaScript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from rmsexp.compare.page.charts import charts, look, looks, verdict_panel
from rmsexp.compare.page.colours import DARK
from rmsexp.compare.page.contents import CampaignReport, SettingReport
from rmsexp.compare.plots import panels
from rmsexp.compare.records import names
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables.formats import NO_VALUE

LIMITS = panels.Limits(seed=300, mean=1000)
# Limit for one quantity and one x axis, summed over all settings: points in the curves of seeds, and also points in the
# means. Browsers draw so many quickly.
POINTS = 100_000
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
    "precision": "precision",
    "torch": "torch",
    "parameters": "parameters",
    "folder": "folder",
}


def page(reports: Sequence[SettingReport], campaigns: CampaignReport | None = None) -> str:
    """Return the HTML page: the campaigns, if there are any, and then the settings in the given order.

    Raises:
        ValueError: there are neither settings nor campaigns.
    """
    if not reports and campaigns is None:
        raise ValueError("there is no setting to show; train one first: python -m rmsexp task=cifar10 norm=rms")
    runs = sum(len(report.records.runs) for report in reports) or 1
    series = sum(report.records.runs["series"].nunique() for report in reports) or 1
    limits = panels.Limits(seed=min(LIMITS.seed, POINTS // runs), mean=min(LIMITS.mean, POINTS // series))
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(
        settings=[_setting(report, name, limits) for report, name in zip(reports, _names(reports), strict=True)],
        campaigns=None if campaigns is None else _campaigns(campaigns),
        limits=limits,
        dark=DARK,
        decades=panels.DECADES,
        css=Markup((folder / "page.css").read_text()),
        script=Markup((folder / "verdicts.js").read_text() + (folder / "page.js").read_text()),
        plotly=Markup(get_plotlyjs()),
    )


def _names(reports: Sequence[SettingReport]) -> list[str]:
    """Return each setting's name, followed by its root if another report has the same task and setting."""
    count = Counter((report.task, report.setting) for report in reports)
    return [report.setting + f" ({report.root})" * (count[report.task, report.setting] > 1) for report in reports]


def _campaigns(report: CampaignReport) -> dict[str, Any]:
    figures = []
    for title, panels_of_figure in report.figures.items():
        norms = names.in_order(entry.norm for panel in panels_of_figure for entry in panel.marks)
        figure = {"title": title, "caption": report.captions[title], "looks": [look(norm) for norm in norms]}
        figures.append(figure | {"panels": [(panel.title, verdict_panel(panel)) for panel in panels_of_figure]})
    texts = {
        "questions": report.questions,
        "matrix": report.matrix,
        "verdicts": report.verdicts,
        "tables": report.tables,
        "notes": report.notes,
    }
    return texts | {"figures": figures}


def _setting(report: SettingReport, name: str, limits: panels.Limits) -> dict[str, Any]:
    records = report.records
    return {
        "task": report.task,
        "name": name,
        "series": looks(report.task, records.runs),
        "warnings": _warnings(records),
        "notes": report.notes,
        "sentences": report.sentences,
        "problems": records.problems,
        "tables": report.tables,
        "runs": _runs(records.runs),
        "charts": charts(records, report.task, limits),
    }


def _warnings(records: Records) -> list[str]:
    """Return a few words for each reason for caution; the page's notes have the details."""
    runs = records.runs
    states = runs["time_state"][runs["time_state"] != "clear"].value_counts().sort_index()
    statuses = runs["status"][runs["status"] != "finished"].value_counts().sort_index()
    short = int(((runs["step"] < runs["recipe_steps"]) & (runs["status"] != "diverged")).sum())
    columns = ("impl", "device", "threads", "precision", "torch", "dataset")
    values = {column: runs[column].dropna().unique() for column in columns}
    return [
        *(["built-in data"] if runs["builtin"].eq(True).any() else []),
        *(f"{count} of {len(runs)} runs {status}" for status, count in statuses.items()),
        *(f"time of {count} of {len(runs)} runs excluded: {state}" for state, count in states.items()),
        *([f"{short} of {len(runs)} runs shorter than the recipe"] if short else []),
        *(f"{column} mixed" for column in values if len(values[column]) > 1),
        *([f"problems with the records: {len(records.problems)}"] if records.problems else []),
    ]


def _runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs as text: status, data, machine, folder and the other ``RUN_COLUMNS`` of each run."""
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
