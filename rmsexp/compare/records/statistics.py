"""The arithmetic of a comparison: means and intervals over seeds, the common step, time per step and savings.

Everything takes the records of one setting (``Records.of``). A run is named by its folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from rmsexp.compare.records.load import Records

Array = NDArray[np.float64]
LOST = ("diverged", "failed")  # runs whose end is no result
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """Over seeds: ``sd`` from two on, ``interval`` (half the width of the t-interval) from three on, NaN before."""

    mean: float
    sd: float
    interval: float


class Target(NamedTuple):
    """The metric that is the headline, and the split by which the best evaluation of a run is chosen."""

    split: str
    metric: str
    mode: str
    selection: str
    loss_unit: str


def target(records: Records) -> Target:
    """What the setting's runs aim at.

    Raises:
        ValueError: no run says so.
    """
    known = records.runs[[f"target_{field}" for field in Target._fields]].dropna()
    if known.empty:
        raise ValueError(f"{_setting(records)}: no run.json of this setting says what its runs aim at")
    return Target(*known.iloc[0])


def _setting(records: Records) -> str:
    """Its folder, for a message."""
    return str(Path(records.runs["folder"].iloc[0]).parents[1]) if len(records.runs) else "no runs"


def headline(aim: Target) -> Literal["final", "best"]:
    """What the setting's result is: the last evaluation where no split of its own chooses among them, else the best."""
    return "final" if aim.selection == aim.split else "best"


def estimate(values: Array) -> Estimate:
    values = values[np.isfinite(values)]
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan)
    sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return Estimate(float(values.mean()), sd, t_factor(len(values)) * sd)


def t_factor(seeds: int) -> float:
    """Half the width of the mean's interval over the standard deviation; with two seeds it would say nothing."""
    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)) / math.sqrt(seeds) if seeds > 2 else math.nan


def kept(records: Records) -> pd.DataFrame:
    """The runs whose results count."""
    return records.runs[~records.runs["status"].isin(LOST)]


def evaluations(records: Records, split: str, metric: str) -> pd.DataFrame:
    """Rows of runs that count, with columns ``folder series step value``."""
    rows = records.metrics
    if metric not in rows:
        return pd.DataFrame(columns=["folder", "series", "step", "value"])
    rows = rows[(rows["split"] == split) & rows["folder"].isin(kept(records)["folder"])]
    rows = rows.rename(columns={metric: "value"})[["folder", "series", "step", "value"]].dropna()
    return rows.astype({"folder": object, "series": object})


def common_step(records: Records) -> int | None:
    """The last step at which all runs that count (and were evaluated at all) have an evaluation."""
    aim = target(records)
    steps = evaluations(records, aim.split, aim.metric).groupby("folder")["step"].agg(set)
    shared: set[float] = set.intersection(*steps) if len(steps) else set()
    return int(max(shared)) if shared else None


def final_metric(records: Records, step: int | None, split: str | None = None) -> pd.Series:
    """The target metric of each run at ``step``; empty without one. ``split``: another than the target's."""
    aim = target(records)
    rows = evaluations(records, split or aim.split, aim.metric)
    return rows[rows["step"] == step].groupby("folder")["value"].last()


def best_metric(records: Records, step: int | None, split: str | None = None) -> pd.Series:
    """The target metric of each run where the selection split was best, up to ``step``; empty without one.

    ``split``: of which the metric is, another than the target's.
    """
    if step is None:
        return pd.Series(dtype=float)
    aim = target(records)
    chosen = evaluations(records, aim.selection, aim.metric)
    by_run = chosen[chosen["step"] <= step].groupby("folder")["value"]
    best = chosen.loc[by_run.idxmin() if aim.mode == "min" else by_run.idxmax(), ["folder", "step"]]
    found = best.merge(evaluations(records, split or aim.split, aim.metric), on=["folder", "step"])
    return found.groupby("folder")["value"].last()
