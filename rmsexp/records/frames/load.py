"""Load records of runs as data frames. What cannot be read is listed in ``problems``; all else is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp.config.schema import expanded, flatten
from rmsexp.records import record
from rmsexp.records.frames.names import FLOAT32, norm_of
from rmsexp.records.frames.time_states import run_state
from rmsexp.records.record import IDENTITY, number
from rmsexp.rules.quantities import Quantity
from rmsexp.system import clock, machine
from rmsexp.system.checks import MOST
from rmsexp.system.readers import read_yaml, typed

# what reading a missing or damaged file can raise
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

RUN_COLUMNS = (
    *("folder", "task", "setting", "scale", "series", "norm", "impl", "seed", "status", "error", "step"),
    *("builtin", "dataset", "device", "machine", "threads", "precision", "torch", "code", "commits", "dirty"),
    *("started", "time_state"),
    *("recipe_steps", "evaluation"),
    *("target_split", "target_metric", "target_mode", "target_selection", "target_loss_unit", "quantities"),
    *("predictions", "parameters", "chance"),
)


@dataclass(frozen=True, eq=False)  # each object is a key of its own in caches
class Records:
    """Runs and their metrics, which must not be changed.

    Attributes:
        runs: one row per run, columns ``RUN_COLUMNS``. ``machine``: the identity of the machine, with the number of
            processes if the run had several; the name of its processor in older records. ``code``: the digest of the
            code. ``commits``: the commits that trained the run. ``dirty``: whether there were uncommitted changes.
            ``started``: when the last session began. ``quantities``: those that the task names, a tuple, or None in
            older records. ``predictions``: what the loss is averaged over, such as tokens; None in older records.
            ``chance``: the target metric of a model that has learnt nothing; NaN if it is not known. ``precision``: the
            type of numbers in which a run computes.
        metrics: one row per readable line of ``metrics.jsonl``: the columns ``IDENTITY``, ``split``, ``step``, ``time``
            (the sum of the seconds in the clock's buckets data and train since the run began), ``seconds_<bucket>``,
            and one column per metric.
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
        """Return the runs and metrics of one task and setting, which may be none, with the problems of these runs.

        If all runs are of this setting, return this object itself, for which results are cached.
        """
        of_setting = (self.runs["task"] == task) & (self.runs["setting"] == setting)
        return self if of_setting.all() else self.only(self.runs.loc[of_setting, "folder"])

    def only(self, folders: Iterable[str], setting: str | None = None) -> Records:
        """Return the runs in these folders and their metrics, which may be none, with the problems of these runs.

        ``setting``: a folder; the problems are then those below it, also of runs that were left out.
        """
        kept = set(folders)
        runs, metrics = (
            frame[frame["folder"].isin(kept)].reset_index(drop=True) for frame in (self.runs, self.metrics)
        )
        below = tuple(f"{folder}{os.sep}" for folder in (kept if setting is None else [setting]))
        return Records(runs, metrics, [problem for problem in self.problems if problem.startswith(below)])

    def settings(self) -> dict[Path, Records]:
        """Return the records of each setting, with its problems, by its folder ``<root>/<task>/<setting>``."""
        setting_of_run = self.runs["folder"].map(lambda folder: str(Path(folder).parents[1]))
        return {
            Path(str(setting)): self.only(folders, str(setting))
            for setting, folders in self.runs["folder"].groupby(setting_of_run)
        }


def load(*roots: str | Path) -> Records:
    """Load every run below one of the folders ``roots``.

    A run whose ``run.json`` names another series or seed than its folder is a copy: it is left out, with a line in
    ``problems``; and so is a run near the root of the file system, whose path has too few folders. A run that lies in
    two of ``roots`` counts twice. A folder that does not exist is a problem.
    """
    paths = [expanded(root) for root in roots]
    found = [f"there is no folder {path}" for path in paths if not path.is_dir()]
    folders = dict.fromkeys(folder for path in paths for folder in record.find_runs(path))
    stray = [folder for folder in folders if len(folder.absolute().parts) < 5]  # root, task, setting, series, seed
    found += [f"{folder} is left out: it is no folder <task>/<setting>/<series>/seed<number>" for folder in stray]
    read = [_read(folder, found) for folder in folders if folder not in stray]
    runs = pd.DataFrame([run for run, _ in read], columns=list(RUN_COLUMNS))
    copies = _copies(runs)
    kept = ~runs["folder"].isin(list(copies))
    problems = [line for line in found if not line.startswith(tuple(f"{folder}{os.sep}" for folder in copies))]
    runs = runs[kept].reset_index(drop=True)
    metrics = _metrics(runs, [rows for (_, rows), is_kept in zip(read, kept, strict=True) if is_kept], problems)
    reached = metrics.groupby("folder", observed=True)["step"].max().reindex(runs["folder"]).to_numpy(float)
    runs["step"] = np.fmax(runs["step"].to_numpy(float), reached).astype(int)
    return Records(runs, metrics, problems + list(copies.values()))


def _copies(runs: pd.DataFrame) -> dict[str, str]:
    """Return a line for each run whose ``run.json`` names another series or seed than its folder, by this folder.

    A renamed folder of a setting is read as it is.
    """
    copies = {}
    for run in runs.to_dict("records"):
        path, name = Path(run["folder"], record.RUN), f"{run['series']}/seed{run['seed']}"
        if run["seed"] != -1 and path.absolute().parts[-3:-1] != tuple(name.split("/")):
            copies[run["folder"]] = f"{path} describes the run {name}, so this copy is left out"
    return copies


def _read(folder: Path, problems: list[str]) -> tuple[dict[str, Any], list[record.Row]]:
    """Return the row of a run in ``Records.runs``, and the readable rows of its metrics.

    Add a line to ``problems`` for each file that cannot be read. If ``run.json`` cannot be read, the task, setting,
    series and seed come from the names of the folders.
    """
    task, setting, series, seed = folder.absolute().parts[-4:]
    run: dict[str, Any] = {"folder": str(folder), "task": task, "setting": setting, "scale": norm_of(setting)}
    run |= {"series": series, "norm": norm_of(series), "seed": int(digits) if (digits := seed[4:]).isdigit() else -1}
    run |= {"time_state": "disturbed", "status": "unknown", "error": None, "step": 0}
    files, rows = record.RunFolder(folder), list[record.Row]()
    try:
        run |= _description(files.read_run())
    except DAMAGE as error:
        problems.append(_problem(folder / record.RUN, error))
    try:
        status = files.read_status()
        run |= {"status": str(status["status"]), "error": status.get("error"), "step": status["step"]}
    except DAMAGE as error:
        problems.append(_problem(folder / record.STATUS, error))
    try:
        rows, problem = files.read_metrics()
        problems += [problem] if problem else []
    except DAMAGE as error:
        problems.append(_problem(folder / record.METRICS, error))
    return run, rows


def options(folder: str | Path) -> dict[str, Any]:
    """Return the config of a run by dotted keys; {} if it cannot be read, which loading the run reports."""
    with suppress(*DAMAGE):
        return flatten(read_yaml(Path(folder, record.CONFIG)))
    return {}


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
    return reason if reason.startswith(str(path)) else f"{path}: {reason}"


def _description(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of ``Records.runs`` that come from ``run.json``. Raises: KeyError for a missing key.

    Older records lack the keys that are read with ``get``.
    """
    target, dataset, sessions = stored["target"], stored["dataset"], stored["sessions"]
    sessions = [each for each in sessions if each.get(record.TRAINED, True)] or sessions  # whose time is the run's
    session: Mapping[str, Any] = sessions[-1] if sessions else {}
    machine_id, processes = machine.of_session(session)[0], session.get("world_size")
    quantities = stored.get("quantities")
    trees = [each["git"] for each in stored["sessions"] if "git" in each]
    commits = dict.fromkeys(tree["commit"][:7] for tree in trees if tree.get("commit"))
    known = [tree["dirty"] for tree in trees if tree.get("dirty") is not None]
    return {
        **{key: stored[key] for key in ("task", "norm", "scale", "seed", "setting", "series", "impl")},
        **{f"target_{key}": target[key] for key in ("split", "metric", "mode", "selection")},
        "target_loss_unit": target.get("loss_unit", "nats"),
        "chance": number(target.get("chance")),
        "quantities": None if quantities is None else typed(tuple[Quantity, ...], quantities, "quantities"),
        "predictions": stored.get("predictions"),
        "precision": stored.get("precision") or FLOAT32,
        "recipe_steps": number(stored["recipe_steps"]),
        "evaluation": stored.get("evaluation"),
        "builtin": dataset["builtin"],
        "dataset": dataset["name"],
        "parameters": stored["parameters"]["total"],
        "device": session.get("device"),
        "machine": f"{machine_id}, {processes} processes" if processes else machine_id,
        "threads": number(session.get("threads")),
        "torch": session.get("versions", {}).get("torch"),
        "code": session.get("code"),
        "started": session.get("started"),
        "commits": ", ".join(commits) or None,
        "dirty": any(known) if known else None,
        "time_state": run_state(sessions),
    }


def _metrics(runs: pd.DataFrame, rows_of_runs: Sequence[Sequence[record.Row]], problems: list[str]) -> pd.DataFrame:
    """Return ``Records.metrics``, without rows whose step is not known; ``rows_of_runs``: the metrics of each run.

    Impossible values become NaN; for each file and column with some, a line is added to ``problems``. The columns of
    text are categorical, since many rows share few values.
    """
    places = np.repeat(np.arange(len(runs)), [len(rows) for rows in rows_of_runs])
    rows = [row for own in rows_of_runs for row in own]
    identity = {key: pd.Categorical(runs[key], runs[key].unique()) if key != "seed" else runs[key] for key in IDENTITY}
    frame = pd.DataFrame(identity).iloc[places].reset_index(drop=True)
    frame["split"] = pd.Categorical([str(row["split"]) for row in rows])
    buckets = [own if isinstance(own := row.get("seconds"), dict) else {} for row in rows]
    seconds = {bucket: _floats([own.get(bucket) for own in buckets]) for bucket in clock.BUCKETS}
    values = {"step": _floats([row["step"] for row in rows])}
    values |= {"time": sum((seconds[bucket] for bucket in clock.TIMED), np.zeros(len(rows)))}
    values |= {f"seconds_{bucket}": seconds[bucket] for bucket in seconds}
    others = dict.fromkeys(key for row in rows for key in row if key not in record.NO_METRICS)
    values |= {key: _floats([row.get(key) for row in rows]) for key in others}
    for name, column in values.items():
        is_count = name in ("step", "epoch", "examples", "predictions", "time") or name.startswith("seconds_")
        impossible = np.abs(column) > (MOST if is_count else record.LARGEST)
        for place in np.unique(places[impossible]):
            path = Path(runs["folder"].iloc[place], record.METRICS)
            problems.append(f"{path}: impossible values of {name} are left out")
        values[name] = np.where(impossible, math.nan, column)
    return pd.concat([frame, pd.DataFrame(values)], axis=1).dropna(subset="step").reset_index(drop=True)


def _floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return values from JSON as floats: NaN for what is no number; what is too large for a float becomes infinite."""
    numbers = (value if isinstance(value, int | float) else math.nan for value in values)
    return np.array([float(value) if abs(value) < 1e308 or value != value else math.inf for value in numbers], float)
