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
    """Return the seconds per 1k steps between consecutive training rows of the same run, as one array for all runs.

    Pairs of rows without a time, or whose step does not increase, are left out.
    """
    train = metrics[metrics["split"] == "train"]
    between = train.groupby("folder", observed=True)[["step", "time"]].diff().dropna()
    between = between[between["step"] > 0]
    return (between["time"] / between["step"] * 1000).to_numpy(float)


def run_seconds_per_1k_steps(records: Records, folders: Sequence[str]) -> pd.Series:
    """Return the median seconds per 1k steps of each of these runs, by folder.

    Runs without two consecutive training rows that have a time are left out.
    """
    rows = records.metrics[records.metrics["folder"].isin(folders)]
    values = {folder: seconds_per_1k_steps(run) for folder, run in rows.groupby("folder", observed=True)}
    return pd.Series({folder: np.median(times) for folder, times in values.items() if len(times)}, dtype=float)


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit (hours, minutes or seconds) for times of up to ``longest`` seconds, and its length in seconds."""
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)


class Speed(NamedTuple):
    """Seconds per 1k steps of a series, over its runs whose time is clear, or over all its runs if there are none.

    Attributes:
        series: the name of the series.
        impl: the implementation of its norm.
        machine: the set of (device, threads, torch version) of the runs used.
        is_clear: whether the runs used have clear times, at least one of which was measured.
        state: the number of all runs of the series in each time state, such as "1 clear, 2 contended".
        median, low, high: the median, the lower and the upper quartile of the seconds per 1k steps; NaN if no time was
            measured.
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
    """Return the speed of a series; ``records`` are those of one setting."""
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
    """Return the fraction of LN's time per step that a series saves, with a note; NaN if it cannot be computed.

    The note is "reference" for the LN series itself, "unpaired" for a saving, and otherwise the reason for NaN. A
    saving compares the medians of separate runs, with the same implementation, on the same machine. ``speeds``: those
    of all series of the setting, among which LN is looked up.
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
