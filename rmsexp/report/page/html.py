"""The report as one HTML page that makes no network requests.

This module collects the charts and the warnings. ``page.html.j2`` is the template, and ``page.js``
draws the charts in the browser with Plotly's JavaScript, which the page contains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from rmsexp.records.frames import names
from rmsexp.records.frames.caveats import warnings
from rmsexp.report.page.answer import TITLE, Answer
from rmsexp.report.page.contents import CampaignReport, SettingReport
from rmsexp.report.plots import chart, setting_curves, style


def page(
    reports: Sequence[SettingReport],
    campaigns: CampaignReport | None = None,
    first: Answer | None = None,
    problems: Sequence[str] = (),
    savings: chart.Chart | None = None,
) -> str:
    """Return the HTML page: problems with the records, the first view, the campaigns, and the settings as given.

    The first view ends with the chart of the ``savings`` of eager norms.

    Raises:
        ValueError: there are neither settings nor campaigns.
    """
    if not reports and campaigns is None:
        raise ValueError("there is no setting to show; train one first: python -m rmsexp task=cifar10 norm=rms")
    folder = Path(__file__).parent
    count = Counter((report.task, report.setting) for report in reports)  # more than one: of several roots
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["json"] = _json
    return environment.get_template("page.html.j2").render(
        settings=[
            {
                "report": report,
                "name": report.setting + f" ({report.root})" * (count[report.task, report.setting] > 1),
                "curves": report.charts.get("curves"),
                "series": names.in_order(report.records.runs["series"]),
                "warnings": warnings(report.records),
            }
            for report in reports
        ],
        problems=problems,
        title=TITLE,
        answer=first,
        savings=savings,
        campaigns=campaigns,
        points=setting_curves,
        dark=style.DARK,
        decades=chart.DECADES,
        css=Markup((folder / "page.css").read_text()),
        script=Markup((folder / "page.js").read_text()),
        plotly=Markup(get_plotlyjs()),
    )


def _json(value: Any) -> Any:
    """Return a part of a chart as JSON: numbers with six significant digits, None for those that are not finite."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if is_dataclass(value):
        return {key: _json(part) for key, part in vars(value).items()}
    if isinstance(value, style.Look | chart.Axis | chart.Text | chart.Shade):
        return {key: _json(part) for key, part in value._asdict().items()}
    return [_json(part) for part in value]
