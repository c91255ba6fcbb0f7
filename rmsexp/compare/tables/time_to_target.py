"""Steps and seconds until a run's evaluation first reaches a level that all norms are held to."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

SHARE = 0.9  # of LN's improvement
COLUMNS = ["series", "runs", "reached", "steps", "seconds", "timed"]


class Level(NamedTuple):
    """``value`` of ``metric`` on ``split``, as stored; ``source``: why this one."""

    split: str
    metric: str
    mode: str
    value: float
    source: str


def level(records: Records) -> Level | None:
    """``SHARE`` of the way from LN's mean at the first evaluation to its mean at the last step that all runs have.

    So a norm that ends a little behind LN has a time, too. Without LN: to the worst of the series' means there. It is
    the target metric on the split that chooses the best evaluation, where it is evaluated, else on its own split. None
    where nothing was evaluated.
    """
    aim, step = statistics.target(records), statistics.common_step(records)
    split = aim.split if statistics.evaluations(records, aim.selection, aim.metric).empty else aim.selection
    rows = statistics.evaluations(records, split, aim.metric)
    means = rows[rows["step"] == step].groupby("series")["value"].mean()
    if means.empty:
        return None
    plain = next((series for series in means.index if names.is_plain_ln(str(series))), None)
    leader = str(plain or (means.idxmax() if aim.mode == "min" else means.idxmin()))
    own = rows[rows["series"] == leader].groupby("step")["value"].mean()
    start, end = float(own[own.index.min()]), float(means.loc[leader])
    source = f"{SHARE * 100:.0f} % of the way to {names.label(leader)}'s mean at step {step}"
    return Level(split, aim.metric, aim.mode, start + SHARE * (end - start), source)


def table(records: Records, goal: Level) -> pd.DataFrame:
    """One row a series. Columns: ``COLUMNS``; ``steps`` and ``seconds`` are medians over the runs that ``reached`` it.

    The evaluation that reaches the level first counts, without interpolation; ``seconds`` are data + train of the
    ``timed`` runs among them, those whose time counts.
    """
    rows = records.metrics
    if goal.metric not in rows:
        return pd.DataFrame(columns=COLUMNS)
    rows = rows[rows["split"] == goal.split]
    good = rows[goal.metric] <= goal.value if goal.mode == "min" else rows[goal.metric] >= goal.value
    first = rows[good].sort_values("step").drop_duplicates("folder").set_index("folder")[["step", "time"]]
    found = []
    for series in names.in_order(records.runs["series"]):
        runs = records.runs[records.runs["series"] == series]
        there = first.reindex(runs["folder"]).dropna(subset="step")
        timed = there[there.index.isin(runs.loc[runs["time_state"] == "clear", "folder"])]["time"].dropna()
        steps, seconds = (float(np.median(some)) if len(some) else math.nan for some in (there["step"], timed))
        found.append([series, len(runs), len(there), steps, seconds, len(timed)])
    return pd.DataFrame(found, columns=COLUMNS)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([_row(row) for row in table.to_dict("records")])


def title(goal: Level) -> str:
    """Such as "Time until valid error is 21.3 % (LayerNorm's mean at step 600)"."""
    factor, unit = names.scale_and_unit(goal.metric)
    value = f"{formats.four_digits(goal.value * factor)} {unit}".rstrip()
    return f"Time until {goal.split} {names.metric(goal.metric)} is {value} ({goal.source})"


def _row(row: dict[Any, Any]) -> dict[str, str]:
    untimed = f"{formats.NO_VALUE} (time does not count)" if row["reached"] else formats.NO_VALUE
    seconds = f"{row['seconds']:.4g}" if row["timed"] else untimed
    return {
        "norm": names.label(row["series"]),
        "runs that reached it": f"{row['reached']} of {row['runs']}",
        "steps (median)": f"{row['steps']:.0f}" if row["reached"] else formats.NO_VALUE,
        "seconds (median)": seconds,
    }
