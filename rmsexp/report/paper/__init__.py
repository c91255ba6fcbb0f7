"""The numbers and curves of the paper (Zhang & Sennrich 2019), in the names and units of our records.

``numbers.csv`` has one row per number in the paper's tables and text, including numbers that it cites; its column
``note`` says where a number is doubtful. ``curves.csv`` has points read from the vector drawings of the figures: a row
per step, and the minutes of each norm at it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


@cache
def numbers() -> pd.DataFrame:
    """Return all numbers.

    Columns: ``table``, ``task``, ``framework``, ``norm``, ``metric``, ``data``, ``value``, ``spread``, ``unit``,
        ``hardware``, ``note``.

    ``table`` is the source, such as "Table 2" or "Abstract". ``norm`` is the name of a series in lower case. Metrics
    that our records have, too, have the same names and units as there: errors and recalls are fractions, times are
    ``seconds_per_1k_steps``, and ``saving_vs_ln`` is a fraction of LN's time. ``data``: the data set on which the
    number was measured. ``spread``: the printed standard deviation of a time, NaN if there is none. The frame is
    cached: do not change it.
    """
    text = ("framework", "norm", "data", "unit", "hardware", "note")
    return pd.read_csv(HERE / "numbers.csv").fillna(dict.fromkeys(text, ""))


def select(task: str, metric: str) -> pd.DataFrame:
    """Return the rows of :func:`numbers` for one metric of a task; an empty frame if there are none."""
    table = numbers()
    return table[(table["task"] == task) & (table["metric"] == metric)].reset_index(drop=True)


def remarks(rows: pd.DataFrame) -> list[str]:
    """Return what is noted about some rows of :func:`numbers`: a line for each table and remark.

    A line names the norms if it is not about all norms of its table.
    """
    lines = []
    for table, numbers_of_table in rows.groupby("table", sort=False):
        parts = numbers_of_table.assign(note=numbers_of_table["note"].str.split("; ")).explode("note")
        for note, about in parts[parts["note"] != ""].groupby("note", sort=False):
            norms = set(about["norm"])
            named = sorted(norms) if norms < set(numbers_of_table["norm"]) else []
            lines.append(f"paper's numbers, {', '.join([str(table), *named])}: {note}")
    return lines


@cache
def curves() -> pd.DataFrame:
    """Return the points of the curves in the paper's figures.

    Columns: ``figure``, ``metric``, ``norm``, ``x_unit`` ("step" or "minutes"), ``x``, ``y``.

    The frame is cached: do not change it.
    """
    stored = pd.read_csv(HERE / "curves.csv")
    axes = [(norm, "step", "step") for norm in ("none", "ln", "rms")]
    axes += [(norm, "minutes", f"{norm}_minutes") for norm in ("none", "ln")]
    parts = [
        stored[["figure", "metric"]].assign(norm=norm, x_unit=unit, x=stored[column], y=stored[norm])
        for norm, unit, column in axes
    ]
    return pd.concat(parts).dropna().reset_index(drop=True)
