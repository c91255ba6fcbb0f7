"""Which numbers and curves of the paper are comparable with which of our results."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

# The paper's name of a data set -> the split of our records. All other numbers belong to the target's split.
SPLITS = {"newstest2017": "test2017", "CNN top4": "valid"}

CURVE_SPLITS = {"loss": "train", "bleu": "valid"}  # metric of the paper's curves -> its split

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


def comparable_savings(timings: pd.DataFrame) -> pd.Series:
    """Return, for each row of a timing record, whether its saving is defined as in the paper.

    Savings of the paper are of whole training steps with eager norms, against LayerNorm.
    """
    return (timings["kind"] == "steps") & (timings["reference"] == "ln") & (timings["impl"] == "eager")
