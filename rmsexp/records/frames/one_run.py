"""Read the record of one run. What cannot be read is listed in ``problems``; all else is read."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.records import record
from rmsexp.records.frames.names import norm_of, precision_of
from rmsexp.records.frames.time_states import run_state, trained
from rmsexp.records.record import number as number
from rmsexp.rules.quantities import Quantity
from rmsexp.system import clock, machine
from rmsexp.system.checks import MOST
from rmsexp.system.typed import typed

Numbers = NDArray[np.float64]
# what reading a missing or damaged file can raise
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


class LoadedRun(NamedTuple):
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


def load_run(folder: Path) -> LoadedRun:
    gc.disable()  # searching thousands of short-lived rows for reference cycles would take a quarter of the time
    try:
        return _read(folder)
    finally:
        gc.enable()


def _read(folder: Path) -> LoadedRun:
    problems: list[str] = []
    run = _run(folder, problems)
    columns, splits = _metrics(folder, problems)
    possible = {name: _is_possible(name, values) for name, values in columns.items()}
    if damaged := sorted(name for name, each in possible.items() if not each.all()):
        problems.append(f"{folder / record.METRICS}: impossible values of {', '.join(damaged)} are left out")
        columns |= {name: np.where(possible[name], columns[name], math.nan) for name in damaged}
    run["step"] = int(max([run["step"], *columns["step"][np.isfinite(columns["step"])]]))
    return LoadedRun(run, columns, pd.Categorical(pd.Series(splits, dtype=str)), problems)


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
        run |= _description(record.RunFolder(folder).read_run())
    except DAMAGE as error:
        problems.append(_problem(folder / record.RUN, error))
    try:
        status = record.RunFolder(folder).read_status()
        run |= {"status": str(status["status"]), "error": status.get("error"), "step": status["step"]}
    except DAMAGE as error:
        problems.append(_problem(folder / record.STATUS, error))
    return run


def _description(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of ``Records.runs`` that come from ``run.json``. Raises: KeyError for a missing key."""
    target, dataset, sessions = stored["target"], stored["dataset"], trained(stored["sessions"])
    session: Mapping[str, Any] = sessions[-1] if sessions else {}
    row: dict[str, Any] = {
        **{f"target_{key}": target[key] for key in ("split", "metric", "mode", "selection")},
        "target_loss_unit": target.get("loss_unit", "nats"),  # only some older records have this key
        "chance": number(target.get("chance")),  # older records lack it
        "quantities": _quantities(stored),
        "predictions": stored.get("predictions"),  # older records lack it
        "precision": stored.get("precision") or precision_of(stored["setting"]),  # older records lack it
        "recipe_steps": float(stored["recipe_steps"]),
        "evaluation": stored.get("evaluation"),  # older records lack this key
        "builtin": dataset["builtin"],
        "dataset": dataset["name"],
        "parameters": stored["parameters"]["total"],
        "device": session.get("device"),
        "machine": _machine(session),
        "threads": number(session.get("threads")),
        "torch": session.get("versions", {}).get("torch"),
        "code": session.get("code"),
        "started": session.get("started"),
        **_history(stored["sessions"]),
        "time_state": run_state(sessions),
    }
    identity = ("task", "norm", "scale", "seed", "setting", "series", "impl")
    return row | {key: stored[key] for key in identity}


def _quantities(stored: Mapping[str, Any]) -> tuple[Quantity, ...] | None:
    """Return the quantities that a ``run.json`` names, or None, because older records name none."""
    return typed(tuple[Quantity, ...], stored["quantities"], "quantities") if "quantities" in stored else None


def _machine(session: Mapping[str, Any]) -> str | None:
    """Return the identity of a session's machine, with the number of processes if the run had several.

    Times of runs with different numbers of processes are thus never compared.
    """
    identity, processes = machine.of_session(session)[0], session.get("world_size")
    return f"{identity}, {processes} processes" if processes else identity


def _history(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ``commits`` of the sessions, and whether one of their work trees was ``dirty``; None if not known."""
    trees = [session["git"] for session in sessions if "git" in session]
    commits = dict.fromkeys(tree["commit"][:7] for tree in trees if tree.get("commit"))
    known = [tree["dirty"] for tree in trees if tree.get("dirty") is not None]
    return {"commits": ", ".join(commits) or None, "dirty": any(known) if known else None}


def _metrics(folder: Path, problems: list[str]) -> tuple[dict[str, Numbers], list[str]]:
    """Return the numeric columns of ``Records.metrics`` for one run, each of shape ``(rows,)``, and its splits."""
    try:
        rows, problem = record.RunFolder(folder).read_metrics()
    except DAMAGE as error:
        rows, problem = [], _problem(folder / record.METRICS, error)
    if problem:
        problems.append(problem)
    found = _arrays([own if isinstance(own := row.get("seconds"), dict) else {} for row in rows])
    seconds = {bucket: found.get(bucket, np.full(len(rows), math.nan)) for bucket in clock.BUCKETS}
    with np.errstate(over="ignore", invalid="ignore"):  # of impossible values
        time = sum((seconds[bucket] for bucket in clock.TIMED), np.zeros(len(rows)))
    columns = {"step": np.empty(0)} | _arrays(rows) | {"time": time}
    return columns | {f"seconds_{bucket}": seconds[bucket] for bucket in seconds}, [str(row["split"]) for row in rows]


def _is_possible(name: str, values: Numbers) -> NDArray[np.bool_]:
    """Return for each value of a column whether a run can have recorded it: NaN, or not too large for sums."""
    is_count = name in ("step", "epoch", "examples", "predictions", "time") or name.startswith("seconds_")
    return ~(np.abs(values) > (MOST if is_count else record.LARGEST))


def _arrays(rows: list[dict[str, Any]]) -> dict[str, Numbers]:
    """Return one array of shape ``(rows,)`` per key except split and seconds, with NaN for rows without the key.

    Rows with the same keys are transposed together, which is faster than going through all values one by one.
    """
    rows_by_keys: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        rows_by_keys.setdefault(tuple(row), []).append(place)
    arrays: dict[str, Numbers] = {}
    for keys, places in rows_by_keys.items():
        for key, values in zip(keys, zip(*(rows[place].values() for place in places), strict=True), strict=True):
            if key not in ("split", "seconds"):
                arrays.setdefault(key, np.full(len(rows), math.nan))[places] = _numbers(values)
    return arrays


def _numbers(values: tuple[Any, ...]) -> Numbers:
    """Return the values as floats, infinite ones for numbers beyond their range; NaN for null, which stands for NaN."""
    if set(map(type, values)) <= {int, float, NoneType}:
        with suppress(OverflowError):
            return np.array(values, dtype=float)
    return np.array([math.inf if _is_beyond(value) else number(value) for value in values], dtype=float)


def _is_beyond(value: object) -> bool:
    """Return whether a value is a number that is larger than every value that runs record."""
    return isinstance(value, int | float) and abs(value) > record.LARGEST


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
    return reason if reason.startswith(str(path)) else f"{path}: {reason}"
