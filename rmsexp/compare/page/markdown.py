"""The report of one setting: every figure and table, from records alone."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from rmsexp.compare.page import contents
from rmsexp.compare.tables import markup


def markdown(one: contents.SettingReport, folder: Path, level: int = 1) -> str:
    """The report in words; ``folder``: where the text will lie, from which figures are linked."""
    heading = "#" * level
    parts = [f"{heading} {one.task}, {one.setting} ({one.root})", *one.sentences]
    parts += [f"![{title}]({_link(Path(path), folder)})" for title, path in one.figures.items()]
    for title, table in one.tables.items():
        parts += [f"{heading}# {title}", markup.markdown(table)]
    parts.append("\n".join(f"- {line}" for line in [*one.notes, *one.records.problems]))
    return "\n\n".join(parts) + "\n"


def _link(path: Path, folder: Path) -> str:
    """As Markdown takes it; the names of settings may hold what has a meaning in a link."""
    return quote(Path(os.path.relpath(path, folder)).as_posix())


def latex(one: contents.SettingReport) -> str:
    """Every table, its caption naming the setting."""
    found = [markup.latex(table, f"{one.task}, {one.setting}: {title}") for title, table in one.tables.items()]
    return "\n".join(found)
