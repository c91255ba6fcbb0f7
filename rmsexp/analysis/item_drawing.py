"""Draw the paper's tables and figures from records, and write them below the results.

``<results>/paper/<scale>/<item>.md`` has the title, the caption, the table or the figure, and notes on data, machine,
seeds and what is missing; beside it are ``<item>.csv`` of a table, or ``<item>.png`` and ``<item>.svg`` of a figure.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.analysis import hidden_stats, invariance
from rmsexp.campaign.asked import Timing
from rmsexp.campaign.item_file import Found, Group, Item, Part
from rmsexp.campaign.items import Items, Run
from rmsexp.records import record
from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.load import load
from rmsexp.report import paper
from rmsexp.report.plots import canvas, paper_figures
from rmsexp.report.tables import formats, markup
from rmsexp.report.tables import items as item_tables
from rmsexp.report.tables.items import OURS, PAPER
from rmsexp.report.tables.markup import Table
from rmsexp.system import atomic
from rmsexp.system.command_line import REPORTED

MAPPING = "both"  # of those that Table 5 may be about, which the paper does not say: gates and candidate together


def _drawn(item: Item, parts: Sequence[Part], sources: Sequence[str]) -> tuple[Table | Figure | None, list[str]]:
    """Return an item's table or figure, and lines below it; no figure if no run of its only group has ended."""
    if item.draw == "table":
        return item_tables.table(item, parts), []
    if item.draw == "invariance":
        return _invariance(item)
    (part,) = parts
    if item.draw == "hidden_stats":
        return _hidden_stats(item, part)
    if part.found is None or part.found.records.runs.empty:
        return None, []
    draw = paper_figures.curves if item.draw == "curves" else paper_figures.against_p
    return draw(item, part.found, sources), []


def _invariance(item: Item) -> tuple[Table, list[str]]:
    """Draw Table 1: computed, without runs."""
    table = invariance.measure().dropna(subset="paper")
    marks = invariance.ticks(table["invariant"]) + " / " + invariance.ticks(table["paper"])
    text = invariance.by_norm(table, marks).rename_axis("Norm")
    agree = int((table["invariant"] == table["paper"].astype(bool)).sum())
    note = (
        f"{agree} of {len(table)} entries agree; invariant: a relative change below "
        f"{invariance.THRESHOLD:g} (eps = 0, double precision, mean of {invariance.DRAWS} draws)"
    )
    return Table(item.name, item.title, table, text.reset_index()), [note]


def _hidden_stats(item: Item, part: Part) -> tuple[Table, list[str]]:
    """Draw Table 5, from the best checkpoint of each run, as the mean over seeds."""
    found = part.found
    assert found is not None
    measured, notes = _measured(found)
    published = paper.numbers().query("table == 'Table 5'").set_index(["norm", "metric"])["value"]
    positions = [*map(str, range(1, hidden_stats.POSITIONS + 1)), "ALL"]
    rows, numbers = [], []
    for row, norm in part.group.norms.items():
        ours = measured[(measured["series"] == found.series[row]) & (measured["mapping"] == MAPPING)]
        for mark, column, statistic in (("M", "mean", "mean"), ("S", "std", "standard deviation")):
            here = ours.groupby("position")[column].mean()
            values = {f"{at}, {OURS}": here.get(at.lower()) for at in positions}
            values |= {f"{at}, {PAPER}": published.get((norm, f"{statistic}, token position {at}")) for at in positions}
            cells = {"Model": row if mark == "M" else "", "": mark}
            for name, value in values.items():
                cells[name] = formats.NO_VALUE if pd.isna(value) else f"{round(value, 2) + 0.0:.2f}"
            rows.append(cells)
        numbers.append(ours.assign(row=row))
    table = Table(item.name, item.title, pd.concat(numbers, ignore_index=True), pd.DataFrame(rows))
    return table, [f"mapping: {MAPPING} (gates and candidate), with gain and bias, of the decoder's first GRU", *notes]


def _measured(found: Found) -> tuple[pd.DataFrame, list[str]]:
    """Return the statistics of all runs that have a checkpoint, and a line for each other run."""
    tables, notes = [], []
    for run in found.records.runs.to_dict("records"):
        try:
            (table,) = hidden_stats.analyse([Path(run["folder"])])
        except REPORTED as error:
            notes.append(f"without {run['folder']}: {error}")
            continue
        positions = table.numbers["position"].astype(str)
        tables.append(table.numbers.assign(series=run["series"], seed=run["seed"], position=positions))
    empty = pd.DataFrame(columns=["series", "seed", "mapping", "position", "vectors", "mean", "std"])
    return pd.concat(tables) if tables else empty, notes


def write(asked: Items, item: Item) -> None:
    """Draw an item, and write its files; the Markdown file is :meth:`.Items.page`."""
    parts = [_part(asked, item, *each) for each in zip(item.groups, asked.groups[item.name], strict=True)]
    sources = item_tables.sources(asked.scale, parts)
    drawn, remarks = _drawn(item, parts, sources)
    notes = [*sources, *item_tables.notes(item, parts), *remarks]
    stem = asked.page(item.name).with_suffix("")
    asked.folder.mkdir(parents=True, exist_ok=True)
    blocks = [f"# {item.title}", item.caption]
    if isinstance(drawn, Table):
        blocks.append(markup.markdown(drawn.readable))
        atomic.write_atomic(stem.with_suffix(".csv"), markup.csv(drawn.numbers))
    elif drawn is not None:
        canvas.write(drawn, stem)
        blocks.append(f"![{item.title}]({item.name}.png)")
    page = markup.document([*blocks, "\n".join(f"- {note}" for note in notes)])
    atomic.write_atomic(asked.page(item.name), page)


def _part(asked: Items, item: Item, group: Group, rows: dict[str, list[Run]]) -> Part:
    """Return what the records have of a group. ``rows``: its runs, by the name of the row in the paper."""
    if not rows:
        return Part(group, None)
    jobs = {row: asked.composed(runs[0].words) for row, runs in rows.items()}
    setting = next(iter(jobs.values())).setting_folder
    needed = [run for runs in rows.values() for run in runs] if item.has_runs else []
    ended = [str(asked.results / run.folder) for run in needed if asked.state(run) in record.ENDED]
    records, timing = load(setting).only(ended), asked.timing_of(item, rows)
    missing = [run.folder for run in needed if str(asked.results / run.folder) not in {*records.runs["folder"]}]
    comparison = None if timing is None else _best(timing, comparable.comparisons(timing_records.load(setting)))
    series = {row: job.series for row, job in jobs.items()}
    return Part(group, Found(f"{setting.parent.name}/{setting.name}", series, records, missing, comparison))


def _best(timing: Timing, found: Sequence[comparable.Comparison]) -> comparable.Comparison | None:
    """Return the comparison with most series of a timing, of equals the first; None if none has any."""

    def shared(comparison: comparable.Comparison) -> int:
        return len(set(timing.jobs) & set(comparison.rows["series"]))

    return max(filter(shared, found), key=shared, default=None)
