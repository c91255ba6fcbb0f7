"""Which numbers and curves of the paper are comparable with which of our results."""

from __future__ import annotations

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.records.load import Records
from rmsexp.compare.records.names import norm_of

# For numbers that are not of the target's split: the split of our records, by the paper's name of the data set.
SPLITS = {"newstest2017": "test2017"}


def split_of(numbers: pd.DataFrame, default: str) -> pd.Series:
    """Return the split of our records that each number is comparable with; ``default``: the target's split."""
    return numbers["data"].map(SPLITS).fillna(default)


def curves_of_setting(records: Records) -> pd.DataFrame:
    """Return the paper's training losses against steps for this task; empty unless the setting is the paper's."""
    curves, run = paper.curves(), records.runs.iloc[0]
    same_axes = (curves["task"] == run["task"]) & (curves["metric"] == "loss") & (curves["x_unit"] == "step")
    return curves[same_axes & (run["setting"] == "paper")]


def savings_are_comparable(timings: pd.DataFrame) -> bool:
    """Return whether a timing record has savings like the paper's: of whole training steps, relative to LayerNorm."""
    first = timings.iloc[0]
    return bool(first["kind"] == "steps" and norm_of(first["reference"]) == "ln")
