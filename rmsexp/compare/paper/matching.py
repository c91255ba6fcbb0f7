"""Which numbers and curves of the paper are comparable with which of our results."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.records.load import Records
from rmsexp.compare.records.names import norm_of

# The paper's name of a data set -> the split of our records. All other numbers belong to the target's split.
SPLITS = {"newstest2017": "test2017"}

# The paper's name of a data set -> the beginning of the name of the same data in our records.
DATA = {
    "CIFAR-10": "CIFAR-10",
    "CNN top4": "CNN top4",
    "COCO, 5 folds of 1k": "COCO",
    "newstest2014": "WMT14 en-de",
    "newstest2017": "WMT14 en-de",
}


def is_same_data(numbers: pd.DataFrame, datasets: Iterable[str]) -> pd.Series:
    """Return, for each number of the paper, whether it was measured on the data of our runs, all of which share them.

    Only then is a difference to our results of any meaning. ``datasets``: the names of the data of our runs.
    """
    ours = tuple(datasets)
    same = {data: bool(ours) and all(name.startswith(prefix) for name in ours) for data, prefix in DATA.items()}
    return numbers["data"].map(same).fillna(False).astype(bool)


def split_of(numbers: pd.DataFrame, default: str) -> pd.Series:
    """Return, for each number of the paper, the split of our records to compare it with.

    ``default``: the target's split.
    """
    return numbers["data"].map(SPLITS).fillna(default)


def curves_of_setting(records: Records) -> pd.DataFrame:
    """Return the paper's training losses against steps for the task of ``records``.

    The result is empty unless ``records`` are of the setting "paper".
    """
    curves, run = paper.curves(), records.runs.iloc[0]
    same_axes = (curves["task"] == run["task"]) & (curves["metric"] == "loss") & (curves["x_unit"] == "step")
    return curves[same_axes & (run["setting"] == "paper")]


def savings_are_comparable(timings: pd.DataFrame) -> bool:
    """Return whether a timing record has savings as the paper defines them: of whole training steps, against LN.

    ``timings``: the rows of the record.
    """
    first = timings.iloc[0]
    return bool(first["kind"] == "steps" and norm_of(first["reference"]) == "ln")
