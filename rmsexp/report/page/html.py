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

from rmsexp.records.frames import names
from rmsexp.records.frames.caveats import warnings
from rmsexp.report.page.answer import Answer
from rmsexp.report.page.charts import charts, look, looks, verdict_panel
from rmsexp.report.page.colours import DARK
from rmsexp.report.page.contents import CampaignReport, SettingReport
from rmsexp.report.page.markdown import ANSWER
from rmsexp.report.plots import panels, ranges
from rmsexp.report.plots.setting_curves import LIMITS
from rmsexp.report.plots.verdict_panels import Panel
from rmsexp.report.tables.formats import NO_VALUE

# Limit for one quantity and one x axis, summed over all settings: points in the curves of seeds, and also points in the
# means. Browsers draw so many quickly.
POINTS = 100_000
FEWEST = 4  # points of a curve that keep its shape (rmsexp.records.frames.curves.thinned)
READING = (
    "relative to LayerNorm, interleaved, with 95 % intervals; a row is a machine and number of threads, in the order "
    "of the table; diamonds: the paper, each framework; models without norm are not shown"
)
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
    "time_state": "time state",
    "device": "device",
    "threads": "threads",
    "precision": "precision",
    "torch": "torch",
    "parameters": "parameters",
    "folder": "folder",
}


def page(
    reports: Sequence[SettingReport],
    campaigns: CampaignReport | None = None,
    first: Answer | None = None,
    problems: Sequence[str] = (),
) -> str:
    """Return the HTML page: problems with the records, the first view, the campaigns, and the settings as given.

    Raises:
        ValueError: there are neither settings nor campaigns.
    """
    if not reports and campaigns is None:
        raise ValueError("there is no setting to show; train one first: python -m rmsexp task=cifar10 norm=rms")
    runs = sum(len(report.records.runs) for report in reports) or 1
    series = sum(report.records.runs["series"].nunique() for report in reports) or 1
    limits = panels.Limits(
        seed=min(LIMITS.seed, max(FEWEST, POINTS // runs)), mean=min(LIMITS.mean, max(FEWEST, POINTS // series))
    )
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(
        settings=[_setting(report, name, limits) for report, name in zip(reports, _names(reports), strict=True)],
        problems=problems,
        answer=None if first is None else _answer(first),
        campaigns=None if campaigns is None else _campaigns(campaigns),
        limits=limits,
        dark=DARK,
        decades=ranges.DECADES,
        css=Markup((folder / "page.css").read_text()),
        script=Markup("".join((folder / f"{name}.js").read_text() for name in ("verdicts", "lines", "page"))),
        plotly=Markup(get_plotlyjs()),
    )


def _names(reports: Sequence[SettingReport]) -> list[str]:
    """Return each setting's name, followed by its root if another report has the same task and setting."""
    count = Counter((report.task, report.setting) for report in reports)
    return [report.setting + f" ({report.root})" * (count[report.task, report.setting] > 1) for report in reports]


def _answer(first: Answer) -> dict[str, Any]:
    figures = [] if first.savings is None else [_figure("Time saved, norms in eager mode", READING, [first.savings])]
    return {"title": ANSWER, "sentences": first.sentences, "table": first.table, "figures": figures}


def _figure(title: str, caption: str, shown: Sequence[Panel]) -> dict[str, Any]:
    norms = names.in_order(entry.norm for panel in shown for entry in panel.marks)
    figure = {"title": title, "caption": caption, "looks": [look(norm, norms) for norm in norms]}
    return figure | {"panels": [(panel.title, verdict_panel(panel)) for panel in shown]}


def _campaigns(report: CampaignReport) -> dict[str, Any]:
    figures = [_figure(title, report.captions[title], shown) for title, shown in report.figures.items()]
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
        "warnings": warnings(records),
        "notes": report.notes,
        "sentences": report.sentences,
        "problems": records.problems,
        "tables": report.tables,
        "runs": _runs(records.runs),
        "charts": charts(report.charts, report.task, limits),
    }


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
