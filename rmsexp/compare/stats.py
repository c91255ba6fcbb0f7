"""The arithmetic of a comparison: means and intervals over seeds, the common step, time per step and savings.

Everything takes the records of one setting (``Records.of``). A run is named by its folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

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


def curve(rows: pd.DataFrame, x: str, y: str) -> tuple[Array, Array]:
    """The points of one run that have both values."""
    points = rows[[x, y]].dropna().to_numpy(float)
    return points[:, 0], points[:, 1]


def curves(rows: pd.DataFrame, x: str, y: str) -> dict[str, tuple[Array, Array]]:
    """The points of each run that have both values, by folder; a run without any is left out."""
    points = rows[["folder", x, y]].dropna()
    places, values = points[x].to_numpy(float), points[y].to_numpy(float)
    runs = points.groupby("folder", observed=True).indices
    return {str(folder): (places[own], values[own]) for folder, own in runs.items()}


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


def thinned(values: Array, limit: int) -> NDArray[np.int64]:
    """Indices of at most ``limit`` (at least 4) points of a curve that keep its shape.

    Its ends, and the least and the greatest value of each of as many intervals as there is room for.
    """
    count = len(values)
    if count <= limit:
        return np.arange(count)
    intervals = (limit - 2) // 2
    size = -(-count // intervals)
    table = np.pad(values, (0, intervals * size - count), mode="edge").reshape(intervals, size)
    starts = np.arange(intervals) * size
    kept = np.concatenate([starts + table.argmin(axis=1), starts + table.argmax(axis=1), [0, count - 1]])
    return np.unique(kept.clip(max=count - 1))


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


def seconds_per_1k_steps(metrics: pd.DataFrame) -> Array:
    """One value for each two consecutive training rows of a run."""
    train = metrics[metrics["split"] == "train"]
    between = train.groupby("folder", observed=True)[["step", "time"]].diff().dropna()
    between = between[between["step"] > 0]
    return (between["time"] / between["step"] * 1000).to_numpy(float)


def run_seconds_per_1k_steps(records: Records, folders: Sequence[str]) -> pd.Series:
    """The median of each of these runs, by folder."""
    rows = records.metrics[records.metrics["folder"].isin(folders)]
    pieces = {folder: seconds_per_1k_steps(own) for folder, own in rows.groupby("folder", observed=True)}
    return pd.Series({folder: np.median(values) for folder, values in pieces.items() if len(values)}, dtype=float)


def averaged(runs: pd.DataFrame, *, timed: bool) -> tuple[pd.DataFrame, bool]:
    """The runs of one series that its mean is of, and whether they count.

    Those that neither diverged nor failed (``timed``: and whose time counts), else those that come nearest to it.
    """
    lost, uncounted = runs["status"].isin(LOST), (runs["time_state"] != "clear") & timed
    choices = runs[~lost & ~uncounted], runs[~lost], runs
    number = next(number for number, some in enumerate(choices) if len(some) or some is runs)
    return choices[number], number == 0


def time_unit(longest: float) -> tuple[str, float]:
    """The unit in which to show times up to ``longest`` seconds, and its seconds."""
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)


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
    impl = impl_of(runs)
    return Speed(series, impl, machine, bool(len(clear) and len(values)), state, float(median), float(low), float(high))


def impl_of(runs: pd.DataFrame) -> str:
    """The implementation of a series' norm, which all its runs share; "unknown" where no ``run.json`` says it."""
    return next(iter(runs["impl"].dropna()), "unknown")


def saving(own: Speed, speeds: list[Speed]) -> tuple[float, str]:
    """The share of LN's time that a series saves, *unpaired*: from separate runs. NaN with the reason where unknown."""
    reference = next((one for one in speeds if one.impl == own.impl and is_plain_ln(one.series)), None)
    if reference is None:
        return math.nan, "no LN run of this impl"
    if not own.counts:
        return math.nan, f"time does not count ({own.reason})"
    if not reference.counts:
        return math.nan, f"LN's time does not count ({reference.reason})"
    if len(own.machine | reference.machine) > 1:
        return math.nan, "not all on one machine"
    return 1 - own.median / reference.median, "reference" if own is reference else "unpaired"


def is_plain_ln(series: str) -> bool:
    """Whether a series is LN with its file's options, whatever its impl: what others of that impl are set against."""
    norm, *overrides = series.split("+")
    return norm == "ln" and all(override.startswith("impl=") for override in overrides)
