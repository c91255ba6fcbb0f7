"""Steps until a run's evaluations first reach a value of the metric that is the same for all norms.

A run that did not reach the level is censored at its last evaluation: it may reach it later. A run that diverged before
it reached the level never reaches it, so its time is infinite; to censor it would be to suppose that it would have gone
on like the others. A run that reached the level and diverged later did reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from rmsexp.records.frames import names, statistics, survival
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.report.tables.form import Setting, Table

SHARE = 0.9  # the fraction of LN's improvement that defines the level
COLUMNS = ["series", "runs", "reached", "diverged", "steps", "steps_low", "steps_high"]
NEVER = "not reached"


class Level(NamedTuple):
    """The value to be reached.

    Attributes:
        split: the split on which runs are evaluated.
        metric: the name of the metric.
        mode: "min" or "max", the better direction.
        value: the value of the metric; a fraction if the metric is shown in percent.
        title: the title of the table, such as "Steps until valid error is 21.30 % (90 % of the way to …)".
    """

    split: str
    metric: str
    mode: str
    value: float
    title: str


def tables(setting: Setting) -> Iterator[Table]:
    """Yield the table of the steps until the level, if there is one."""
    if goal := level(setting.records):
        numbers = table(setting.records, goal)
        yield Table("target", goal.title, numbers, readable(numbers))


def level(records: Records) -> Level | None:
    """Return the level: LN's first evaluation, plus ``SHARE`` of LN's improvement from there to the common step.

    It is computed from means over seeds. ``SHARE`` is below 1 so that norms that end slightly behind LN reach the
    level, too. Without LN, the series with the worst mean at the common step takes its place. The metric is the target
    metric on the selection split (of runs with a score: in the interim evaluations), or, if runs were never evaluated
    there, on the split on which it is reported. Return None if no run was evaluated there at the common step.
    """
    target, step = statistics.target(records), statistics.common_step(records)
    own = names.INTERIM if target.scored else target.selection
    split = target.split if statistics.evaluations(records, own, target.metric).empty else own
    rows = statistics.evaluations(records, split, target.metric)
    means = rows[rows["step"] == step].groupby("series")["value"].mean()
    if means.empty:
        return None
    plain_ln = next((series for series in means.index if names.is_plain_ln(str(series))), None)
    leader = str(plain_ln or (means.idxmax() if target.mode == "min" else means.idxmin()))
    by_step = rows[rows["series"] == leader].groupby("step")["value"].mean()
    start, end = float(by_step[by_step.index.min()]), float(means.loc[leader])
    value = start + SHARE * (end - start)
    metric = f"{names.split_label(split, target.metric)} {names.metric_label(target.metric)}"
    counts = rows.groupby("folder").size()
    evaluations = " to ".join(dict.fromkeys([f"{counts.min()}", f"{counts.max()}"]))
    title = (
        f"Steps until {metric} is {formats.quality(value, target.metric)} ({SHARE * 100:.0f} % of the way to "
        f"{names.label(leader)}'s mean at step {step}; {evaluations} evaluations per run)"
    )
    return Level(split, target.metric, target.mode, value, title)


def table(records: Records, goal: Level) -> pd.DataFrame:
    """Return one row per series, with columns ``COLUMNS``.

    ``runs``: the number of runs. ``reached``: of those that reached the level. ``diverged``: of those that diverged
    before. ``steps``, ``steps_low``, ``steps_high``: the median of their steps at the first evaluation at or beyond the
    level, not interpolated, and its 95 % interval, see :func:`rmsexp.records.frames.survival.median`.
    """
    rows = records.metrics.reindex(columns=["folder", "split", "step", goal.metric])
    rows = rows[rows["split"] == goal.split].dropna(subset=goal.metric).sort_values("step")
    good = rows[goal.metric] <= goal.value if goal.mode == "min" else rows[goal.metric] >= goal.value
    first, last = (part.groupby("folder", observed=True)["step"] for part in (rows[good], rows))
    first_good, last_seen = first.min(), last.max()
    runs = records.runs.set_index("folder")
    reached = runs.index.isin(first_good.index)
    steps = first_good.reindex(runs.index).fillna(last_seen.reindex(runs.index)).fillna(0.0)  # 0: never evaluated
    runs = runs.assign(reached=reached, lost=~reached & (runs["status"] == "diverged"), steps=steps)
    found = []
    for series in names.in_order(runs["series"]):
        own = runs[runs["series"] == series]
        until = own["steps"].mask(own["lost"], math.inf).to_numpy(float)
        median = survival.median(until, own["reached"].to_numpy(bool))
        found.append([series, len(own), int(own["reached"].sum()), int(own["lost"].sum()), *median])
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
        rows.append(cells | {"steps, Kaplan-Meier median (95 % interval)": f"{ends[0]}{interval}"})
    return pd.DataFrame(rows)
