"""Draw the paper's tables and figures from records, and write them below the results.

``<results>/paper/<scale>/<item>.md`` has the title, the caption, the table or the figure, and notes on data, machine,
seeds and what is missing; beside it are ``<item>.tex`` and ``<item>.csv`` of a table, ``<item>.png`` and ``<item>.svg``
of a figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmsexp.analysis import item_kinds
from rmsexp.campaign.item_file import Found, Group, Item, Part
from rmsexp.campaign.items import Items
from rmsexp.campaign.timing import Timing
from rmsexp.records import record
from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.load import load
from rmsexp.report.plots import canvas
from rmsexp.report.tables import items as item_tables
from rmsexp.report.tables import markup
from rmsexp.system import atomic


def write(asked: Items, item: Item) -> Path:
    """Draw an item, write its files, and return that of its text."""
    parts = [_part(asked, item, group) for group in item.groups]
    sources = item_tables.sources(asked.scale, parts)
    drawn = item_kinds.DRAWINGS[item.draw](item, parts, sources)
    notes = [*sources, *item_tables.notes(item, parts), *drawn.notes]
    stem = asked.page(item.name).with_suffix("")
    asked.folder.mkdir(parents=True, exist_ok=True)
    blocks = [f"# {item.title}", item.caption]
    if drawn.sheet is not None:
        blocks.append(markup.markdown(item_tables.with_single_headings(drawn.sheet.text)))
        atomic.write_atomic(stem.with_suffix(".csv"), markup.csv(drawn.sheet.numbers))
        caption = f"{item.title} of the paper. {item.caption} {' '.join(sources)}"
        atomic.write_atomic(stem.with_suffix(".tex"), markup.latex(drawn.sheet.text, caption))
    if drawn.figure is not None:
        canvas.write(drawn.figure, stem)
        blocks.append(f"![{item.title}]({item.name}.png)")
    path = stem.with_suffix(".md")
    atomic.write_atomic(path, markup.document([*blocks, "\n".join(f"- {note}" for note in notes)]))
    return path


def _part(asked: Items, item: Item, group: Group) -> Part:
    """Return what the records have of a group."""
    runs = [run for each in asked.runs_of(item, group).values() for run in each]
    if not runs:
        return Part(group, None)
    setting = asked.job(runs[0]).setting_folder
    needed = runs if item.has_runs else []
    ended = [str(asked.results / run.folder) for run in needed if asked.state(run) in record.ENDED]
    records, timing = load(setting).only(ended), asked.timing(item, group)
    missing = [run.folder for run in needed if str(asked.results / run.folder) not in {*records.runs["folder"]}]
    comparison = None if timing is None else _best(timing, comparable.comparisons(timing_records.load(setting)))
    series = {row: asked.job(each[0]).series for row, each in asked.runs_of(item, group).items()}
    place = f"{setting.parent.name}/{setting.name}"
    return Part(group, Found(place, series, records, missing, comparison))


def _best(timing: Timing, found: Sequence[comparable.Comparison]) -> comparable.Comparison | None:
    """Return the comparison with most norms of a timing, and of these the one of highest rank; None if none has any."""

    def shared(comparison: comparable.Comparison) -> int:
        return len(set(timing.jobs) & set(comparison.rows["series"]))

    return max(filter(shared, found), key=shared, default=None)
