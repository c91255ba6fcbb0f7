"""The numbers and curves of the paper (Zhang & Sennrich 2019), in the names and units of our records.

``numbers.csv`` has the numbers of the paper's tables and text, including numbers that it cites: a row per metric, and a
column per norm. A cell is such as "501 ± 11.8 (a remark)"; ``note`` says where the numbers of a row are doubtful.
``curves.csv`` has points read from the vector drawings of the figures: a row per step, with the minutes of none and LN.
"""

from functools import cache
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
ROW = ["table", "task", "framework", "metric", "data", "unit", "hardware", "note"]  # columns that are no norms
CELL = r"^(?P<value>\S+)(?: ± (?P<spread>\S+))?(?: \((?P<remark>.*)\))?$"


@cache
def numbers() -> pd.DataFrame:
    """Return the paper's numbers.

    Columns: ``ROW``, ``norm``, ``value``, ``spread``.

    ``table`` is the source, such as "Table 2". ``norm`` is the name of a series in lower case. Metrics have the names
    and units of our records, if these have them: errors and recalls are fractions, times are ``seconds_per_1k_steps``,
    and ``saving_vs_ln`` is a fraction of LN's time. ``data``: the data set on which the number was measured. ``note``:
    the doubts and the cell's remark. ``spread``: the printed standard deviation of a time, NaN if there is none. The
    frame is cached: do not change it.
    """
    stored = pd.read_csv(HERE / "numbers.csv", dtype=str).fillna("")
    long = stored.melt(ROW, var_name="norm", value_name="cell", ignore_index=False).sort_index(kind="stable")
    long = long[long["cell"] != ""].reset_index(drop=True)
    cells = long.pop("cell").str.extract(CELL)
    notes = (long["note"] + "; " + cells.pop("remark").fillna("")).str.strip("; ")
    return long.assign(note=notes, **cells.astype(float))


def select(task: str, metric: str) -> pd.DataFrame:
    """Return the rows of :func:`numbers` for one metric of a task; an empty frame if there are none."""
    table = numbers()
    return table[(table["task"] == task) & (table["metric"] == metric)].reset_index(drop=True)


def remarks(rows: pd.DataFrame) -> list[str]:
    """Return the notes on some rows of :func:`numbers`: a line for each table and remark.

    A line names its norms if ``rows`` has further norms of its table.
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
