"""The arithmetic of a comparison: means and intervals over seeds, the common step, time per step and savings.

Everything takes the records of one setting (``Records.of``). A run is named by its folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records


def seconds_per_1k_steps(metrics: pd.DataFrame) -> statistics.Array:
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
    reference = next((one for one in speeds if one.impl == own.impl and names.is_plain_ln(one.series)), None)
    if reference is None:
        return math.nan, "no LN run of this impl"
    if not own.counts:
        return math.nan, f"time does not count ({own.reason})"
    if not reference.counts:
        return math.nan, f"LN's time does not count ({reference.reason})"
    if len(own.machine | reference.machine) > 1:
        return math.nan, "not all on one machine"
    return 1 - own.median / reference.median, "reference" if own is reference else "unpaired"
