"""The overview of a results folder: one page, one text, one table of all settings, and the paper's own curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rmsexp import record
from rmsexp.compare.page import html, markdown
from rmsexp.compare.page.contents import SettingReport
from rmsexp.compare.plots import canvas, paper_curves, savings_by_task


def write(
    settings: Sequence[SettingReport], timings: pd.DataFrame, problems: Sequence[str], folder: Path
) -> list[Path]:
    """Writes ``report.html report.md summary.csv tables.tex``, savings and the paper's curves; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = _savings(timings, folder)
    published = _published(settings, folder)
    texts = {
        "report.html": html.page(settings),
        "report.md": _markdown(settings, problems, saved, published, folder),
        "summary.csv": summary(settings).to_csv(index=False),
        "tables.tex": "\n".join(map(markdown.latex, settings)),
    }
    for name, text in texts.items():
        record.write_atomic(folder / name, text)
    return [folder / name for name in texts] + saved + published


def summary(settings: Sequence[SettingReport]) -> pd.DataFrame:
    """The summaries of all settings below each other, each row with its ``root task setting`` first."""
    found = [one.summary.assign(root=one.root, task=one.task, setting=one.setting) for one in settings]
    return pd.concat(found, ignore_index=True).set_index(["root", "task", "setting"]).reset_index()


def _markdown(
    settings: Sequence[SettingReport],
    problems: Sequence[str],
    saved: Sequence[Path],
    published: Sequence[Path],
    folder: Path,
) -> str:
    """Each setting in turn; problems first, since a missing file is easily overlooked."""
    parts = ["# Report"]
    if problems:
        parts.append("Problems with the records:\n\n" + "\n".join(f"- {line}" for line in problems))
    parts += map(_image, saved)
    parts += [markdown.markdown(one, folder, level=2) for one in settings]
    if published:
        parts += ["## Curves of the paper, its own setting", *map(_image, published)]
    return "\n\n".join(parts) + "\n"


def _image(path: Path) -> str:
    return f"![{path.stem}]({path.name})"


def _savings(timings: pd.DataFrame, folder: Path) -> list[Path]:
    if savings_by_task.shown(timings).empty:
        return []
    canvas.write(savings_by_task.draw(timings), folder / "savings")
    return [folder / "savings.png"]


def _published(settings: Sequence[SettingReport], folder: Path) -> list[Path]:
    paths = []
    for task in dict.fromkeys(one.task for one in settings):
        for name, figure in paper_curves.curve_figures(task).items():
            path = folder / f"published_{name.lower().replace(' ', '_')}"
            canvas.write(figure, path)
            paths.append(path.with_suffix(".png"))
    return paths
