"""The sentence under the paper's Figure 1, computed: where other norms are when the baseline has a training loss."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rmsexp.compare.records import curves, names, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

WINDOW = 0.1  # of the baseline's steps, of which the trailing mean smooths the training loss
BASELINE, SECOND = "none", "ln"


def figure_1(records: Records) -> list[str]:
    """Sentences on training loss after the same steps and after the same time; none where there is nothing to compare.

    The baseline is the model without norm, or LN where no run without norm trained to its end. Only runs of its impl
    are set against it.
    """
    trained = statistics.evaluations(records, "train", "loss")["folder"].unique()
    runs = records.runs[records.runs["folder"].isin(trained)]
    baseline = next((one for one in (BASELINE, SECOND) if one in set(runs["series"])), None)
    own = runs[runs["series"] == baseline]
    others = runs[runs["impl"].isin(own["impl"]) & (runs["series"] != baseline)]
    if baseline is None or others.empty:
        return []
    rows = records.metrics[records.metrics["split"] == "train"]
    end = min(float(rows.loc[rows["folder"] == folder, "step"].max()) for folder in own["folder"])
    smoothed = {str(folder): _smoothed(some, end * WINDOW) for folder, some in rows.groupby("folder", observed=True)}
    return [_sentence(baseline, own, others, smoothed, end), _how(records, baseline, pd.concat([own, others]))]


def _smoothed(rows: pd.DataFrame, window: float) -> pd.DataFrame:
    """A run's ``step time loss``: at each row, the mean loss of the rows less than ``window`` steps before it."""
    rows = rows[["step", "time", "loss"]].dropna(subset=["step", "loss"]).reset_index(drop=True)
    step, total = rows["step"].to_numpy(), np.concatenate([[0.0], rows["loss"].cumsum()])
    first = np.searchsorted(step, step - window, side="right")
    count = np.arange(len(rows)) + 1
    return rows.assign(loss=(total[count] - total[first]) / (count - first))


def _sentence(
    baseline: str, own: pd.DataFrame, others: pd.DataFrame, smoothed: dict[str, pd.DataFrame], end: float
) -> str:
    level = formats.four_digits(_at(own, smoothed, "step", end, "loss"))
    seconds = _at(own, smoothed, "step", end, "time")
    unit, divisor = speed.time_unit(seconds)
    start = f"When {_name(baseline)} reaches training loss {level} (at step {end:.0f}, {seconds / divisor:.3g} {unit})"
    parts = []
    for series in names.in_order(others["series"]):
        runs = others[others["series"] == series]
        by_step = f"at its end before that step (step {_last(runs, smoothed, 'step'):.0f})"
        if not np.isnan(after := _at(runs, smoothed, "step", end, "loss")):
            by_step = f"at {formats.four_digits(after)} after the same steps"
        by_time = f"at its end before that time ({_last(runs, smoothed, 'time') / divisor:.3g} {unit})"
        if not np.isnan(after := _at(runs, smoothed, "time", seconds, "loss")):
            by_time = f"at {formats.four_digits(after)} after the same time"
        parts.append(f"{names.label(series)} is {by_step} and {by_time}")
    return f"{start}, {'; '.join(parts)}."


def _name(baseline: str) -> str:
    return "the model without norm" if baseline == BASELINE else names.label(baseline)


def _at(runs: pd.DataFrame, smoothed: dict[str, pd.DataFrame], x: str, where: float, y: str) -> float:
    """The mean curve of a series' runs at ``where``; NaN where not all of them go that far."""
    counted, _ = curves.averaged(runs, timed="time" in (x, y))
    used = [smoothed[folder].dropna(subset=[x, y]) for folder in counted["folder"]]
    values = [np.interp(where, one[x], one[y], left=np.nan, right=np.nan) for one in used]
    return float(np.mean(values))


def _last(runs: pd.DataFrame, smoothed: dict[str, pd.DataFrame], x: str) -> float:
    return min(float(smoothed[folder][x].max()) for folder in runs["folder"])


def _how(records: Records, baseline: str, used: pd.DataFrame) -> str:
    """What the sentences rest on."""
    unit = statistics.target(records).loss_unit
    reasons = [
        f"Training loss ({unit}), mean over seeds, each smoothed by a trailing mean over {WINDOW * 100:.0f} % of the "
        "baseline's steps",
        "times are of separate runs, unpaired",
    ]
    if baseline == SECOND:
        lost = "diverged or failed" if BASELINE in set(records.runs["series"]) else "is missing"
        reasons.append(f"LayerNorm is the baseline, since {_name(BASELINE)} {lost}")
    gone = names.in_order(records.runs.loc[~records.runs["series"].isin(used["series"]), "series"])
    if gone:
        reasons.append(
            f"without {', '.join(map(names.label, gone))} (diverged, failed, not started or of another impl)"
        )
    timed = {str(series): curves.averaged(runs, timed=True) for series, runs in used.groupby("series")}
    uncounted = names.in_order(series for series, (_, counts) in timed.items() if not counts)
    if uncounted:
        reasons.append(f"times that do not count are used of {', '.join(map(names.label, uncounted))}")
    machines = pd.concat([runs for runs, _ in timed.values()])[["device", "threads", "torch"]].astype(str)
    if len(machines.drop_duplicates()) > 1:
        reasons.append("times are not all of one machine")
    return "; ".join(reasons) + "."
