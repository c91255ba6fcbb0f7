"""The arithmetic of curves: the points of a run, the mean over seeds, fewer points of the same shape."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.compare.records.statistics import LOST, Array, t_factor

Points = tuple[Array, Array]  # x and y


def curve(rows: pd.DataFrame, x: str, y: str) -> Points:
    """Return the points of one run whose rows have both values."""
    points = rows[[x, y]].dropna().to_numpy(float)
    return points[:, 0], points[:, 1]


def curves(rows: pd.DataFrame, x: str, y: str) -> dict[str, Points]:
    """Return the points of each run by its folder; runs without any row that has both values are missing."""
    points = rows[["folder", x, y]].dropna()
    xs, ys = points[x].to_numpy(float), points[y].to_numpy(float)
    indices = points.groupby("folder", observed=True).indices
    return {str(folder): (xs[rows_of_run], ys[rows_of_run]) for folder, rows_of_run in indices.items()}


def mean_curve(curves: list[Points]) -> pd.DataFrame:
    """Return the mean over seeds and its t-interval, columns ``x mean low high``, where all seeds have values.

    Every seed is interpolated onto the union of all their x, so seeds that were logged at different x can be averaged.
    """
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    mean = values.mean(axis=0)
    half = t_factor(len(curves)) * values.std(axis=0, ddof=min(1, len(curves) - 1))
    return pd.DataFrame({"x": grid, "mean": mean, "low": mean - half, "high": mean + half})


def thinned(values: Array, limit: int) -> NDArray[np.int64]:
    """Return the indices of at most ``limit`` (at least 4) points that keep the shape of a curve.

    These are its two ends and the minimum and maximum of each of (limit - 2) / 2 intervals of equal length.
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


def averaged(runs: pd.DataFrame, *, timed: bool) -> tuple[pd.DataFrame, bool]:
    """Return the runs of one series that its mean covers, and whether all of them count.

    Runs count that neither diverged nor failed; with ``timed`` their time must count, too. If no run counts, the mean
    covers runs whose time does not count; if all runs diverged or failed, it covers all.
    """
    lost, uncounted = runs["status"].isin(LOST), (runs["time_state"] != "clear") & timed
    counting, ended = runs[~lost & ~uncounted], runs[~lost]
    if len(counting):
        return counting, True
    return (ended if len(ended) else runs), False
