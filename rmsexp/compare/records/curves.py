"""The arithmetic of a comparison: means and intervals over seeds, the common step, time per step and savings.

Everything takes the records of one setting (``Records.of``). A run is named by its folder.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.compare.records import statistics


def curve(rows: pd.DataFrame, x: str, y: str) -> tuple[statistics.Array, statistics.Array]:
    """The points of one run that have both values."""
    points = rows[[x, y]].dropna().to_numpy(float)
    return points[:, 0], points[:, 1]


def curves(rows: pd.DataFrame, x: str, y: str) -> dict[str, tuple[statistics.Array, statistics.Array]]:
    """The points of each run that have both values, by folder; a run without any is left out."""
    points = rows[["folder", x, y]].dropna()
    places, values = points[x].to_numpy(float), points[y].to_numpy(float)
    runs = points.groupby("folder", observed=True).indices
    return {str(folder): (places[own], values[own]) for folder, own in runs.items()}


def mean_curve(curves: list[tuple[statistics.Array, statistics.Array]]) -> pd.DataFrame:
    """Columns ``x mean low high``: the mean over seeds and its t-interval, where all of them have values.

    Every seed is interpolated onto the grid of all their points, so seeds logged at other times can be averaged.
    """
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    mean = values.mean(axis=0)
    half = statistics.t_factor(len(curves)) * values.std(axis=0, ddof=min(1, len(curves) - 1))
    return pd.DataFrame({"x": grid, "mean": mean, "low": mean - half, "high": mean + half})


def thinned(values: statistics.Array, limit: int) -> NDArray[np.int64]:
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


def averaged(runs: pd.DataFrame, *, timed: bool) -> tuple[pd.DataFrame, bool]:
    """The runs of one series that its mean is of, and whether they count.

    Those that neither diverged nor failed (``timed``: and whose time counts), else those that come nearest to it.
    """
    lost, uncounted = runs["status"].isin(statistics.LOST), (runs["time_state"] != "clear") & timed
    choices = runs[~lost & ~uncounted], runs[~lost], runs
    number = next(number for number, some in enumerate(choices) if len(some) or some is runs)
    return choices[number], number == 0
