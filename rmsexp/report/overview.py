"""Write the report of a whole results folder: an HTML page, Markdown, a CSV summary, LaTeX tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rmsexp.report.page import answer, html
from rmsexp.report.page.contents import CampaignReport, SettingReport
from rmsexp.report.plots import canvas
from rmsexp.report.plots import savings as savings_plot
from rmsexp.report.tables import markup
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

    Texts: ``report.html report.md summary.csv tables.tex``. Figures, each as PNG and SVG: ``savings`` and
    ``savings_fused``, the time that eager and fused norms save on all tasks, if training steps were timed with LN and
    another norm.

    Args:
        reports: the reports of the settings.
        campaigns: the report of the campaigns, whose figures are already in ``folder``; None without campaigns.
        timings: all timing records (:func:`rmsexp.records.frames.timing_records.load`), also of other settings.
        problems: problems with the records, one line each.
        folder: the folder of the report; it is created if it is missing.

    Raises:
        ValueError: there are neither settings nor campaigns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reports = sorted(reports, key=lambda report: bool(report.records.runs["builtin"].eq(True).any()))  # real data first
    saved = {impl: savings_plot.rows(timings, impl) for impl in SAVINGS}
    charts = {SAVINGS[impl]: savings_plot.chart(rows, impl) for impl, rows in saved.items() if len(rows)}
    for name, chart in charts.items():
        canvas.write(canvas.draw(chart), folder / name)
    numbers = pd.DataFrame() if campaigns is None else campaigns.numbers
    shown = set[Path]()
    if campaigns is not None:
        shown = {path for name in answer.about(numbers)["campaign"] for path in campaigns.settings[name]}
    others = [report for report in reports if report.path not in shown]
    first = answer.answer(others, numbers, saved["eager"], saved["fused"])
    places = ["root", "task", "setting"]  # the first columns of the summaries as one table
    parts = [report.numbers("summary").assign(**{key: getattr(report, key) for key in places}) for report in reports]
    summary = pd.concat(parts or [pd.DataFrame(columns=places)], ignore_index=True)
    markdown = ["# Report"]
    if problems:  # they come first, so that a missing file is not overlooked
        markdown.append("Problems with the records:\n\n" + markup.listed(problems))
    markdown += [f"## {answer.TITLE}", *first.sentences, *[markup.markdown(first.table)] * (len(first.table) > 0)]
    markdown += [] if campaigns is None else [campaigns.markdown]
    markdown += [f"![{name}]({name}.png)" for name in charts]
    markdown += [report.markdown(folder, level=2) for report in reports]
    of_campaigns: list[CampaignReport | SettingReport] = [] if campaigns is None else [campaigns]
    texts = {
        "report.html": html.page(reports, campaigns, first, problems, charts.get(SAVINGS["eager"])),
        "report.md": markup.document(markdown),
        "summary.csv": markup.csv(summary.set_index(places).reset_index()),
        "tables.tex": "\n".join(report.latex for report in [*of_campaigns, *reports]),
    }
    for name, text in texts.items():
        atomic.write_atomic(folder / name, text)
    verdicts = ["verdicts.csv", "rates.csv", *(f"{name}.png" for name in campaigns.charts)] if campaigns else []
    return [folder / name for name in (*texts, *verdicts, *(f"{name}.png" for name in charts))]
