"""The arithmetic of a comparison: means and intervals over seeds, the common step, time per step and savings.

Everything takes the records of one setting (``Records.of``). A run is named by its folder.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from rmsexp.compare.load import Records

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
        raise ValueError("no run.json of this setting says what its runs aim at")
    return Target(*known.iloc[0])


def estimate(values: Array) -> Estimate:
    values = values[np.isfinite(values)]
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan)
    sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return Estimate(float(values.mean()), sd, t_factor(len(values)) * sd)


def t_factor(seeds: int) -> float:
    """Half the width of the mean's interval over the standard deviation; with two seeds it would say nothing."""
    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)) / math.sqrt(seeds) if seeds > 2 else math.nan


def curve(rows: pd.DataFrame, x: str, y: str) -> tuple[Array, Array]:
    """The points of one run that have both values."""
    points = rows[[x, y]].dropna().to_numpy(float)
    return points[:, 0], points[:, 1]


def mean_curve(curves: list[tuple[Array, Array]]) -> pd.DataFrame:
    """Columns ``x mean low high``: the mean over seeds and its t-interval, where all of them have values.

    Every seed is interpolated onto the grid of all their points, so seeds logged at other times can be averaged.
    """
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    mean = values.mean(axis=0)
    half = t_factor(len(curves)) * values.std(axis=0, ddof=min(1, len(curves) - 1))
    return pd.DataFrame({"x": grid, "mean": mean, "low": mean - half, "high": mean + half})


def kept(records: Records) -> pd.DataFrame:
    """The runs whose results count."""
    return records.runs[~records.runs["status"].isin(LOST)]


def evaluations(records: Records, split: str, metric: str) -> pd.DataFrame:
    """Rows of runs that count, with columns ``folder series step value``."""
    rows = records.metrics
    if metric not in rows:
        return pd.DataFrame(columns=["folder", "series", "step", "value"])
    rows = rows[(rows["split"] == split) & rows["folder"].isin(kept(records)["folder"])]
    return rows.rename(columns={metric: "value"})[["folder", "series", "step", "value"]].dropna()


def common_step(records: Records) -> int | None:
    """The last step at which all runs that count (and were evaluated at all) have an evaluation."""
    aim = target(records)
    steps = evaluations(records, aim.split, aim.metric).groupby("folder")["step"].agg(set)
    shared: set[float] = set.intersection(*steps) if len(steps) else set()
    return int(max(shared)) if shared else None


def final_metric(records: Records, step: int) -> pd.Series:
    """The target metric of each run at ``step``."""
    aim = target(records)
    rows = evaluations(records, aim.split, aim.metric)
    return rows[rows["step"] == step].groupby("folder")["value"].last()


def best_metric(records: Records, step: int) -> pd.Series:
    """The target metric of each run where the selection split was best, up to ``step``."""
    aim = target(records)
    chosen = evaluations(records, aim.selection, aim.metric)
    by_run = chosen[chosen["step"] <= step].groupby("folder")["value"]
    best = chosen.loc[by_run.idxmin() if aim.mode == "min" else by_run.idxmax(), ["folder", "step"]]
    found = best.merge(evaluations(records, aim.split, aim.metric), on=["folder", "step"])
    return found.groupby("folder")["value"].last()


def seconds_per_1k_steps(metrics: pd.DataFrame) -> Array:
    """One value for each two consecutive training rows of a run."""
    train = metrics[metrics["split"] == "train"]
    between = train.groupby("folder")[["step", "time"]].diff().dropna()
    between = between[between["step"] > 0]
    return (between["time"] / between["step"] * 1000).to_numpy(float)


class Speed(NamedTuple):
    """Seconds per 1k steps of a series: median and quartiles over its runs that count, or over all where none does."""

    series: str
    impl: str
    machine: frozenset[tuple[object, ...]]
    counts: bool
    state: str
    median: float
    low: float
    high: float

    @property
    def reason(self) -> str:
        """Why it does not count."""
        return "nothing timed yet" if math.isnan(self.median) else self.state


def speed(records: Records, series: str) -> Speed:
    runs = records.runs[records.runs["series"] == series]
    clear = runs[runs["time_state"] == "clear"]
    used = runs if clear.empty else clear
    values = seconds_per_1k_steps(records.metrics[records.metrics["folder"].isin(used["folder"])])
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]) if len(values) else [math.nan] * 3
    machine = frozenset(used[["device", "threads", "torch"]].astype(str).itertuples(index=False, name=None))
    state = ", ".join(f"{count} {name}" for name, count in runs["time_state"].value_counts().sort_index().items())
    impl = str(runs["impl"].iloc[0])
    return Speed(series, impl, machine, bool(len(clear) and len(values)), state, float(median), float(low), float(high))


def saving(own: Speed, speeds: list[Speed]) -> tuple[float, str]:
    """The share of LN's time that a series saves, *unpaired*: from separate runs. NaN with the reason where unknown."""
    reference = next((one for one in speeds if one.impl == own.impl and _is_plain_ln(one.series)), None)
    if reference is None:
        return math.nan, "no LN run of this impl"
    if not own.counts:
        return math.nan, f"time does not count ({own.reason})"
    if not reference.counts:
        return math.nan, f"LN's time does not count ({reference.reason})"
    if len(own.machine | reference.machine) > 1:
        return math.nan, "not all on one machine"
    return 1 - own.median / reference.median, "reference" if own is reference else "unpaired"


def _is_plain_ln(series: str) -> bool:
    norm, *overrides = series.split("+")
    return norm == "ln" and all(override.startswith("impl=") for override in overrides)
