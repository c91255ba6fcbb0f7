"""Runs' records as data frames. A damaged record never stops the others: what can be read is, the rest is a problem."""

from __future__ import annotations

import gc
import math
import os
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from rmsexp import record
from rmsexp.compare.records.names import norm_of

RUN_COLUMNS = (
    *("folder", "task", "setting", "scale", "series", "norm", "impl", "seed", "status", "error", "step"),
    *("builtin", "dataset", "device", "threads", "torch", "time_state", "recipe_steps"),
    *("target_split", "target_metric", "target_mode", "target_selection", "target_loss_unit", "parameters"),
)
IDENTITY = ("folder", "task", "setting", "series", "seed")
METRIC_COLUMNS = (*IDENTITY, "split", "step", "time", *(f"seconds_{bucket}" for bucket in record.BUCKETS))
Numbers = NDArray[np.float64]
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a file that is not ours can raise


@dataclass(frozen=True)
class Records:
    """``runs``: one row a run (``RUN_COLUMNS``); ``metrics``: one row an event; ``time`` = data + train seconds."""

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: list[str]

    @property
    def names(self) -> tuple[str, str]:
        """Task and setting of the first run; of one setting's records, of all."""
        return str(self.runs["task"].iloc[0]), str(self.runs["setting"].iloc[0])

    def of(self, task: str, setting: str) -> Records:
        """The records of one setting; an empty one if there are none."""
        runs, metrics = (
            frame[(frame["task"] == task) & (frame["setting"] == setting)].reset_index(drop=True)
            for frame in (self.runs, self.metrics)
        )
        return Records(runs, metrics, self.problems)

    def settings(self) -> dict[Path, Records]:
        """The records of each setting by its folder, ``<root>/<task>/<setting>``, each with its own problems."""
        owners, folders = pd.factorize(self.runs["folder"].map(lambda folder: str(Path(folder).parents[1])), sort=True)
        of_row = owners[pd.Index(self.runs["folder"]).get_indexer(self.metrics["folder"])]
        return {
            Path(folder): Records(
                self.runs[owners == number].reset_index(drop=True),
                self.metrics[of_row == number].reset_index(drop=True),
                [problem for problem in self.problems if problem.startswith(f"{folder}{os.sep}")],
            )
            for number, folder in enumerate(folders)
        }


def load(root: str | Path, pool: Executor | None = None) -> Records:
    """Every run below ``root``; an empty record where there is none. A ``pool`` of processes reads many at a time."""
    folders = list(record.find_runs(Path(root)))
    read = list(map(_read, folders) if pool is None else pool.map(_read, folders, chunksize=16))
    runs = pd.DataFrame([one.run for one in read], columns=list(RUN_COLUMNS))
    splits = union_categoricals([one.splits for one in read], sort_categories=True) if read else pd.Categorical([])
    metrics = _metrics(runs, [one.columns for one in read], splits)
    return Records(runs, metrics, [problem for one in read for problem in one.problems])


class _Read(NamedTuple):
    """One run: its row, its events as columns, their splits, and what was wrong."""

    run: dict[str, Any]
    columns: dict[str, Numbers]
    splits: Any  # categorical
    problems: list[str]


def _read(folder: Path) -> _Read:
    gc.disable()  # thousands of rows that die at once: looking for cycles among them would take a quarter of the time
    try:
        return _read_run(folder)
    finally:
        gc.enable()


def _read_run(folder: Path) -> _Read:
    problems: list[str] = []
    run = _run(folder, problems)
    rows = _rows(folder, problems)
    columns = _columns(rows)
    run["step"] = int(max([run["step"], *columns["step"][np.isfinite(columns["step"])]]))
    splits = pd.Categorical(pd.Series([str(row["split"]) for row in rows], dtype=str))
    return _Read(run, columns, splits, problems)


def _metrics(runs: pd.DataFrame, tables: list[dict[str, Numbers]], splits: Any) -> pd.DataFrame:
    """One frame of all runs' columns. What names a row is categorical: millions of rows hold few names."""
    lengths = np.array([len(table["step"]) for table in tables], dtype=int)
    columns: dict[str, Any] = {}
    for key in IDENTITY:
        codes, names = pd.factorize(runs[key])
        repeated = np.repeat(codes, lengths)
        columns[key] = runs[key].to_numpy()[:0] if runs.empty else pd.Categorical.from_codes(repeated, names)
    columns["seed"] = np.repeat(runs["seed"].to_numpy(), lengths)
    columns["split"] = splits
    for key in dict.fromkeys((*METRIC_COLUMNS, *(name for table in tables for name in table))):
        if key not in columns:
            parts = [table.pop(key, np.full(length, math.nan)) for table, length in zip(tables, lengths, strict=True)]
            columns[key] = np.concatenate(parts) if parts else np.empty(0)
    frame = pd.DataFrame(columns, copy=False)
    unknown = frame["step"].isna()
    return frame[~unknown].reset_index(drop=True) if unknown.any() else frame


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


def _rows(folder: Path, problems: list[str]) -> list[record.Row]:
    try:
        rows, problem = record.read_metrics(folder / record.METRICS)
    except DAMAGE as error:
        problems.append(_problem(folder / record.METRICS, error))
        return []
    if problem:
        problems.append(problem)
    return rows


def _columns(rows: list[record.Row]) -> dict[str, Numbers]:
    """A run's rows as arrays of numbers."""
    columns = {"step": np.empty(0)} | _arrays(rows)
    stored = _arrays([seconds if isinstance(seconds := row.get("seconds"), dict) else {} for row in rows])
    spent = {bucket: stored.get(bucket, np.full(len(rows), math.nan)) for bucket in record.BUCKETS}
    columns["time"] = sum((spent[bucket] for bucket in record.TIMED), np.zeros(len(rows)))
    return columns | {f"seconds_{bucket}": values for bucket, values in spent.items()}


def _arrays(rows: list[dict[str, Any]]) -> dict[str, Numbers]:
    """One array a key. Rows with the same keys are turned as a whole, which is the quickest in pure Python."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(rows):
        alike.setdefault(tuple(row), []).append(number)
    arrays: dict[str, Numbers] = {}
    for keys, numbers in alike.items():
        for key, values in zip(keys, zip(*(rows[number].values() for number in numbers), strict=True), strict=True):
            if key not in ("split", "seconds"):
                arrays.setdefault(key, np.full(len(rows), math.nan))[numbers] = _numbers(values)
    return arrays


def _numbers(values: tuple[Any, ...]) -> Numbers:
    """Finite numbers, and NaN for all else: a metric that was not finite is stored as null."""
    if set(map(type, values)) <= {int, float, NoneType}:
        numbers = np.array(values, dtype=float)
        return np.where(np.isfinite(numbers), numbers, math.nan)
    return np.array([_number(value) for value in values], dtype=float)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
    return reason if str(path) in reason else f"{path}: {reason}"
