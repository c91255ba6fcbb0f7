"""The summary of a setting: quality at the common step, and time per step."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table as TerminalTable

from rmsexp.config import score
from rmsexp.records.frames import curves, names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.rules import pairs
from rmsexp.system import clock

SECONDS = [f"seconds_{bucket}" for bucket in clock.BUCKETS]
TIMES = "seconds per 1k steps, median (quartiles)"


def table(records: Records) -> pd.DataFrame:
    """Return one row per series of a setting, in fractions (not percent) and seconds.

    ``seeds``, ``diverged``, ``failed``: numbers of runs; ``final``: mean of ``metric`` at ``compared_at_step`` or, if
    ``scored``, of the scores; ``best_on_<split>``: mean of ``metric`` at each run's best evaluation on that split up to
    this step, NaN if ``scored``; ``…_n``: the number of runs in the mean, which neither diverged nor failed; ``…_sd``:
    standard deviation over seeds; ``…_interval``: half of the 95 % t-interval, from three seeds on; ``…_median``: the
    median with the diverged runs, each of which is worse than any value: infinite if a run in the middle diverged, NaN
    without runs; ``seconds_per_1k_steps``: the median over the undisturbed runs, or all if there is none, with its
    quartiles; ``seconds_<bucket>``: seconds in a bucket of the clock, mean over the same runs; ``time_state``: such as
    "2 disturbed, 1 undisturbed"; ``near_chance``: whether ``final`` is near that of a model that has learnt nothing,
    absent if none is.
    """
    step, target = statistics.common_step(records), statistics.target(records)
    final, best = statistics.final_metric(records, step), statistics.best_metric(records, step)
    seconds = records.metrics.groupby("folder", observed=True)[SECONDS].last()
    times = curves.seconds_per_1k_steps(records)
    untrained = statistics.near_chance(records, final)
    recipe_steps = records.runs.groupby("series")["recipe_steps"].max()
    every_run, rows = records.runs.to_dict("records"), []
    for series in names.in_order(records.runs["series"]):
        runs = [run for run in every_run if run["series"] == series]
        statuses, states = (Counter(run[key] for run in runs) for key in ("status", "time_state"))
        timed = [run["folder"] for run in runs if not states["undisturbed"] or run["time_state"] == "undisturbed"]
        low, median, high = times.loc[times["folder"].isin(timed), "seconds"].quantile([0.25, 0.5, 0.75])
        row: dict[str, Any] = {
            "label": names.label(series),
            "series": series,
            "norm": runs[0]["norm"],
            "impl": next((run["impl"] for run in runs if isinstance(run["impl"], str)), "unknown"),
            "seeds": len(runs),
            **{status: statuses[status] for status in statistics.LOST},
            "status": ", ".join(
                _at_step(runs, name) for name in sorted(statuses, key=lambda name: (name != "finished", name))
            ),
            "steps_min": min(run["step"] for run in runs),
            "steps_max": max(run["step"] for run in runs),
            "recipe_steps": recipe_steps[series],
            "metric": f"{target.split} {target.metric}",
            "scored": target.scored,
            "compared_at_step": step,
            **_estimate("final", final.to_dict(), runs, target.mode),
            **_estimate(f"best_on_{target.selection}", best.to_dict(), runs, target.mode),
            "seconds_per_1k_steps": median,
            "seconds_per_1k_steps_q25": low,
            "seconds_per_1k_steps_q75": high,
            "time_state": ", ".join(f"{count} {name}" for name, count in sorted(states.items())),
        }
        if untrained:  # otherwise there is no such column
            row["near_chance"] = series in untrained
        rows.append(row | seconds.reindex(timed).mean().to_dict())
    return pd.DataFrame(rows)


def _at_step(runs: Sequence[curves.Run], status: str) -> str:
    """Return the number of runs with a status, such as "2 finished", "1 diverged at step 120"."""
    steps = [run["step"] for run in runs if run["status"] == status]
    at = f" at step {', '.join(map(str, sorted(set(steps))))}" if status in statistics.LOST else ""
    return f"{len(steps)} {status}{at}"


def _estimate(name: str, values: Mapping[Any, float], runs: Sequence[curves.Run], mode: str) -> dict[str, float]:
    of_runs = np.array([values[run["folder"]] for run in runs if run["folder"] in values], float)
    mean, sd, interval = statistics.estimate(of_runs)
    worst = -pairs.sign(mode) * math.inf
    ranked = [*of_runs, *(worst for run in runs if run["status"] == "diverged")]
    median = float(np.median(ranked)) if ranked else math.nan
    parts = {"n": len(of_runs), "sd": sd, "interval": interval, "median": median}
    return {name: mean} | {f"{name}_{part}": value for part, value in parts.items()}


def readable(table: pd.DataFrame, times: bool = True) -> pd.DataFrame:
    """Return the main columns as text. Fractions are in percent.

    ``times``: whether times of separate runs are shown, which compare no norms.

    A mean is followed by the median if there are at least three runs, and by "2 of 3 runs" if it leaves runs out; times
    by the number of disturbed runs if all are.
    """
    first = table.iloc[0]
    best = next(name for name in map(str, table.columns) if name.startswith("best_on_"))
    step = formats.NO_VALUE if pd.isna(first["compared_at_step"]) else int(first["compared_at_step"])
    compared = f", mean of the last {score.SCORED} evaluations" if first["scored"] else f" at step {step}"
    metric = " ".join(map(names.metric_label, first["metric"].split(" ", 1)))
    shown = []
    for row in table.to_dict("records"):
        steps = f"{row['steps_min']}" if row["steps_min"] == row["steps_max"] else "{steps_min} to {steps_max}"
        cells = {"norm": row["label"], "runs": row["status"], "steps": steps.format_map(row)}
        cells[f"{metric}{compared}"] = _quality(row, "final")
        if not first["scored"]:
            cells[best.replace("_", " ")] = _quality(row, best)
        median, low, high = (row[f"seconds_per_1k_steps{part}"] for part in ("", "_q25", "_q75"))
        if times:
            cells[TIMES] = formats.median_and_range(median, low, high, _excluded(row))
        shown.append(cells)
    return pd.DataFrame(shown)


def _quality(row: dict[Any, Any], name: str) -> str:
    """Return the mean with, where known, interval, standard deviation and median, and the runs left out of the mean."""
    metric = row["metric"].split(" ", 1)[1]
    factor, _ = names.scale_and_unit(metric)
    count, median = row[f"{name}_n"], row[f"{name}_median"]
    remarks = [f"sd {formats.two_digits(row[f'{name}_sd'] * factor)}"] if count > 1 else []
    if count + row["diverged"] > 2:
        lost = math.isinf(median)
        remarks.append("the median run diverged" if lost else f"median {formats.four_digits(median * factor)}")
    if row.get("near_chance"):
        remarks.append("near chance")
    if count < row["seeds"]:
        remarks.append(f"{count} of {row['seeds']} runs")
    return formats.quality(row[name], metric, row[f"{name}_interval"], remarks)


def _excluded(row: dict[Any, Any]) -> str:
    """Return ``time_state``, such as "3 disturbed", of a series without undisturbed runs; otherwise ""."""
    return "" if "undisturbed" in row["time_state"] else row["time_state"]


def for_terminal(table: pd.DataFrame) -> TerminalTable:
    """Return the main columns of the summary, to be printed at the end of a sweep; ``summary.md`` has the others."""
    text = readable(table).drop(columns="steps")
    text = text.rename(columns={TIMES: "s per 1k steps"})
    seconds = table["seconds_per_1k_steps"].map(formats.four_digits, na_action="ignore").fillna(formats.NO_VALUE)
    excluded = map(_excluded, table.to_dict("records"))
    text["s per 1k steps"] = [" ".join(cells).strip() for cells in zip(seconds, excluded, strict=True)]
    columns = TerminalTable(*map(str, text))
    for row in text.to_numpy().tolist():
        columns.add_row(*row)
    return columns
