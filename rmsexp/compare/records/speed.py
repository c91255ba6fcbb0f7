"""Times of training runs: seconds per 1k steps, and the time that a series saves relative to LN, from separate runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rmsexp.compare.records.load import Records
from rmsexp.compare.records.names import is_plain_ln
from rmsexp.compare.records.statistics import Array


def seconds_per_1k_steps(metrics: pd.DataFrame) -> Array:
    """Return the seconds per 1k steps between each pair of consecutive training rows of a run."""
    train = metrics[metrics["split"] == "train"]
    between = train.groupby("folder", observed=True)[["step", "time"]].diff().dropna()
    between = between[between["step"] > 0]
    return (between["time"] / between["step"] * 1000).to_numpy(float)


def run_seconds_per_1k_steps(records: Records, folders: Sequence[str]) -> pd.Series:
    """Return the median seconds per 1k steps of each of these runs, by folder. Runs that took no steps are left out."""
    rows = records.metrics[records.metrics["folder"].isin(folders)]
    values = {folder: seconds_per_1k_steps(run) for folder, run in rows.groupby("folder", observed=True)}
    return pd.Series({folder: np.median(times) for folder, times in values.items() if len(times)}, dtype=float)


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit in which times up to ``longest`` seconds are shown, and its length in seconds."""
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)


class Speed(NamedTuple):
    """Seconds per 1k steps of a series, over its runs whose time is clear, or over all its runs if there are none.

    Attributes:
        machine: the combinations of device, threads and torch version that these runs have.
        is_clear: whether these runs have clear times.
        state: the number of runs of the series in each time state, such as "1 clear, 2 contended".
        median, low, high: the median and the quartiles.
    """

    series: str
    impl: str
    machine: frozenset[tuple[object, ...]]
    is_clear: bool
    state: str
    median: float
    low: float
    high: float

    @property
    def reason(self) -> str:
        """The reason why no saving is computed from these times."""
        return "nothing timed yet" if math.isnan(self.median) else self.state


def speed(records: Records, series: str) -> Speed:
    """Return the speed of a series."""
    runs = records.runs[records.runs["series"] == series]
    clear = runs[runs["time_state"] == "clear"]
    used = runs if clear.empty else clear
    values = seconds_per_1k_steps(records.metrics[records.metrics["folder"].isin(used["folder"])])
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]) if len(values) else [math.nan] * 3
    machine = frozenset(used[["device", "threads", "torch"]].astype(str).itertuples(index=False, name=None))
    state = ", ".join(f"{count} {name}" for name, count in runs["time_state"].value_counts().sort_index().items())
    is_clear = bool(len(clear) and len(values))
    return Speed(series, impl_of(runs), machine, is_clear, state, float(median), float(low), float(high))


def impl_of(runs: pd.DataFrame) -> str:
    """Return the implementation of a series' norm, which all its runs share; "unknown" if no ``run.json`` names it."""
    return next(iter(runs["impl"].dropna()), "unknown")


def saving(series: Speed, speeds: list[Speed]) -> tuple[float, str]:
    """Return the fraction of LN's time that a series saves, and "reference" or "unpaired"; or NaN and the reason.

    The saving compares the medians of separate runs, of the same implementation and machine. It is unpaired.
    """
    reference = next((other for other in speeds if other.impl == series.impl and is_plain_ln(other.series)), None)
    if reference is None:
        return math.nan, "no LN run of this impl"
    if not series.is_clear:
        return math.nan, f"time excluded ({series.reason})"
    if not reference.is_clear:
        return math.nan, f"LN's time excluded ({reference.reason})"
    if len(series.machine | reference.machine) > 1:
        return math.nan, "device, threads or torch version differ"
    return 1 - series.median / reference.median, "reference" if series is reference else "unpaired"
