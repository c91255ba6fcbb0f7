"""Curves of runs: their points, the mean over seeds, and their time axis."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.records.frames.load import Records
from rmsexp.records.frames.statistics import LOST, Array

Run = Mapping[Any, Any]  # a row of ``Records.runs``


def curves(rows: pd.DataFrame, *columns: str) -> dict[str, Array]:
    """Return the values of each run by its folder, ``(column, row)``, from rows in which no column is NaN.

    Runs without such a row are left out.
    """
    values = rows[[*columns]].to_numpy(float).T
    kept = ~np.isnan(values).any(0)
    runs, folders = pd.factorize(rows["folder"].array[kept])
    return {str(folder): values[:, kept][:, runs == number] for number, folder in enumerate(folders)}


def mean_curve(runs: Collection[Array]) -> tuple[Array, int]:
    """Return the mean over runs at each step, ``(4, step)``, and the number of runs in it.

    ``runs``: step, x and y of each run, ``(3, row)``. The rows of the mean are the means of x, such as the mean time at
    this step, and of y, and the least and the greatest y. So that no mean jumps where a run ends, the steps are those
    that all of these runs have; runs of less than half of the steps of the longest are left out. Without a common step
    the mean is empty and over no run.
    """
    if not runs:
        return np.empty((4, 0)), 0
    step, *values = np.concatenate([*runs], axis=1)
    numbers = np.repeat(np.arange(len(runs)), [run.shape[1] for run in runs])
    steps, places = np.unique(step, return_inverse=True)
    table = np.full((2, len(steps), len(runs)), np.nan)  # x and y, by step and run
    table[:, places, numbers] = values
    ends = np.where(np.isnan(table[1]), -np.inf, steps[:, None]).max(0)
    table = table[:, :, 2 * ends >= ends.max()]
    x, y = table[:, ~np.isnan(table[1]).any(1)]
    return np.array([x.mean(1), y.mean(1), y.min(1), y.max(1)]), y.shape[1] if len(y) else 0


def thinned(values: Array, limit: int) -> NDArray[np.int64]:
    """Return the sorted indices of at most ``limit`` values that keep the shape of a curve; ``limit`` is at least 4.

    These are the indices of all values if there are at most ``limit``. Otherwise the values are divided into
    (limit - 2) // 2 blocks of equal length. The indices are those of both ends of the curve, and of the minimum and the
    maximum of each block.
    """
    count = len(values)
    if count <= limit:
        return np.arange(count)
    intervals = (limit - 2) // 2
    size = -(-count // intervals)
    table = np.pad(values, (0, intervals * size - count), mode="edge").reshape(intervals, size)
    starts = np.arange(intervals) * size
    indices = np.concatenate([starts + table.argmin(axis=1), starts + table.argmax(axis=1), [0, count - 1]])
    return np.unique(indices.clip(max=count - 1))


def averaged(runs: Sequence[Run], *, timed: bool) -> Sequence[Run]:
    """Return the runs of one series that enter its mean.

    Runs that diverged or failed are unfit for it. With ``timed``, so are runs that were disturbed. Unfit runs
    enter the mean only if no run is fit: those that neither diverged nor failed, or, if there are none, all runs.
    """
    kept = [run for run in runs if run["status"] not in LOST]
    fit = [run for run in kept if run["time_state"] == "undisturbed" or not timed]
    return fit or kept or runs


def seconds_per_1k_steps(records: Records) -> pd.DataFrame:
    """Return the seconds per 1k steps between consecutive training rows of a run: columns ``folder`` and ``seconds``.

    Pairs of rows without a time, or whose step does not increase, are left out.
    """
    rows = records.metrics[["folder", "split", "step", "time"]]
    rows = rows[rows["split"] == "train"]
    between = rows.groupby("folder", observed=True)[["step", "time"]].diff().dropna()
    between = between[between["step"] > 0]
    seconds = between["time"] / between["step"] * 1000
    return pd.DataFrame({"folder": rows.loc[between.index, "folder"].astype(object), "seconds": seconds})


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit (hours, minutes or seconds) for times of up to ``longest`` seconds, and its length in seconds."""
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)
