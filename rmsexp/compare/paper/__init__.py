"""The paper's numbers and curves (Zhang & Sennrich 2019), in the names and units of our records.

``numbers.csv``: one row a number of its tables and text, and of the few that it is compared with; doubts stand in
``note``. ``curves.csv``: what could be read from its figures, which are drawings of lines.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


@cache
def numbers() -> pd.DataFrame:
    """Columns ``table task framework norm metric data value spread unit hardware note``.

    ``norm`` is the name of a series. Metrics and units are those of our records: errors and recalls are fractions,
    times ``seconds_per_1k_steps``, and ``saving_vs_ln`` is a fraction of LN's time. ``data``: what it was measured on.
    ``spread``: the standard deviation over three runs, NaN where none is given. Do not change the frame.
    """
    text = ("framework", "norm", "data", "unit", "hardware", "note")
    return pd.read_csv(HERE / "numbers.csv").fillna(dict.fromkeys(text, ""))


def of(task: str, metric: str) -> pd.DataFrame:
    """The rows of :func:`numbers` for one metric of a task; an empty frame if there are none."""
    every = numbers()
    return every[(every["task"] == task) & (every["metric"] == metric)].reset_index(drop=True)


def savings(task: str) -> pd.DataFrame:
    """The share of LN's time that other norms save in the paper: columns ``framework norm saving table``."""
    return of(task, "saving_vs_ln").rename(columns={"value": "saving"})[["framework", "norm", "saving", "table"]]


@cache
def curves() -> pd.DataFrame:
    """Columns ``figure task norm x x_unit metric y``; ``x_unit``: step or minutes. Do not change the frame."""
    return pd.read_csv(HERE / "curves.csv")
