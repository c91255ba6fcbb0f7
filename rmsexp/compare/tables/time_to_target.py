"""Steps and seconds until a run's evaluations first reach a value of the metric that is the same for all norms."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

SHARE = 0.9  # the fraction of LN's improvement that defines the level
COLUMNS = ["series", "runs", "reached", "steps", "seconds", "timed"]


class Level(NamedTuple):
    """The value to be reached.

    Attributes:
        split: the split on which runs are evaluated.
        metric: the name of the metric.
        mode: "min" or "max", the better direction.
        value: the value of the metric; a fraction if the metric is shown in percent.
        source: how it was chosen, in words.
    """

    split: str
    metric: str
    mode: str
    value: float
    source: str


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
    source = f"{SHARE * 100:.0f} % of the way to {names.label(leader)}'s mean at step {step}"
    return Level(split, target.metric, target.mode, start + SHARE * (end - start), source)


def table(records: Records, goal: Level) -> pd.DataFrame:
    """Return one row per series, with columns ``COLUMNS``.

    ``runs``: the number of runs. ``reached``: the number of runs that reached the level. ``steps``: the median of
    their steps at the first evaluation at or beyond the level, not interpolated. ``timed``: the number of runs that
    reached it and have a clear time. ``seconds``: the median of their times (data + train) at this evaluation.
    """
    rows = records.metrics
    if goal.metric not in rows:
        return pd.DataFrame(columns=COLUMNS)
    rows = rows[rows["split"] == goal.split]
    good = rows[goal.metric] <= goal.value if goal.mode == "min" else rows[goal.metric] >= goal.value
    first = rows[good].sort_values("step").drop_duplicates("folder").set_index("folder")[["step", "time"]]
    table = []
    for series in names.in_order(records.runs["series"]):
        runs = records.runs[records.runs["series"] == series]
        reached = first.reindex(runs["folder"]).dropna(subset="step")
        timed = reached[reached.index.isin(runs.loc[runs["time_state"] == "clear", "folder"])]["time"].dropna()
        table.append([series, len(runs), len(reached), reached["step"].median(), timed.median(), len(timed)])
    return pd.DataFrame(table, columns=COLUMNS)


def title(goal: Level) -> str:
    """Return the table's title, such as "Time until valid error is 21.30 % (90 % of the way to …)"."""
    value = formats.quality(goal.value, goal.metric)
    return f"Time until {names.split_label(goal.split)} {names.metric_label(goal.metric)} is {value} ({goal.source})"


def readable(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([_row(row) for row in table.to_dict("records")])


def _row(row: dict[Any, Any]) -> dict[str, str]:
    untimed = f"{formats.NO_VALUE} (time excluded)" if row["reached"] else formats.NO_VALUE
    return {
        "norm": names.label(row["series"]),
        "runs that reached it": f"{row['reached']} of {row['runs']}",
        "steps (median)": f"{row['steps']:.0f}" if row["reached"] else formats.NO_VALUE,
        "seconds (median)": f"{row['seconds']:.4g}" if row["timed"] else untimed,
    }
