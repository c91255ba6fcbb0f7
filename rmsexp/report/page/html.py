"""The report of a whole results folder: an HTML page, Markdown, a CSV summary and figures.

The HTML page makes no network requests. ``page.html.j2`` is its template, and ``page.js`` draws the charts in the
browser with Plotly's JavaScript, which the page contains as gzip: it has several megabytes.
"""

import base64
import gzip
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from rmsexp.records.frames import names
from rmsexp.records.frames.caveats import warnings
from rmsexp.report.campaign_report import CampaignReport
from rmsexp.report.page import answer
from rmsexp.report.plots import canvas, chart, setting_curves, style
from rmsexp.report.plots import savings as savings_plot
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables import markup, verdicts
from rmsexp.system import atomic

SAVINGS = {"eager": "savings", "fused": "savings_fused"}  # the names of the figures by implementation


def write(
    reports: Sequence[SettingReport],
    campaigns: CampaignReport | None,
    timings: pd.DataFrame,
    problems: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Write the report of all settings into ``folder``. Return the paths of the texts, then of the PNG figures.

    Texts: ``report.html report.md summary.csv``. Figures, each as PNG and SVG: ``savings`` and ``savings_fused``, the
    time that eager and fused norms save on all tasks, if training steps were timed with LN and another norm. The files
    of ``campaigns`` must be in ``folder``; their paths are returned, too. ``timings``: all timing records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reports = sorted(reports, key=lambda report: bool(report.records.runs["builtin"].eq(True).any()))  # real data first
    saved = {impl: savings_plot.rows(timings, impl) for impl in SAVINGS}
    charts = {SAVINGS[impl]: savings_plot.chart(rows, impl, timings) for impl, rows in saved.items() if len(rows)}
    for name, drawn in charts.items():
        canvas.save(drawn, folder / name)
    numbers = verdicts.table([]) if campaigns is None else campaigns.numbers
    settings = {} if campaigns is None else campaigns.settings
    shown = {path for name in answer.about_scores(numbers)["campaign"] for path in settings[name]}
    others = [report for report in reports if report.path not in shown]
    first = answer.answer(others, numbers, saved)
    places = ["root", "task", "setting"]  # the first columns of the summaries as one table
    parts = [report.numbers("summary").assign(**{key: getattr(report, key) for key in places}) for report in reports]
    summary = pd.concat(parts or [pd.DataFrame(columns=places)], ignore_index=True)
    markdown = [
        "# Report",
        *["Problems with the records:\n\n" + markup.listed(problems)] * bool(problems),  # first, not to be overlooked
        *(f"## {answer.TITLE}", *first.sentences),
        *[markup.markdown(first.table)] * bool(len(first.table)),
        *([] if campaigns is None else [campaigns.markdown]),
        *(f"![{name}]({name}.png)" for name in charts),
        *(report.markdown(folder, level=2) for report in reports),
    ]
    texts = {
        "report.html": page(reports, campaigns, first, problems, charts.get(SAVINGS["eager"])),
        "report.md": markup.document(markdown),
        "summary.csv": markup.csv(summary.set_index(places).reset_index()),
    }
    for name, text in texts.items():
        atomic.write_atomic(folder / name, text)
    own = [] if campaigns is None else ["verdicts.csv", "rates.csv", *(f"{name}.png" for name in campaigns.charts)]
    return [folder / name for name in (*texts, *own, *(f"{name}.png" for name in charts))]


def page(
    reports: Sequence[SettingReport],
    campaigns: CampaignReport | None = None,
    first: answer.Answer | None = None,
    problems: Sequence[str] = (),
    savings: chart.Chart | None = None,
) -> str:
    """Return the HTML page: problems with the records, the first view, the campaigns, and the settings as given.

    The first view ends with the chart of the ``savings`` of eager norms.
    """
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
                "series": names.in_order(report.records.runs["series"]),
                "warnings": warnings(report.records),
            }
            for report in reports
        ],
        problems=problems,
        title=answer.TITLE,
        answer=first,
        references=[] if first is None else answer.references(first.table),
        savings=savings,
        campaigns=campaigns,
        points=setting_curves,
        dark=style.DARK,
        decades=chart.DECADES,
        css=Markup((folder / "page.css").read_text()),
        script=Markup((folder / "page.js").read_text()),
        plotly=base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode(),
    )


def _json(value: Any) -> Any:
    """Return a part of a chart as values for JSON: numbers with six significant digits, None if they are not finite."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if is_dataclass(value):
        return {key: _json(part) for key, part in vars(value).items()}
    if isinstance(value, style.Look | chart.Axis | chart.Text | chart.Shade):
        return {key: _json(part) for key, part in value._asdict().items()}
    return [_json(part) for part in value]
