"""The report as one HTML page that makes no network requests.

This module collects the charts and the warnings. ``page.html.j2`` is the template, and ``page.js``
draws the charts in the browser with Plotly's JavaScript, which the page contains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from rmsexp.records.frames import names
from rmsexp.records.frames.caveats import warnings
from rmsexp.report.page.answer import Answer
from rmsexp.report.page.contents import CampaignReport, SettingReport
from rmsexp.report.page.markdown import ANSWER
from rmsexp.report.plots import ranges, setting_curves, style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Values

DASH_UNIT = 2  # pixels per unit of the dash lengths in ``style``


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
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"panels": _panels, "dash": _dash}
    return environment.get_template("page.html.j2").render(
        settings=[_setting(report, name) for report, name in zip(reports, _names(reports), strict=True)],
        problems=problems,
        title=ANSWER,
        answer=first,
        campaigns=campaigns,
        points=setting_curves,
        dark=style.DARK,
        decades=ranges.DECADES,
        css=Markup((folder / "page.css").read_text()),
        script=Markup((folder / "page.js").read_text()),
        plotly=Markup(get_plotlyjs()),
    )


def _names(reports: Sequence[SettingReport]) -> list[str]:
    """Return each setting's name, followed by its root if another report has the same task and setting."""
    count = Counter((report.task, report.setting) for report in reports)
    return [report.setting + f" ({report.root})" * (count[report.task, report.setting] > 1) for report in reports]


def _setting(report: SettingReport, name: str) -> dict[str, Any]:
    runs = report.records.runs
    legend = [] if report.curves is None else report.curves.legend
    return {
        "report": report,
        "name": name,
        "norms": [(*entry, series) for entry, series in zip(legend, names.in_order(runs["series"]), strict=False)],
        "warnings": warnings(report.records),
    }


def _panels(chart: Chart) -> list[dict[str, Any]]:
    """Return the panels of a chart as JSON. What Plotly draws is escaped, since it renders some HTML tags."""
    return [
        {
            "title": panel.title,
            "note": panel.note,
            "x": _axis(panel.x),
            "y": _axis(panel.y),
            "line": panel.line,
            "height": panel.height,
            "marks": [_mark(mark) for mark in panel.marks],
            "shades": [_numbers(shade) for shade in panel.shades],
            "texts": [(text.y, _lines("\n".join(text.lines))) for text in panel.texts],
        }
        for panel in chart.panels
    ]


def _axis(axis: Axis) -> dict[str, Any]:
    ends = None if axis.range is None else _numbers(axis.range)
    ticks = None if axis.ticks is None else list(axis.ticks)
    labels = [_lines(text) for text in axis.texts]
    return {"title": _lines(axis.title), "range": ends, "log": axis.log, "ticks": ticks, "labels": labels}


def _mark(mark: Mark) -> dict[str, Any]:
    look = {"colour": mark.look.colour, "dark": mark.look.on_dark, "symbol": mark.look.symbol}
    values = {key: _numbers(getattr(mark, key)) for key in ("x", "y", "low", "high")}
    texts = {"kind": mark.kind, "label": _lines(mark.label), "series": mark.series, "dash": _dash(mark.look.dash)}
    return look | values | texts


def _lines(text: str) -> str:
    return str(escape(text)).replace("\n", "<br>")


def _dash(dash: style.Dash) -> str:
    """Return dashes in the notation of SVG and Plotly, such as "14px,3px", or "solid"."""
    return "solid" if isinstance(dash, str) else ",".join(f"{length * DASH_UNIT:g}px" for length in dash[1])


def _numbers(values: Values) -> list[float | None]:
    """Return the values with six significant digits; None for those that are not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
