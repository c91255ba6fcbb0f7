"""Records of runs as data frames. Unreadable parts of records are listed in ``problems``; all else is loaded."""

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
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged file can raise


@dataclass(frozen=True)
class Records:
    """Runs and their metrics.

    Attributes:
        runs: one row per run, columns ``RUN_COLUMNS``.
        metrics: one row per event (a training row or an evaluation); ``time`` is data + train in seconds.
        problems: what could not be read, and why.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: list[str]

    @property
    def names(self) -> tuple[str, str]:
        """Task and setting of the first run; all runs of one setting share them."""
        return str(self.runs["task"].iloc[0]), str(self.runs["setting"].iloc[0])

    def select(self, task: str, setting: str) -> Records:
        """Return the records of one setting; without any runs if there are none."""
        runs, metrics = (
            frame[(frame["task"] == task) & (frame["setting"] == setting)].reset_index(drop=True)
            for frame in (self.runs, self.metrics)
        )
        return Records(runs, metrics, self.problems)

    def settings(self) -> dict[Path, Records]:
        """Return the records of each setting, with its problems, by its folder ``<root>/<task>/<setting>``."""
        owners, folders = pd.factorize(self.runs["folder"].map(lambda folder: str(Path(folder).parents[1])), sort=True)
        owner_of_row = owners[pd.Index(self.runs["folder"]).get_indexer(self.metrics["folder"])]
        return {
            Path(folder): Records(
                self.runs[owners == number].reset_index(drop=True),
                self.metrics[owner_of_row == number].reset_index(drop=True),
                [problem for problem in self.problems if problem.startswith(f"{folder}{os.sep}")],
            )
            for number, folder in enumerate(folders)
        }


def load(root: str | Path, pool: Executor | None = None) -> Records:
    """Load every run below ``root``. ``pool``: reads several runs at the same time."""
    folders = list(record.find_runs(Path(root)))
    loaded = list(map(_load_run, folders) if pool is None else pool.map(_load_run, folders, chunksize=16))
    runs = pd.DataFrame([part.run for part in loaded], columns=list(RUN_COLUMNS))
    splits = (
        union_categoricals([part.splits for part in loaded], sort_categories=True) if loaded else pd.Categorical([])
    )
    metrics = _metrics(runs, [part.columns for part in loaded], splits)
    return Records(runs, metrics, [problem for part in loaded for problem in part.problems])


class _LoadedRun(NamedTuple):
    """One run.

    Attributes:
        run: its row of ``Records.runs``.
        columns: its events, one array per column of ``Records.metrics``.
        splits: the split of each event, categorical.
        problems: what could not be read.
    """

    run: dict[str, Any]
    columns: dict[str, Numbers]
    splits: Any
    problems: list[str]


def _load_run(folder: Path) -> _LoadedRun:
    gc.disable()  # searching thousands of short-lived rows for reference cycles would take a quarter of the time
    try:
        return _read(folder)
    finally:
        gc.enable()


def _read(folder: Path) -> _LoadedRun:
    problems: list[str] = []
    run = _run(folder, problems)
    rows = _rows(folder, problems)
    columns = _columns(rows)
    run["step"] = int(max([run["step"], *columns["step"][np.isfinite(columns["step"])]]))
    splits = pd.Categorical(pd.Series([str(row["split"]) for row in rows], dtype=str))
    return _LoadedRun(run, columns, splits, problems)


def _metrics(runs: pd.DataFrame, tables: list[dict[str, Numbers]], splits: Any) -> pd.DataFrame:
    """Return the columns of all runs as one frame. Columns of names are categorical: many rows share few names."""
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
    """Return the run's row. Without a readable ``run.json``, its identity comes from the names of its folders."""
    task, setting, series, seed = folder.absolute().parts[-4:]
    run: dict[str, Any] = {"folder": str(folder), "task": task, "setting": setting, "scale": norm_of(setting)}
    run |= {"series": series, "norm": norm_of(series), "seed": int(digits) if (digits := seed[4:]).isdigit() else -1}
    run |= {"time_state": "unknown", "status": "unknown", "error": None, "step": 0}
    try:
        run |= _description(record.read_json(folder / record.RUN))
    except DAMAGE as error:
        problems.append(_problem(folder / record.RUN, error))
    try:
        status = record.RunFolder(folder).read_status()
        run |= {"status": str(status["status"]), "error": status.get("error"), "step": int(status.get("step") or 0)}
    except DAMAGE as error:
        problems.append(_problem(folder / record.STATUS, error))
    return run


def _description(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a run that come from its ``run.json``."""
    target, dataset, session = stored["target"], stored["dataset"], (stored["sessions"] or [{}])[-1]
    identity = ("task", "norm", "scale", "seed", "setting", "series", "impl")
    return {key: stored[key] for key in identity} | {
        **{f"target_{key}": target[key] for key in ("split", "metric", "mode", "selection")},
        "target_loss_unit": target.get("loss_unit", "nats"),  # older records lack the key, and are in nats
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
    """Return the state of a run's time, which counts only if it is "clear".

    "clear": no session was contended, and all ran under the same conditions; "mixed": under different conditions.
    """
    if not all(session.get("comparable", True) for session in sessions):
        return "mixed"
    states = {(session.get("contention") or {}).get("state", "unknown") for session in sessions}
    if "contended" in states:
        return "contended"
    return "clear" if states == {"clear"} else "unknown"


def _rows(folder: Path, problems: list[str]) -> list[record.Row]:
    try:
        rows, problem = record.RunFolder(folder).read_metrics()
    except DAMAGE as error:
        problems.append(_problem(folder / record.METRICS, error))
        return []
    if problem:
        problems.append(problem)
    return rows


def _columns(rows: list[record.Row]) -> dict[str, Numbers]:
    """Return a run's rows as one array of numbers per column."""
    columns = {"step": np.empty(0)} | _arrays(rows)
    stored = _arrays([seconds if isinstance(seconds := row.get("seconds"), dict) else {} for row in rows])
    seconds_in = {bucket: stored.get(bucket, np.full(len(rows), math.nan)) for bucket in record.BUCKETS}
    columns["time"] = sum((seconds_in[bucket] for bucket in record.TIMED), np.zeros(len(rows)))
    return columns | {f"seconds_{bucket}": values for bucket, values in seconds_in.items()}


def _arrays(rows: list[dict[str, Any]]) -> dict[str, Numbers]:
    """Return one array per key. Rows with the same keys are transposed together, the fastest way in pure Python."""
    rows_by_keys: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(rows):
        rows_by_keys.setdefault(tuple(row), []).append(number)
    arrays: dict[str, Numbers] = {}
    for keys, numbers in rows_by_keys.items():
        for key, values in zip(keys, zip(*(rows[number].values() for number in numbers), strict=True), strict=True):
            if key not in ("split", "seconds"):
                arrays.setdefault(key, np.full(len(rows), math.nan))[numbers] = _numbers(values)
    return arrays


def _numbers(values: tuple[Any, ...]) -> Numbers:
    """Return finite numbers, and NaN for all else: records store a metric that is not finite as null."""
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
