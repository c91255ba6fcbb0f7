"""Compute curves: the points of a run, the mean over seeds, and a smaller set of points with the same shape."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.compare.records.statistics import LOST, Array, t_factor

Points = tuple[Array, Array]  # x and y


def curve(rows: pd.DataFrame, x: str, y: str) -> Points:
    """Return the points of one run, from its rows that have both values."""
    points = rows[[x, y]].dropna().to_numpy(float)
    return points[:, 0], points[:, 1]


def curves(rows: pd.DataFrame, x: str, y: str) -> dict[str, Points]:
    """Return the points of each run by its folder; runs without any row that has both values are missing."""
    points = rows[["folder", x, y]].dropna()
    xs, ys = points[x].to_numpy(float), points[y].to_numpy(float)
    indices = points.groupby("folder", observed=True).indices
    return {str(folder): (xs[rows_of_run], ys[rows_of_run]) for folder, rows_of_run in indices.items()}


def mean_curve(curves: list[Points]) -> pd.DataFrame:
    """Return the mean over seeds and its t-interval: columns ``x``, ``mean``, ``low``, ``high``.

    The curve covers the range of x that all seeds have. All seeds are interpolated to the union of their x, since they
    may have been logged at different x.
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

    These are its two ends, and the minimum and the maximum of each of (limit - 2) // 2 intervals of equal length.
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
    """Return the runs of one series that its mean covers, and False if they had to include excluded runs, else True.

    Runs that diverged or failed are excluded; with ``timed``, runs whose time state is not "clear" are, too. If no run
    is left, the mean covers all runs that neither diverged nor failed. If all diverged or failed, it covers all runs.
    """
    lost, time_excluded = runs["status"].isin(LOST), (runs["time_state"] != "clear") & timed
    included, not_lost = runs[~lost & ~time_excluded], runs[~lost]
    if len(included):
        return included, True
    return (not_lost if len(not_lost) else runs), False
