"""The quality of runs: the target metric at the common step and at the best evaluation, and its mean over seeds.

The result of runs with ``evaluation=scored`` or ``validation`` is instead their score: the mean of the last evaluations
of whole splits (:mod:`rmsexp.config.score`). Their evaluations of the validation sample are another split; only curves
and times to a level (:mod:`rmsexp.report.tables.time_to_target`) use them.

``records`` are always those of one setting (:meth:`rmsexp.records.frames.load.Records.select`). Values per run are
returned as a pandas Series, whose index is the run's folder.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.config import score
from rmsexp.records.frames import names
from rmsexp.records.frames.load import Records
from rmsexp.rules import pairs

Array = NDArray[np.float64]
LOST = ("diverged", "failed")  # statuses of runs that are excluded from means
CONFIDENCE = 0.95
NEAR_CHANCE = 0.03  # a result is near chance below this share of the way from chance to the best possible value
RECENT = 64  # number of results that are remembered


class Target(NamedTuple):
    """The metric that a setting reports, and the split on which it is reported.

    ``mode``: "min" or "max", the better direction. ``selection``: the split on which the best evaluation of a run is
    chosen. ``scored``: whether the runs get a score.
    """

    split: str
    metric: str
    mode: str
    selection: str
    scored: bool = False


@lru_cache(maxsize=RECENT)
def target(records: Records) -> Target:
    """Return the target of the setting, from the first run that names one. Raises: ValueError if none does.

    The metric of runs with ``evaluation=validation`` is reported on the selection split, since test is never evaluated.
    """
    plans = set(records.runs["evaluation"].dropna())
    targets = records.runs[[f"target_{field}" for field in Target._fields[:-1]]].dropna()
    if targets.empty:
        raise ValueError(f"{folder(records)}: no run.json of this setting has a target metric")
    found = Target(*targets.iloc[0])._replace(scored=bool(plans))
    return found._replace(split=found.selection) if plans == {"validation"} else found


def folder(records: Records) -> str:
    """Return the folder of the setting, for messages."""
    return str(Path(records.runs["folder"].iloc[0]).parents[1]) if len(records.runs) else "no runs"


def near_chance(records: Records, values: pd.Series) -> set[str]:
    """Return the series whose mean is near the level of a model that has learnt nothing, or worse.

    ``values``: the target's metric, by the runs' folders. No series if the task does not state this level. The best
    value is 0 if low values are better, 100 for BLEU and chrF, and 1 for others.
    """
    reported = target(records)
    levels, sign = records.runs["chance"].dropna(), pairs.sign(reported.mode)
    if levels.empty:
        return set()
    level = float(levels.iloc[0])
    room = level if sign < 0 else (100 if reported.metric in names.SEARCHED else 1) - level
    means = values.groupby(records.runs.set_index("folder")["series"].reindex(values.index)).mean()
    return {str(series) for series, mean in means.items() if sign * (mean - level) < NEAR_CHANCE * room}


def is_final(reported: Target) -> bool:
    """Return whether a run's result is :func:`final_metric`, not :func:`best_metric`.

    It is for runs that get a score, and if the selection split is also the reported split: to choose the best
    evaluation there would be too optimistic.
    """
    return reported.scored or reported.selection == reported.split


def final_label(reported: Target, plain: str = "last") -> str:
    """Return the name of :func:`final_metric` for headings; ``plain``: its name for runs without a score."""
    return f"mean of the last {score.SCORED} evaluations" if reported.scored else plain


def estimate(values: Array) -> tuple[float, float, float]:
    """Return the mean of the finite values, their standard deviation, and half the width of the mean's 95 % t-interval.

    The mean is NaN without values, the standard deviation below two of them, and the interval below three: with two it
    would be too wide to be of use.
    """
    values = values[np.isfinite(values)]
    count = len(values)
    sd = float(values.std(ddof=1)) if count > 1 else math.nan
    factor = math.nan
    if count > 2:
        from scipy.special import stdtrit  # takes 0.2 s to import

        factor = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) / math.sqrt(count)
    return float(values.mean()) if count else math.nan, sd, factor * sd


@lru_cache(maxsize=RECENT)
def evaluations(records: Records, split: str, metric: str) -> pd.DataFrame:
    """Return the values of a metric on a split ("train" gives training rows), one row per run and step.

    Columns: ``folder``, ``series``, ``step``, ``value``. Runs that diverged or failed are left out, and so are NaN.
    The last results are remembered, so nobody may change them.
    """
    if metric not in records.metrics:
        return pd.DataFrame(columns=["folder", "series", "step", "value"])
    ended = records.runs.loc[~records.runs["status"].isin(LOST), "folder"]
    rows = records.metrics[["folder", "series", "split", "step", metric]].rename(columns={metric: "value"})
    rows = rows[(rows["split"] == split) & rows["folder"].isin(ended)].drop(columns="split").dropna()
    return rows.astype({"folder": object, "series": object})


@lru_cache(maxsize=RECENT)
def common_step(records: Records) -> int | None:
    """Return the last step at which every run has a value of the target metric; None if there is no such step.

    Runs that diverged, failed or were never evaluated are left out. So are those that were only evaluated before
    training, at step 0, such as runs that have just begun, unless this holds for all; and the shortest ones, as many as
    it takes until the others share a step after step 0.
    """
    reported = target(records)
    steps = list(evaluations(records, reported.split, reported.metric).groupby("folder")["step"].agg(set))
    ends = sorted({max(found) for found in steps})
    for end in [end for end in ends if end > 0] or ends:
        last = max(set.intersection(*(found for found in steps if max(found) >= end)), default=-1)
        if last > 0 or last == end:
            return int(last)
    return None


def final_metric(records: Records, step: int | None, split: str | None = None, metric: str | None = None) -> pd.Series:
    """Return each run's metric at ``step``, or its score, if the runs get one; empty if ``step`` is None.

    Runs that diverged, failed or were not evaluated at this step, or at one of the steps of the score, are left out.
    ``split``, ``metric``: by default the target's.
    """
    reported = target(records)
    rows = evaluations(records, split or reported.split, metric or reported.metric)
    if not reported.scored or step is None:
        return rows[rows["step"] == step].groupby("folder")["value"].last()
    recipe_steps, scores = records.runs.set_index("folder")["recipe_steps"], {}
    for folder, run in rows.groupby("folder"):
        if recipe_steps[folder] >= score.EVALUATIONS:  # False for NaN
            steps = score.steps(int(recipe_steps[folder]))[-score.SCORED :]
            values = run.groupby("step")["value"].last()  # as for runs without a score
            scores[folder] = score.score(values.reindex(steps).tolist())
    return pd.Series(scores, dtype=float).rename_axis("folder").dropna()


def best_metric(records: Records, step: int | None, split: str | None = None, metric: str | None = None) -> pd.Series:
    """Return each run's metric on ``split``, at the step where the target metric is best on the selection split.

    Only steps up to ``step`` are searched; the result is empty if ``step`` is None. Runs that diverged, failed or were
    not evaluated at ``step`` are left out. ``split``, ``metric``: by default the target's. The result is also empty for
    runs that get a score: their few evaluations of whole splits are not for choosing the best.
    """
    reported = target(records)
    if step is None or reported.scored:
        return pd.Series(dtype=float)
    selection = evaluations(records, reported.selection, reported.metric)
    selection = selection[selection["folder"].isin(final_metric(records, step).index)]
    by_run = selection[selection["step"] <= step].groupby("folder")["value"]
    best = selection.loc[by_run.idxmin() if reported.mode == "min" else by_run.idxmax(), ["folder", "step"]]
    rows = best.merge(evaluations(records, split or reported.split, metric or reported.metric), on=["folder", "step"])
    return rows.groupby("folder")["value"].last()


def headline_metric(
    records: Records, step: int | None, split: str | None = None, metric: str | None = None
) -> pd.Series:
    """Return each run's result: :func:`final_metric` if :func:`is_final`, else :func:`best_metric`."""
    return (final_metric if is_final(target(records)) else best_metric)(records, step, split, metric)
