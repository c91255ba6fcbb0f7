"""Steps and seconds until a run's evaluations first reach a value of the metric that is the same for all norms.

A run that did not reach the level is censored at its last evaluation: it may reach it later. A run that diverged before
it reached the level never reaches it, so its time is infinite; to censor it would be to suppose that it would have gone
on like the others. A run that reached the level and diverged later did reach it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd

from rmsexp.records.frames import curves, names, statistics, survival
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats

SHARE = 0.9  # the fraction of LN's improvement that defines the level
COLUMNS = [
    *("series", "runs", "reached", "diverged", "steps", "steps_low", "steps_high"),
    *("timed", "timed_steps", "seconds", "seconds_low", "seconds_high", "untimed"),
]
NEVER = "not reached"


class Level(NamedTuple):
    """The value to be reached.

    Attributes:
        split: the split on which runs are evaluated.
        metric: the name of the metric.
        mode: "min" or "max", the better direction.
        value: the value of the metric; a fraction if the metric is shown in percent.
        source: how it was chosen, in words.
        evaluations: the fewest and the most evaluations of a run that neither diverged nor failed.
    """

    split: str
    metric: str
    mode: str
    value: float
    source: str
    evaluations: tuple[int, int]


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
    counts = rows.groupby("folder").size()
    value = start + SHARE * (end - start)
    return Level(split, target.metric, target.mode, value, source, (int(counts.min()), int(counts.max())))


def table(records: Records, goal: Level) -> pd.DataFrame:
    """Return one row per series, with columns ``COLUMNS``.

    ``runs``: the number of runs. ``reached``: of those that reached the level. ``diverged``: of those that diverged
    before. ``steps``, ``steps_low``, ``steps_high``: their median and its 95 % interval, see
    :func:`rmsexp.records.frames.survival.median`; the steps of a run are those at its first evaluation at or beyond
    the level, not interpolated. ``timed``: the number of runs with a clear time. ``timed_steps``: the median steps of
    these runs. ``seconds``, ``seconds_low``, ``seconds_high``: the same for their time (data + train). ``untimed``:
    why no run is timed, although times are clear; they differ in machine, threads, precision, version of torch or code.
    """
    runs = _observed(records, goal)
    clear = (runs["time_state"] == "clear") & runs["time"].notna()
    untimed = curves.clock_difference(runs[clear])
    rows = []
    for series in names.in_order(runs["series"]):
        of_series = runs[runs["series"] == series]
        timed = of_series[clear[of_series.index] & (untimed == "")]
        steps, seconds = _median(of_series, "step"), _median(timed, "time")
        counts = [len(of_series), int(of_series["reached"].sum()), int(of_series["lost"].sum())]
        rows.append([series, *counts, *steps, len(timed), _median(timed, "step").value, *seconds, untimed])
    return pd.DataFrame(rows, columns=COLUMNS)


def _observed(records: Records, goal: Level) -> pd.DataFrame:
    """Return the runs with columns ``reached``, ``lost`` (diverged before), ``step`` and ``time``.

    The last two are those of the evaluation that reached the level, or of the last one; 0 without evaluations.
    """
    rows = records.metrics.reindex(columns=["folder", "split", "step", "time", goal.metric])
    rows = rows[rows["split"] == goal.split].dropna(subset=goal.metric).sort_values("step")
    good = rows[goal.metric] <= goal.value if goal.mode == "min" else rows[goal.metric] >= goal.value
    first, last = rows[good].drop_duplicates("folder"), rows.drop_duplicates("folder", keep="last")
    deciding = pd.concat([first, last]).drop_duplicates("folder").set_index("folder")[["step", "time"]]
    runs = records.runs.drop(columns="step").set_index("folder")
    runs = runs.join(deciding.reindex(runs.index))
    runs.loc[runs["step"].isna(), ["step", "time"]] = 0.0
    reached = runs.index.isin(first["folder"])
    return runs.assign(reached=reached, lost=~reached & (runs["status"] == "diverged"))


def _median(runs: pd.DataFrame, column: str) -> survival.Median:
    if runs.empty:
        return survival.Median(math.nan, math.nan, math.nan)
    times = runs[column].mask(runs["lost"], math.inf)
    return survival.median(times.to_numpy(float), runs["reached"].to_numpy(bool))


def title(goal: Level) -> str:
    """Return the table's title, such as "Time until valid error is 21.30 % (90 % of the way to …; 20 evaluations…)"."""
    value = formats.quality(goal.value, goal.metric)
    few, many = goal.evaluations
    count = f"{few} evaluations per run" if few == many else f"{few} to {many} evaluations per run"
    metric = f"{names.split_label(goal.split, goal.metric)} {names.metric_label(goal.metric)}"
    return f"Time until {metric} is {value} ({goal.source}; {count})"


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text. Where only some runs are timed, their number and median steps follow the seconds."""
    return pd.DataFrame([_row(row) for row in table.to_dict("records")])


def _row(row: dict[Any, Any]) -> dict[str, str]:
    seconds = _text(row, "seconds")
    if not row["timed"]:
        seconds = f"{formats.NO_VALUE} ({row['untimed'] or 'time excluded'})"
    elif row["timed"] < row["runs"]:
        seconds += f"; {row['timed']} of {row['runs']} runs are timed, their steps: {_number(row['timed_steps'])}"
    diverged = f", {row['diverged']} diverged" if row["diverged"] else ""
    return {
        "norm": names.label(row["series"]),
        "runs that reached it": f"{row['reached']} of {row['runs']}{diverged}",
        "steps, Kaplan-Meier median (95 % interval)": _text(row, "steps"),
        "seconds, the same": seconds,
    }


def _text(row: dict[Any, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    interval = "" if math.isnan(low) else f" ({_number(low)} to {_number(high)})"
    return _number(row[name]) + interval


def _number(value: float) -> str:
    return NEVER if math.isinf(value) else formats.without_exponent(value)
