"""Runs' records as data frames. A damaged record never stops the others: what can be read is, the rest is a problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rmsexp import record
from rmsexp.compare.style import norm_of

RUN_COLUMNS = (
    *("folder", "task", "setting", "scale", "series", "norm", "impl", "seed", "status", "error", "step"),
    *("builtin", "dataset", "device", "threads", "torch", "time_state", "recipe_steps"),
    *("target_split", "target_metric", "target_mode", "target_selection", "target_loss_unit", "parameters"),
)
IDENTITY = ("folder", "task", "setting", "series", "seed")
METRIC_COLUMNS = (*IDENTITY, "split", "step", "time", *(f"seconds_{bucket}" for bucket in record.BUCKETS))
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a file that is not ours can raise


@dataclass(frozen=True)
class Records:
    """``runs``: one row a run (``RUN_COLUMNS``); ``metrics``: one row an event; ``time`` = data + train seconds."""

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: list[str]

    def of(self, task: str, setting: str) -> Records:
        """The records of one setting; an empty one if there are none."""
        runs, metrics = (
            frame[(frame["task"] == task) & (frame["setting"] == setting)].reset_index(drop=True)
            for frame in (self.runs, self.metrics)
        )
        return Records(runs, metrics, self.problems)


def load(root: str | Path) -> Records:
    """Every run below ``root``; an empty record where there is none."""
    runs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for folder in record.find_runs(Path(root)):
        run = _run(folder, problems)
        events = _events(folder, run, problems)
        run["step"] = max([run["step"], *(int(event["step"]) for event in events)])
        runs.append(run)
        rows.extend(events)
    metrics = pd.DataFrame(rows)
    columns = dict.fromkeys((*METRIC_COLUMNS, *metrics.columns))
    return Records(pd.DataFrame(runs, columns=list(RUN_COLUMNS)), metrics.reindex(columns=list(columns)), problems)


def _run(folder: Path, problems: list[str]) -> dict[str, Any]:
    """The run's row. Its folder's name says who it is where ``run.json`` does not."""
    task, setting, series, seed = folder.absolute().parts[-4:]
    run: dict[str, Any] = {"folder": str(folder), "task": task, "setting": setting, "scale": norm_of(setting)}
    run |= {"series": series, "norm": norm_of(series), "seed": int(digits) if (digits := seed[4:]).isdigit() else -1}
    run |= {"time_state": "unknown", "status": "unknown", "error": None, "step": 0}
    try:
        run |= _described(record.read_json(folder / record.RUN))
    except DAMAGE as error:
        problems.append(_problem(folder / record.RUN, error))
    try:
        status = record.read_status(folder)
        run |= {"status": str(status["status"]), "error": status.get("error"), "step": int(status.get("step") or 0)}
    except DAMAGE as error:
        problems.append(_problem(folder / record.STATUS, error))
    return run


def _described(stored: dict[str, Any]) -> dict[str, Any]:
    target, dataset, session = stored["target"], stored["dataset"], (stored["sessions"] or [{}])[-1]
    identity = ("task", "norm", "scale", "seed", "setting", "series", "impl")
    return {key: stored[key] for key in identity} | {
        **{f"target_{key}": target[key] for key in ("split", "metric", "mode", "selection")},
        "target_loss_unit": target.get("loss_unit", "nats"),  # records of before it could be another
        "recipe_steps": _number(stored["recipe_steps"]),
        "builtin": bool(dataset["builtin"]),
        "dataset": dataset["name"],
        "parameters": stored["parameters"]["total"],
        "device": session.get("device"),
        "threads": _number(session.get("threads")),
        "torch": session.get("versions", {}).get("torch"),
        "time_state": _time_state(stored["sessions"]),
    }


def _time_state(sessions: list[dict[str, Any]]) -> str:
    """A run's time counts only if it is "clear": every session undisturbed, and all under the same conditions."""
    if not all(session.get("comparable", True) for session in sessions):
        return "mixed"
    states = {(session.get("contention") or {}).get("state", "unknown") for session in sessions}
    if "contended" in states:
        return "contended"
    return "clear" if states == {"clear"} else "unknown"


def _events(folder: Path, run: dict[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    try:
        rows, problem = record.read_metrics(folder / record.METRICS)
    except DAMAGE as error:
        problems.append(_problem(folder / record.METRICS, error))
        return []
    if problem:
        problems.append(problem)
    identity = {key: run[key] for key in IDENTITY}
    events = [_event(row) | identity for row in rows]
    return [event for event in events if not math.isnan(event["step"])]


def _event(row: record.Row) -> dict[str, Any]:
    stored = row.get("seconds")
    seconds = {bucket: _number(stored.get(bucket) if isinstance(stored, dict) else None) for bucket in record.BUCKETS}
    return {
        "split": row["split"],
        **{key: _number(value) for key, value in row.items() if key not in ("split", "seconds")},
        "time": sum(seconds[bucket] for bucket in record.TIMED),
        **{f"seconds_{bucket}": value for bucket, value in seconds.items()},
    }


def _number(value: object) -> float:
    """A metric that was not finite is stored as null."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
    return reason if str(path) in reason else f"{path}: {reason}"
