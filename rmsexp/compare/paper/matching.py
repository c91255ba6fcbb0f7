"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.records.load import Records
from rmsexp.compare.records.names import norm_of


def curves_beside(records: Records) -> pd.DataFrame:
    """The paper's curves of training loss against steps where they are of the same setting; else none."""
    curves, run = paper.curves(), records.runs.iloc[0]
    same = (curves["task"] == run["task"]) & (curves["metric"] == "loss") & (curves["x_unit"] == "step")
    return curves[same & (run["setting"] == "paper")]


def savings_are_comparable(timings: pd.DataFrame) -> bool:
    """Whether the paper's savings are of the same kind: of whole steps, against LayerNorm."""
    first = timings.iloc[0]
    return bool(first["kind"] == "steps" and norm_of(first["reference"]) == "ln")
