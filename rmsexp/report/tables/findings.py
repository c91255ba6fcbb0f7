"""The comparison of the paper's Figure 1 in words: the norms' training losses when the baseline ends its training."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rmsexp.records.frames import names, quantities, speed, statistics
from rmsexp.records.frames.curves import averaged, clock_difference
from rmsexp.records.frames.load import Records
from rmsexp.records.frames.statistics import Array
from rmsexp.report.tables.formats import four_digits

WINDOW = 0.1  # the trailing mean that smooths the training loss covers this fraction of the baseline's steps
BASELINE, SECOND = "ln", "none"
Curve = dict[str, Array]  # the columns of a run's training rows


def figure_1(records: Records) -> list[str]:
    """Return two sentences, or an empty list if there is nothing to compare.

    The first gives the training losses of all norms after as many steps as the baseline was trained, and after as much
    time; the second describes the method. The baseline is LN or, if every run with LN is missing, diverged or failed,
    the model without norm. It is compared only with runs of the same implementation and, where runs differ in it,
    precision: float32. Times are compared only if they are clear and of the same machine, number of threads, version of
    torch and code; otherwise the sentence says why not.
    """
    trained = statistics.evaluations(records, "train", "loss")["folder"].unique()
    runs = records.runs[records.runs["folder"].isin(trained)]
    known = sorted(set(runs["series"]))  # "ln" precedes "ln+impl=fused"
    of_norms = (series for norm in (BASELINE, SECOND) for series in known if names.without_impl(series) == norm)
    baseline = next(of_norms, None)
    baseline_runs = runs[runs["series"] == baseline]
    others = runs[runs["impl"].isin(baseline_runs["impl"]) & (runs["series"] != baseline)]
    others = others[~others["series"].str.contains(names.PRECISION, regex=False)]  # which the baseline does not have
    if baseline is None or others.empty:
        return []
    rows = records.metrics[["folder", "split", "step", "time", "loss"]]
    rows = rows[rows["split"] == "train"]
    of_baseline = rows[rows["folder"].isin(baseline_runs["folder"])]
    end = float(of_baseline.groupby("folder", observed=True)["step"].max().min())
    smoothed = _smoothed(rows, end * WINDOW)
    if np.isnan(_value_at(baseline_runs, smoothed, "step", end, "loss")):  # one ended before another's first row
        return []
    return [
        _sentence(baseline, baseline_runs, others, smoothed, end),
        _method(records, baseline, pd.concat([baseline_runs, others])),
    ]


def _smoothed(rows: pd.DataFrame, window: float) -> dict[str, Curve]:
    """Return ``step``, ``time`` and smoothed ``loss`` of the training rows of each run, by its folder.

    A smoothed loss is the mean of the losses at steps above ``step - window`` and up to ``step``.
    """
    rows = rows.dropna(subset=["step", "loss"])
    columns = {key: rows[key].to_numpy(float) for key in ("step", "time", "loss")}
    smoothed = {}
    for folder, indices in rows.groupby("folder", observed=True).indices.items():
        step, time, loss = (column[indices] for column in columns.values())
        total = np.concatenate([[0.0], loss.cumsum()])
        first = np.searchsorted(step, step - window, side="right")
        count = np.arange(len(step)) + 1
        smoothed[str(folder)] = {"step": step, "time": time, "loss": (total[count] - total[first]) / (count - first)}
    return smoothed


def _sentence(
    baseline: str, baseline_runs: pd.DataFrame, others: pd.DataFrame, smoothed: dict[str, Curve], end: float
) -> str:
    level = four_digits(_value_at(baseline_runs, smoothed, "step", end, "loss"))
    seconds = _value_at(baseline_runs, smoothed, "step", end, "time")
    unit, divisor = speed.time_unit(seconds)
    untimed = _untimed(baseline_runs, baseline_runs, smoothed)
    took = f"its time is excluded: {untimed}" if untimed else f"{seconds / divisor:.3g} {unit}"
    at_time = four_digits(_value_at(averaged(baseline_runs, timed=True)[0], smoothed, "step", end, "loss"))
    if not untimed and at_time != level:
        took += f", where the runs with a clear time are at {at_time}"
    parts = []
    for series in names.in_order(others["series"]):
        runs = others[others["series"] == series]
        by_step = f"at its end before that step (step {_end(runs, smoothed, 'step'):.0f})"
        if not np.isnan(loss := _value_at(runs, smoothed, "step", end, "loss")):
            by_step = f"at {four_digits(loss)} after the same steps"
        by_time = f" and at its end before that time ({_end(runs, smoothed, 'time') / divisor:.3g} {unit})"
        if not np.isnan(loss := _value_at(runs, smoothed, "time", seconds, "loss")):
            by_time = f" and at {four_digits(loss)} after the same time"
        if reason := _untimed(runs, baseline_runs, smoothed):
            by_time = "" if untimed else f" (its time is excluded: {reason})"
        parts.append(f"{_name(series)} is {by_step}{by_time}")
    return f"When {_name(baseline)} reaches training loss {level} (at step {end:.0f}, {took}), {'; '.join(parts)}."


def _untimed(runs: pd.DataFrame, baseline_runs: pd.DataFrame, smoothed: dict[str, Curve]) -> str:
    """Return why the times of a series' runs are not compared with those of the baseline; "" if they are."""
    timed, is_clear = averaged(runs, timed=True)
    baseline_timed, baseline_is_clear = averaged(baseline_runs, timed=True)
    if any(np.isnan(smoothed[folder]["time"]).all() for folder in (*timed["folder"], *baseline_timed["folder"])):
        return "nothing timed"
    if is_clear and baseline_is_clear:
        return clock_difference(pd.concat([timed, baseline_timed]))
    return ", ".join(sorted(set((baseline_runs if is_clear else runs)["time_state"])))


def _name(series: str) -> str:
    return "the model without norm" if names.without_impl(series) == "none" else names.label(series)


def _value_at(runs: pd.DataFrame, smoothed: dict[str, Curve], x: str, position: float, y: str) -> float:
    """Return ``y`` at ``x = position``, interpolated and averaged over runs; NaN if a run does not cover ``position``.

    ``runs``: those of one series, of which the mean covers :func:`averaged`. ``smoothed``: the curve of each folder.
    """
    averaged_runs, _ = averaged(runs, timed="time" in (x, y))
    return float(np.mean([_interpolated(smoothed[folder], x, position, y) for folder in averaged_runs["folder"]]))


def _interpolated(curve: Curve, x: str, position: float, y: str) -> float:
    known = ~np.isnan(curve[x]) & ~np.isnan(curve[y])
    if not known.any():
        return float("nan")
    return float(np.interp(position, curve[x][known], curve[y][known], left=np.nan, right=np.nan))


def _end(runs: pd.DataFrame, smoothed: dict[str, Curve], x: str) -> float:
    averaged_runs, _ = averaged(runs, timed=x == "time")
    return min(float(np.fmax.reduce(smoothed[folder][x])) for folder in averaged_runs["folder"])


def _method(records: Records, baseline: str, used: pd.DataFrame) -> str:
    """Return a sentence on how losses and times were obtained, which runs are left out, and other caveats.

    ``used``: the runs of the baseline and of the norms compared with it.
    """
    unit = next((quantity.unit for quantity in quantities.named(records) if quantity.name == "train_loss"), "nats")
    remarks = [
        f"Training loss ({unit}), mean over seeds, each smoothed by a trailing mean over {WINDOW * 100:.0f} % of the "
        "baseline's steps",
        "times are of separate runs (unpaired)",
    ]
    if names.without_impl(baseline) == SECOND:
        begun = BASELINE in set(map(names.without_impl, records.runs["series"]))
        reason = "diverged, failed or was not started" if begun else "is missing"
        remarks.append(f"{_name(SECOND)} is the baseline, since {_name(BASELINE)} {reason}")
    missing = names.in_order(records.runs.loc[~records.runs["series"].isin(used["series"]), "series"])
    if missing:
        remarks.append(
            f"without {', '.join(map(names.label, missing))} (diverged, failed, not started or of another impl or "
            "precision)"
        )
    seeds = ", ".join(_seeds(used[used["series"] == series]) for series in names.in_order(used["series"]))
    return "; ".join([*remarks, f"seeds: {seeds}"]) + "."


def _seeds(runs: pd.DataFrame) -> str:
    """Return the number of a series' runs in its losses and, if it is smaller, in its times: "RMSNorm 2 (time: 1)"."""
    (losses, _), (times, _) = (averaged(runs, timed=timed) for timed in (False, True))
    fewer = f" (time: {len(times)})" if len(times) < len(losses) else ""
    return f"{names.label(runs['series'].iloc[0])} {len(losses)}{fewer}"
