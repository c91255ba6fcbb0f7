"""Steps until a run's evaluations first reach a value of the metric that is the same for all norms.

A run that did not reach the level counts as one that never does, which may be too strict for runs that were stopped
early. A run that reached the level and diverged later did reach it.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.rules import pairs

SHARE = 0.9  # the fraction of LN's improvement that defines the level
COLUMNS = ["series", "runs", "reached", "diverged", "steps", "steps_low", "steps_high"]
NEVER = "not reached"


def level(records: Records) -> tuple[str, float, str] | None:
    """Return the split on which the level is defined, the level, and the title of its table.

    The level of the target metric is LN's first evaluation, plus ``SHARE`` of LN's improvement from there to the common
    step, from means over seeds. ``SHARE`` is below 1 so that norms that end slightly behind LN reach it, too. Without
    LN, the series with the worst mean at the common step takes its place. The split is the selection split (of runs
    with a score: the validation sample) or, if runs were never evaluated there, the one on which the metric is
    reported. Return None if no run was evaluated there at the common step, or if the series is not better then than at
    its first evaluation.
    """
    target, step = statistics.target(records), statistics.common_step(records)
    own = names.SAMPLE if target.scored else target.selection
    split = target.split if statistics.evaluations(records, own, target.metric).empty else own
    rows = statistics.evaluations(records, split, target.metric)
    means = rows[rows["step"] == step].groupby("series")["value"].mean()
    if means.empty:
        return None
    plain_ln = next((series for series in means.index if names.is_plain_ln(str(series))), None)
    leader = str(plain_ln or (means.idxmax() if target.mode == "min" else means.idxmin()))
    by_step = rows[rows["series"] == leader].groupby("step")["value"].mean()
    start, end = float(by_step.iloc[0]), float(means.loc[leader])
    if pairs.sign(target.mode) * (end - start) <= 0:
        return None
    value = start + SHARE * (end - start)
    metric = names.on_split(split, target.metric, names.metric_label(target.metric))
    counts = rows.groupby("folder").size()
    evaluations = " to ".join(dict.fromkeys([f"{counts.min()}", f"{counts.max()}"]))
    title = (
        f"Steps until {metric} is {formats.quality(value, target.metric)} ({SHARE * 100:.0f} % of the way to "
        f"{names.label(leader)}'s mean at step {step}; {evaluations} evaluations per run)"
    )
    return split, value, title


def table(records: Records, split: str, level: float) -> pd.DataFrame:
    """Return one row per series, with columns ``COLUMNS``.

    ``runs``: the number of runs. ``reached``: of those that reached the level of the target metric. ``diverged``: of
    those that diverged before. ``steps``, ``steps_low``, ``steps_high``: the median of their steps at the first
    evaluation at or beyond the level, not interpolated, and the ends of its exact 95 % interval; inf if it was not
    reached. The interval is from order statistics, so it holds for any distribution; NaN below six runs, where no
    interval has such a probability.
    """
    from scipy import stats  # takes as long to import as pandas

    _, metric, mode, *_ = statistics.target(records)
    rows = records.metrics.reindex(columns=["folder", "split", "step", metric])
    rows = rows[rows["split"] == split]
    good = rows[metric] <= level if mode == "min" else rows[metric] >= level
    first = rows[good].groupby("folder", observed=True)["step"].min().to_dict()
    runs, found = records.runs.to_dict("records"), []
    for series in names.in_order(records.runs["series"]):
        own = [run for run in runs if run["series"] == series]
        times = np.array([first.get(run["folder"], math.inf) for run in own])
        lost = sum(run["status"] == "diverged" and run["folder"] not in first for run in own)
        interval: Any = stats.quantile_test(times, p=0.5).confidence_interval(statistics.CONFIDENCE)
        steps = [float(np.median(times)), float(interval.low), float(interval.high)]
        found.append([series, len(own), int(np.isfinite(times).sum()), lost, *steps])
    return pd.DataFrame(found, columns=COLUMNS)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text."""
    rows = []
    for row in table.to_dict("records"):
        ends = [formats.without_exponent(row[key]) if math.isfinite(row[key]) else NEVER for key in COLUMNS[-3:]]
        interval = "" if math.isnan(row["steps_low"]) else " ({1} to {2})".format(*ends)
        diverged = f", {row['diverged']} diverged" if row["diverged"] else ""
        cells = {"norm": names.label(row["series"])}
        cells["runs that reached it"] = f"{row['reached']} of {row['runs']}{diverged}"
        rows.append(cells | {"steps, median (95 % interval)": f"{ends[0]}{interval}"})
    return pd.DataFrame(rows)
