"""How each kind of item is drawn from what the records have of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rmsexp.analysis import hidden_stats, invariance
from rmsexp.campaign.item_file import Found, Item, Part
from rmsexp.records.frames import names
from rmsexp.report.plots import paper_figures
from rmsexp.report.tables import formats
from rmsexp.report.tables import items as item_tables
from rmsexp.report.tables.items import OURS, PAPER, Heading, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAPPING = "both"  # of those that Table 5 may be about, which the paper does not say: gates and candidate together


Drawing = Callable[[Item, Sequence[Part], Sequence[str]], "Drawn"]  # with the sentences on where our values come from


class Drawn(NamedTuple):
    """What an item shows: a table or a figure, and further lines below it."""

    sheet: Sheet | None = None
    figure: Figure | None = None
    notes: Sequence[str] = ()


def _table(item: Item, parts: Sequence[Part], sources: Sequence[str]) -> Drawn:  # noqa: ARG001
    return Drawn(item_tables.sheet(item, parts))


def _curves(item: Item, parts: Sequence[Part], sources: Sequence[str]) -> Drawn:
    """Draw the curves of the only group; nothing if no run has ended."""
    (part,) = parts
    if part.found is None or part.found.records.runs.empty:
        return Drawn()
    return Drawn(figure=paper_figures.curves(item, part.found, sources))


def _invariance(item: Item, parts: Sequence[Part], sources: Sequence[str]) -> Drawn:  # noqa: ARG001
    """Draw Table 1: computed, without runs."""
    table = invariance.measure().dropna(subset="paper")
    cells: dict[str, dict[Heading, str]] = {}
    for row in table.to_dict("records"):
        of_norm = cells.setdefault(row["norm"], {("", "", "Norm"): names.label(row["norm"])})
        marks = [invariance.TICK if value else invariance.CROSS for value in (row["invariant"], row["paper"])]
        of_norm["", "", row["transformation"]] = " / ".join(marks)
    different = int((table["invariant"] != table["paper"].astype(bool)).sum())
    note = f"{len(table) - different} of {len(table)} entries agree; invariant: a relative change below "
    return Drawn(
        Sheet(table, item_tables.in_halves(list(cells.values()))),
        notes=[f"{note}{invariance.THRESHOLD:g} (eps = 0, double precision, mean of {invariance.DRAWS} draws)"],
    )


def _hidden_stats(item: Item, parts: Sequence[Part], sources: Sequence[str]) -> Drawn:  # noqa: ARG001
    """Draw Table 5, from the best checkpoint of each run, as the mean over seeds."""
    (part,) = parts
    found = part.found
    assert found is not None
    measured, notes = _measured(found)
    published = hidden_stats.published_table().assign(row="")
    rows, numbers = [], []
    for row, norm in part.group.norms.items():
        ours = measured[(measured["series"] == found.series[row]) & (measured["mapping"] == MAPPING)]
        for mark, statistic in (("M", "mean"), ("S", "std")):
            cells = {("", "", "Model"): row if mark == "M" else "", ("", "", " "): mark}
            for half, table in ((OURS, ours), (PAPER, published[published["norm"] == norm])):
                values = table.groupby("position")[statistic].mean()
                for position in published["position"].unique():
                    value = float(values.get(position, float("nan")))
                    cells[half, "", position.upper()] = (
                        formats.NO_VALUE if pd.isna(value) else f"{round(value, 2) + 0.0:.2f}"
                    )
            rows.append(cells)
        numbers.append(ours.assign(row=row))
    return Drawn(
        Sheet(pd.concat(numbers, ignore_index=True), item_tables.in_halves(rows)),
        notes=[f"mapping: {MAPPING} (gates and candidate), with gain and bias, of the decoder's first GRU", *notes],
    )


def _measured(found: Found) -> tuple[pd.DataFrame, list[str]]:
    """Return the statistics of all runs that have a checkpoint, and a line for each other run."""
    tables, notes = [], []
    for run in found.records.runs.to_dict("records"):
        try:
            (table,) = hidden_stats.tables_of([Path(run["folder"])])
        except (ValueError, OSError) as error:
            notes.append(f"without {run['folder']}: {error}")
            continue
        positions = table.values["position"].astype(str)
        tables.append(table.values.assign(series=run["series"], seed=run["seed"], position=positions))
    empty = pd.DataFrame(columns=["series", "seed", "mapping", "position", "vectors", "mean", "std"])
    return pd.concat(tables) if tables else empty, notes


def _p_sweep(item: Item, parts: Sequence[Part], sources: Sequence[str]) -> Drawn:
    """Draw Figure 3; nothing if no run has ended."""
    (part,) = parts
    if part.found is None or part.found.records.runs.empty:
        return Drawn()
    return Drawn(figure=paper_figures.against_p(item, part.found, sources))


DRAWINGS: dict[str, Drawing] = {
    "table": _table,
    "curves": _curves,
    "invariance": _invariance,
    "hidden_stats": _hidden_stats,
    "p_sweep": _p_sweep,
}
