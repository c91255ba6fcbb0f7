"""Curves of runs: their points, the mean over seeds, and their time axis."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.records.frames.load import Records
from rmsexp.records.frames.statistics import LOST, Array

Points = tuple[Array, Array]  # x and y


def curves(rows: pd.DataFrame, x: str, y: str) -> dict[str, Points]:
    """Return the points of each run by its folder, from rows in which neither column is NaN.

    Runs without such a row are left out.
    """
    points = rows[["folder", x, y]].dropna()
    xs, ys = points[x].to_numpy(float), points[y].to_numpy(float)
    indices = points.groupby("folder", observed=True).indices
    return {str(folder): (xs[rows_of_run], ys[rows_of_run]) for folder, rows_of_run in indices.items()}


def mean_curve(rows: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return the mean over runs at each step: columns ``x``, ``mean``, ``low``, ``high``, ``seeds``.

    ``rows``: rows of metrics of the runs. ``x`` is the mean over the runs, too, such as the mean time at this step.
    ``low`` and ``high`` are the least and the greatest value of a run, ``seeds`` is the number of runs. So that no mean
    jumps where a run ends, the steps are those that all of these runs have; runs of less than half of the steps of the
    longest are left out.
    """
    step, xs, ys = (rows[name].to_numpy(float) for name in ("step", x, y))
    kept = ~np.isnan(step + xs + ys)
    if not kept.any():
        return pd.DataFrame(columns=["x", "mean", "low", "high", "seeds"], dtype=float)
    runs, _ = pd.factorize(rows["folder"].array[kept])
    steps, places = np.unique(step[kept], return_inverse=True)
    table = np.full((2, len(steps), runs.max() + 1), np.nan)  # x and y, by step and run
    table[:, places, runs] = xs[kept], ys[kept]
    ends = np.where(np.isnan(table[1]), -np.inf, steps[:, None]).max(0)
    table = table[:, :, 2 * ends >= ends.max()]
    xs, ys = table[:, ~np.isnan(table[1]).any(1)]
    means = {"x": xs.mean(1), "mean": ys.mean(1), "low": ys.min(1), "high": ys.max(1)}
    return pd.DataFrame(means).assign(seeds=ys.shape[1])


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


def averaged(runs: pd.DataFrame, *, timed: bool) -> pd.DataFrame:
    """Return the runs of one series that enter its mean.

    Runs that diverged or failed are unfit for it. With ``timed``, so are runs that were disturbed. Unfit runs
    enter the mean only if no run is fit: those that neither diverged nor failed, or, if there are none, all runs.
    """
    kept = ~runs["status"].isin(LOST)
    fit = kept & (runs["time_state"] == "undisturbed") if timed else kept
    return next((runs[chosen] for chosen in (fit, kept) if chosen.any()), runs)


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
