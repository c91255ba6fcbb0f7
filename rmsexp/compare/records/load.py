"""Load records of runs as data frames. What cannot be read is listed in ``problems``; all else is loaded."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from rmsexp import readers, record
from rmsexp.compare.records.names import FLOAT32, PRECISION, norm_of, precision_of
from rmsexp.compare.records.time_states import time_state
from rmsexp.rules import quantities, score

RUN_COLUMNS = (
    *("folder", "task", "setting", "scale", "series", "norm", "impl", "seed", "status", "error", "step"),
    *("builtin", "dataset", "device", "machine", "threads", "precision", "torch", "code", "commits", "dirty"),
    *("started", "time_state"),
    *("recipe_steps", "evaluation"),
    *("target_split", "target_metric", "target_mode", "target_selection", "target_loss_unit", "quantities"),
    "parameters",
)
IDENTITY = ("folder", "task", "setting", "series", "seed")
METRIC_COLUMNS = (*IDENTITY, "split", "step", "time", *(f"seconds_{bucket}" for bucket in record.BUCKETS))
Numbers = NDArray[np.float64]
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a missing or damaged file can raise


@dataclass(frozen=True)
class Records:
    """Runs and their metrics.

    Attributes:
        runs: one row per run, columns ``RUN_COLUMNS``. ``machine``: the identity of the machine, or the name of its
            processor in older records. ``code``: the digest of the code. ``commits``: the commits that trained the run.
            ``dirty``: whether there were uncommitted changes. ``started``: when the last session began.
            ``quantities``: those that the task names, a tuple, or None in older records. ``precision``: in which runs
            compute; if the runs of a setting differ in it, it is part of the ``series`` of those without float32, such
            as ln+precision=float16, so that they are neither averaged nor compared with the others.
        metrics: one row per readable line of ``metrics.jsonl``, columns ``METRIC_COLUMNS`` and one column per metric.
            ``time`` is the sum of the seconds in the clock's buckets data and train since the run began.
        problems: lines of text, each of which names a file or folder and what is wrong with it.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: list[str]

    @property
    def names(self) -> tuple[str, str]:
        """The task and the setting of the first run. If ``runs`` are of one setting, they are those of all runs."""
        return str(self.runs["task"].iloc[0]), str(self.runs["setting"].iloc[0])

    def select(self, task: str, setting: str) -> Records:
        """Return the runs and metrics of one task and setting, which may be none, with the problems of these runs."""
        of_setting = (self.runs["task"] == task) & (self.runs["setting"] == setting)
        return self.only(self.runs.loc[of_setting, "folder"])

    def only(self, folders: Iterable[str]) -> Records:
        """Return the runs in these folders and their metrics, which may be none, with the problems of these runs."""
        kept = set(folders)
        runs, metrics = (
            frame[frame["folder"].isin(kept)].reset_index(drop=True) for frame in (self.runs, self.metrics)
        )
        return Records(runs, metrics, self._problems_below(kept))

    def settings(self) -> dict[Path, Records]:
        """Return the records of each setting, with its problems, by its folder ``<root>/<task>/<setting>``."""
        folder_of_run = self.runs["folder"].map(lambda folder: str(Path(folder).parents[1]))
        setting_of_run, folders = pd.factorize(folder_of_run, sort=True)
        setting_of_row = setting_of_run[pd.Index(self.runs["folder"]).get_indexer(self.metrics["folder"])]
        return {
            Path(folder): Records(
                self.runs[setting_of_run == number].reset_index(drop=True),
                self.metrics[setting_of_row == number].reset_index(drop=True),
                self._problems_below([folder]),
            )
            for number, folder in enumerate(folders)
        }

    def _problems_below(self, folders: Iterable[str]) -> list[str]:
        prefixes = tuple(f"{folder}{os.sep}" for folder in folders)
        return [problem for problem in self.problems if problem.startswith(prefixes)]


def load(root: str | Path, pool: Executor | None = None) -> Records:
    """Load every run below ``root``, one after the other or, if ``pool`` is given, several at the same time.

    Copies of runs that lie in the folder of another run are left out, so that no run counts twice, and none counts as a
    run of another setting.
    """
    folders = list(record.find_runs(Path(root)))
    loaded = list(map(_load_run, folders) if pool is None else pool.map(_load_run, folders, chunksize=16))
    misplaced = _misplaced([part.run for part in loaded])
    loaded = [part for part in loaded if part.run["folder"] not in misplaced]
    runs = _labelled(pd.DataFrame([part.run for part in loaded], columns=list(RUN_COLUMNS)))
    splits = (
        union_categoricals([part.splits for part in loaded], sort_categories=True) if loaded else pd.Categorical([])
    )
    metrics = _metrics(runs, [part.columns for part in loaded], splits)
    return Records(runs, metrics, [problem for part in loaded for problem in part.problems] + list(misplaced.values()))


def _labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with their precision in ``series`` where the runs of a setting differ in it."""
    folders = runs["folder"].map(lambda folder: str(Path(folder).parents[1]))
    mixed = runs["precision"].groupby(folders).transform("nunique") > 1
    changed = mixed & (runs["precision"] != FLOAT32)
    labels = runs["series"] + PRECISION + runs["precision"].astype(str)
    return runs.assign(series=runs["series"].where(~changed, labels))


def _misplaced(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Return a line of text for each run that is left out, by its folder. ``runs``: the rows of ``Records.runs``.

    A run whose folder is not named as its ``run.json`` says is left out if the setting's folder has a run of the same
    name besides it, or runs of the setting that the folder names. A renamed folder of a setting is read as it is.
    """
    places = [Path(run["folder"]).absolute() for run in runs]
    names = [_name(run, place) for run, place in zip(runs, places, strict=True)]
    in_place = [place.parts[-4:] == name for place, name in zip(places, names, strict=True)]
    taken = {(place.parents[1], name) for place, name, right in zip(places, names, in_place, strict=True) if right}
    own_setting = {folder for folder, _ in taken}
    misplaced = {}
    for run, place, name, right in zip(runs, places, names, in_place, strict=True):
        setting = place.parents[1]
        is_foreign = setting in own_setting and name[:2] != place.parts[-4:-2]
        if not right and (is_foreign or (setting, name) in taken):
            path = Path(run["folder"], record.RUN)
            misplaced[run["folder"]] = f"{path} describes the run {'/'.join(name)}, so this copy is left out"
        taken.add((setting, name))
    return misplaced


def _name(run: dict[str, Any], place: Path) -> tuple[str, ...]:
    """Return the last four names of the path that a run was written to, as far as known. ``place``: its path now."""
    if run["seed"] == -1:
        return place.parts[-4:]
    return str(run["task"]), str(run["setting"]), str(run["series"]), f"seed{run['seed']}"


class _LoadedRun(NamedTuple):
    """The record of one run.

    Attributes:
        run: the row of the run in ``Records.runs``.
        columns: the readable lines of its ``metrics.jsonl``, as one array per numeric column of ``Records.metrics``.
        splits: the split of each of these lines, categorical.
        problems: the lines of text that the run adds to ``Records.problems``.
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
    """Return ``Records.metrics``, without rows whose step is NaN.

    The columns of text are categorical, since many rows share few values.

    Args:
        runs: ``Records.runs``.
        tables: the columns of each run, in the order of ``runs``. This function empties these dictionaries, to save
            memory.
        splits: the split of each row of ``tables``, run after run.
    """
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
    """Return the row of a run in ``Records.runs``. Add a line to ``problems`` for each file that cannot be read.

    If ``run.json`` cannot be read, the task, setting, series and seed come from the names of the folders.
    """
    task, setting, series, seed = folder.absolute().parts[-4:]
    run: dict[str, Any] = {"folder": str(folder), "task": task, "setting": setting, "scale": norm_of(setting)}
    run |= {"series": series, "norm": norm_of(series), "seed": int(digits) if (digits := seed[4:]).isdigit() else -1}
    run |= {"time_state": "unknown", "status": "unknown", "error": None, "step": 0}
    run["precision"] = precision_of(setting)
    try:
        run |= _description(readers.read_json(folder / record.RUN))
    except DAMAGE as error:
        problems.append(_problem(folder / record.RUN, error))
    try:
        status = record.RunFolder(folder).read_status()
        run |= {"status": str(status["status"]), "error": status.get("error"), "step": int(status.get("step") or 0)}
    except DAMAGE as error:
        problems.append(_problem(folder / record.STATUS, error))
    return run


def _description(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of ``Records.runs`` that come from ``run.json``, whose content is ``stored``.

    Raises: ValueError for a value of another type than runs write.
    """
    target, dataset, session = stored["target"], stored["dataset"], (stored["sessions"] or [{}])[-1]
    identity = ("task", "norm", "scale", "seed", "setting", "series", "impl")
    row = {key: stored[key] for key in identity} | {
        **{f"target_{key}": target[key] for key in ("split", "metric", "mode", "selection")},
        "target_loss_unit": target.get("loss_unit", "nats"),  # only some older records have this key
        "quantities": _quantities(stored),
        "precision": stored.get("precision") or precision_of(stored["setting"]),  # older records lack it
        "recipe_steps": number(stored["recipe_steps"]),
        "evaluation": stored.get("evaluation"),  # older records lack this key
        "builtin": bool(dataset["builtin"]),
        "dataset": dataset["name"],
        "parameters": stored["parameters"]["total"],
        "device": session.get("device"),
        "machine": _machine(session),
        "threads": number(session.get("threads")),
        "torch": session.get("versions", {}).get("torch"),
        "code": session.get("code"),
        "started": session.get("started"),
        **_history(stored["sessions"]),
        "time_state": _time_state(stored["sessions"]),
    }
    for key, value in row.items():
        if key == "seed":
            valid = type(value) is int
        elif key in (*identity, "precision") or key.startswith("target_"):
            valid = isinstance(value, str)
        elif key == "evaluation":
            valid = value is None or value in score.PLANS
        else:
            valid = not isinstance(value, dict | list)
        if not valid:
            raise ValueError(f"its {key} is {value!r:.40}")
    return row


def _quantities(stored: dict[str, Any]) -> tuple[quantities.Quantity, ...] | None:
    """Return the quantities that a ``run.json`` names, or None, because older records name none."""
    return tuple(map(quantities.read, stored["quantities"])) if "quantities" in stored else None


def _machine(session: Mapping[str, Any]) -> str | None:
    """Return the identity of a session's machine, with the number of processes if the run had several.

    Times of runs with different numbers of processes are thus never compared.
    """
    identity, processes = (session.get("machine") or {}).get("id") or session.get("device"), session.get("world_size")
    return f"{identity}, {processes} processes" if processes else identity


def _history(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ``commits`` of the sessions, and whether one of their work trees was ``dirty``; None if not known."""
    trees = [session.get("git") or {} for session in sessions]
    commits = dict.fromkeys(str(tree["commit"])[:7] for tree in trees if tree.get("commit"))
    known = [bool(tree["dirty"]) for tree in trees if tree.get("dirty") is not None]
    return {"commits": ", ".join(commits) or None, "dirty": any(known) if known else None}


def _time_state(sessions: list[dict[str, Any]]) -> str:
    """Return the state of a run's time, from its sessions (the processes that trained it).

    It is the first of these that holds. "mixed": a session is marked as not comparable, mostly because the machine,
    the software or the code changed during the run; "contended": a session shared the processors with other work;
    "clear": no session did; "unknown": the contention of a session is not recorded. Savings that are computed from runs
    need clear times.
    """
    if not all(session.get("comparable", True) for session in sessions):
        return "mixed"
    states = set(map(time_state, sessions))
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
    """Return the numeric columns of ``Records.metrics`` for one run, by name, each of shape ``(rows,)``."""
    columns = {"step": np.empty(0)} | _arrays(rows)
    stored = _arrays([seconds if isinstance(seconds := row.get("seconds"), dict) else {} for row in rows])
    seconds_in = {bucket: stored.get(bucket, np.full(len(rows), math.nan)) for bucket in record.BUCKETS}
    columns["time"] = sum((seconds_in[bucket] for bucket in record.TIMED), np.zeros(len(rows)))
    return columns | {f"seconds_{bucket}": values for bucket, values in seconds_in.items()}


def _arrays(rows: list[dict[str, Any]]) -> dict[str, Numbers]:
    """Return one array of shape ``(rows,)`` per key except split and seconds, with NaN for rows without the key.

    Rows with the same keys are transposed together, which is faster than going through all values one by one.
    """
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
    """Return the values as floats, with NaN for each that is not a finite number; records store inf and NaN as null."""
    if set(map(type, values)) <= {int, float, NoneType}:
        with suppress(OverflowError):
            numbers = np.array(values, dtype=float)
            return np.where(np.isfinite(numbers), numbers, math.nan)
    return np.array([number(value) for value in values], dtype=float)


def number(value: object) -> float:
    """Return a value of a record as a float; NaN for anything but a finite number."""
    try:
        converted = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer beyond the range of floats
        return math.nan
    return converted if math.isfinite(converted) else math.nan


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
    return reason if str(path) in reason else f"{path}: {reason}"
