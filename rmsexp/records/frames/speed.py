"""Times of training runs: seconds per 1k steps, and the time that a series saves relative to LN, from separate runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rmsexp.records.frames import names
from rmsexp.records.frames.load import Records
from rmsexp.records.frames.statistics import Array

# Separate runs are compared only if these columns of their records agree; with the names of these for people.
CLOCK = {key: key for key in ("machine", "threads", "precision", "torch", "code")} | {"torch": "torch version"}
SAME = "the same for all series"


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
    rows = _times(records, folders)
    values = {folder: seconds_per_1k_steps(run) for folder, run in rows.groupby("folder", observed=True)}
    return pd.Series({folder: np.median(times) for folder, times in values.items() if len(times)}, dtype=float)


def _times(records: Records, folders: Sequence[str] | pd.Series) -> pd.DataFrame:
    """Return the rows of the metrics of these runs, without the columns that times do not need."""
    rows = records.metrics[["folder", "split", "step", "time"]]
    return rows[rows["folder"].isin(folders)]


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit (hours, minutes or seconds) for times of up to ``longest`` seconds, and its length in seconds."""
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)


class Speed(NamedTuple):
    """Seconds per 1k steps of a series, over its :func:`timed_runs`.

    Attributes:
        series: the name of the series.
        impl: the implementation of its norm.
        clocks: the ``CLOCK`` of each of the runs used.
        is_clear: whether the runs used have clear times, at least one of which was measured.
        state: the number of all runs of the series in each time state, such as "1 clear, 2 contended".
        median, low, high: the median, the lower and the upper quartile of the seconds per 1k steps; NaN if no time was
            measured, or the median is 0.
    """

    series: str
    impl: str
    clocks: frozenset[tuple[object, ...]]
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
    runs, used = records.runs[records.runs["series"] == series], timed_runs(records.runs, series)
    values = seconds_per_1k_steps(_times(records, used["folder"]))
    is_timed = bool(len(values) and np.median(values) > 0)
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]) if is_timed else [math.nan] * 3
    known = used[list(CLOCK)].astype(object)
    clocks = frozenset(known.where(known.notna(), None).itertuples(index=False, name=None))
    state = ", ".join(f"{count} {name}" for name, count in runs["time_state"].value_counts().sort_index().items())
    is_clear = is_timed and bool((used["time_state"] == "clear").all())
    return Speed(series, impl_of(runs), clocks, is_clear, state, float(median), float(low), float(high))


def timed_runs(runs: pd.DataFrame, series: str) -> pd.DataFrame:
    """Return the runs of a series whose times are averaged. ``runs``: all of the setting.

    These are the clear ones on the clock of most series (:func:`states_on_one_clock`); without such, all clear ones;
    without those, all.
    """
    own = runs[runs["series"] == series]
    on_one_clock = own[states_on_one_clock(runs)[own.index] == "clear"]
    return next((part for part in (on_one_clock, own[own["time_state"] == "clear"]) if len(part)), own)


def impl_of(runs: pd.DataFrame) -> str:
    """Return the implementation of a series' norm, which all its runs share; "unknown" if no ``run.json`` names it."""
    return next(iter(runs["impl"].dropna()), "unknown")


def states_on_one_clock(runs: pd.DataFrame) -> pd.Series:
    """Return the time state of each run of a setting; for a clear run of another clock, how its clock differs.

    Times of separate runs are averaged only if they have one clock: the ``CLOCK`` with clear runs of the most series,
    and of those the one with the most clear runs. A clear run of another clock gets, for example, the state
    "different machine, code".
    """
    states = runs["time_state"].astype(object)
    clear = runs[states == "clear"]
    known = clear[list(CLOCK)].astype(object)
    texts = known.where(known.notna(), "unknown").astype(str)
    clocks = texts.agg(tuple, axis=1) if len(clear) else pd.Series(dtype=object)
    if clocks.nunique() > 1:
        counts = clear["series"].groupby(clocks).agg(["nunique", "size"])
        main = max(counts.index, key=lambda clock: (*counts.loc[[clock]].iloc[0], clock))
        for run, clock in clocks[clocks != main].items():
            differ = [name for name, own, usual in zip(CLOCK.values(), clock, main, strict=True) if own != usual]
            states[run] = f"different {', '.join(differ)}"
    return states


def saving(series: Speed, speeds: list[Speed]) -> tuple[float, str]:
    """Return the fraction of LN's time per step that a series saves, with a note; NaN if it cannot be computed.

    The note is "reference" for the LN series itself, "unpaired" for a saving, and otherwise the reason for NaN. A
    saving compares the medians of separate runs with the same implementation and the same ``CLOCK``. ``speeds``: those
    of all series of the setting, among which LN is looked up.
    """
    plain = [other for other in speeds if other.impl == series.impl and names.is_plain_ln(other.series)]
    if not plain:
        return math.nan, "no LN run of this impl"
    precision = names.precision_of(series.series)
    reference = next((other for other in plain if names.precision_of(other.series) == precision), plain[0])
    if not series.is_clear:
        return math.nan, f"time excluded ({series.reason})"
    if not reference.is_clear:
        return math.nan, f"LN's time excluded ({reference.reason})"
    columns = map(set, zip(*(series.clocks | reference.clocks), strict=True))
    differ = [name for name, values in zip(CLOCK.values(), columns, strict=True) if len(values) > 1 or None in values]
    if differ:
        return math.nan, f"not known to have LN's {' and '.join(differ)}"
    return 1 - series.median / reference.median, "reference" if series is reference else "unpaired"


def differences(speeds: Sequence[Speed]) -> dict[str, str]:
    """Return what differs between the clocks of the series, by series, such as "threads 2"; ``SAME`` if nothing."""
    columns = [{clock[place] for series in speeds for clock in series.clocks} for place in range(len(CLOCK))]
    differ = [place for place, values in enumerate(columns) if len(values) > 1]
    return {
        series.series: ", ".join(
            f"{list(CLOCK.values())[place]} {' and '.join(sorted({_text(clock[place]) for clock in series.clocks}))}"
            for place in differ
        )
        or SAME
        for series in speeds
    }


def _text(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value or "unknown")


def by_clock(records: Records) -> list[tuple[pd.Series, list[Speed]]]:
    """Return the speeds of the series whose time is clear, one list per clock and implementation.

    The first of each pair is a run of this clock. ``records``: those of one setting.
    """
    clear = records.runs[records.runs["time_state"] == "clear"]
    found = []
    for _, runs in clear.groupby(["impl", *CLOCK], dropna=False):
        part = Records(runs, records.metrics, [])
        speeds = [speed(part, series) for series in names.in_order(runs["series"])]
        if speeds := [series for series in speeds if series.is_clear]:
            found.append((runs.iloc[0], speeds))
    return found
