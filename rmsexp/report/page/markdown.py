"""Reports as Markdown, and their tables as LaTeX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from rmsexp.report.page.answer import Answer
from rmsexp.report.page.contents import CampaignReport, SettingReport
from rmsexp.report.tables import markup

ANSWER = "RMSNorm against LayerNorm"


def overview(
    reports: Sequence[SettingReport],
    campaigns: CampaignReport | None,
    first: Answer,
    problems: Sequence[str],
    savings: Sequence[Path],
    to: Path,
) -> str:
    """Return the report of all settings as Markdown. Problems come first, so that a missing file is not overlooked.

    Args:
        reports: the reports of the settings.
        campaigns: the report of the campaigns, which comes before those of the settings; None without campaigns.
        first: the first view.
        problems: problems with the records, one line each.
        savings: paths of the figures of savings, in the folder ``to``.
        to: the folder to which the text will be written.
    """
    parts = ["# Report"]
    if problems:
        parts.append("Problems with the records:\n\n" + _list(problems))
    parts += [f"## {ANSWER}", *first.sentences]
    parts += [markup.markdown(first.table)] * (len(first.table) > 0)
    parts += [] if campaigns is None else [verdicts(campaigns)]
    parts += [f"![{path.stem}]({path.name})" for path in savings]
    parts += [setting(report, to, level=2) for report in reports]
    return markup.document(parts)


def verdicts(report: CampaignReport) -> str:
    """Return the report of the campaigns as Markdown; their figures are in the folder of the text."""
    parts = ["## Verdicts", _list(report.questions), markup.markdown(report.matrix), markup.markdown(report.verdicts)]
    for name, chart in report.charts.items():
        parts += [f"![{chart.title}]({name}.png)", *chart.caption]
    for title, table in report.tables.items():
        parts += [f"### {title}", markup.markdown(table)]
    return "\n\n".join([*parts, _list(report.notes)]).rstrip()


def setting(report: SettingReport, to: Path, level: int = 1) -> str:
    """Return the report of one setting as Markdown. Links are relative to ``to``.

    The title is a heading of this level; the headings of tables are one level deeper.
    """
    heading = "#" * level
    parts = [f"{heading} {report.task}, {report.setting} ({report.root})", *report.sentences]
    for title, path in report.figures.items():
        parts.append(f"![{title}]({quote(os.path.relpath(path, to))})")
    for title, table in report.tables.items():
        parts += [f"{heading}# {title}", markup.markdown(table)]
    parts.append(_list([*report.notes, *report.records.problems]))
    return markup.document(parts)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def latex(tables: Mapping[str, pd.DataFrame]) -> str:
    """Return tables as LaTeX. ``tables``: by caption."""
    return "\n".join(markup.latex(table, caption) for caption, table in tables.items())
