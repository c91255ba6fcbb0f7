"""The tables of the report of a setting, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from rmsexp.records.frames import names
from rmsexp.report import paper
from rmsexp.report.tables import (
    learning_rates,
    p_sweep,
    quantities,
    savings,
    seed_tests,
    summary,
    time_to_target,
    versus_paper,
)
from rmsexp.report.tables.form import Setting, Table

# Each yields the tables for which a setting has data. Those of times need no runs that can be compared.
TABLES: tuple[Callable[[Setting], Iterator[Table]], ...] = (
    summary.tables,
    seed_tests.tables,
    versus_paper.tables,
    savings.tables,
    quantities.tables,
    time_to_target.tables,
    p_sweep.tables,
    learning_rates.tables,
)


def tables(setting: Setting, *, comparable: bool) -> list[Table]:
    """Return the tables of a setting. ``comparable``: whether its runs can be compared; else there are times alone."""
    makers = TABLES if comparable else (savings.tables,)
    return [table for make in makers for table in make(setting)]


def about_paper(task: str, tables: Sequence[Table]) -> list[str]:
    """Return what is noted about the paper's numbers in the tables of a setting."""
    shown = [
        table.numbers.assign(norm=table.numbers["series"].map(names.without_impl))
        for table in tables
        if table.name == "paper"
    ]
    shown += [savings.published(table.numbers, task) for table in tables if table.name.startswith("saving")]
    return paper.remarks(pd.concat(shown).drop_duplicates(["table", "norm", "note"])) if shown else []
