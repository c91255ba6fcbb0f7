"""Load records of runs as data frames. What cannot be read is listed in ``problems``; all else is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from rmsexp.records import record
from rmsexp.records.frames.names import FLOAT32, PRECISION
from rmsexp.records.frames.one_run import DAMAGE as DAMAGE
from rmsexp.records.frames.one_run import LoadedRun, load_run
from rmsexp.records.record import number as number
from rmsexp.system import clock

RUN_COLUMNS = (
    *("folder", "task", "setting", "scale", "series", "norm", "impl", "seed", "status", "error", "step"),
    *("builtin", "dataset", "device", "machine", "threads", "precision", "torch", "code", "commits", "dirty"),
    *("started", "time_state"),
    *("recipe_steps", "evaluation"),
    *("target_split", "target_metric", "target_mode", "target_selection", "target_loss_unit", "quantities"),
    *("predictions", "parameters", "chance"),
)
IDENTITY = ("folder", "task", "setting", "series", "seed")
METRIC_COLUMNS = (*IDENTITY, "split", "step", "time", *(f"seconds_{bucket}" for bucket in clock.BUCKETS))


@dataclass(frozen=True, eq=False)  # each object is a key of its own in caches
class Records:
    """Runs and their metrics, which nobody changes.

    Attributes:
        runs: one row per run, columns ``RUN_COLUMNS``. ``machine``: the identity of the machine, or the name of its
            processor in older records. ``code``: the digest of the code. ``commits``: the commits that trained the run.
            ``dirty``: whether there were uncommitted changes. ``started``: when the last session began.
            ``quantities``: those that the task names, a tuple, or None in older records. ``predictions``: what the loss
            is averaged over, such as tokens; None in older records. ``chance``: the target metric of a model that has
            learnt nothing; NaN if it is not known. ``precision``: in which runs
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
        """Return the runs and metrics of one task and setting, which may be none, with the problems of these runs.

        If all runs are of this setting, return these records themselves: caches know them.
        """
        of_setting = (self.runs["task"] == task) & (self.runs["setting"] == setting)
        return self if of_setting.all() else self.only(self.runs.loc[of_setting, "folder"])

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


def load(root: str | Path) -> Records:
    """Load every run below ``root``.

    Copies of runs that lie in the folder of another run are left out, so that no run counts twice, and none counts as a
    run of another setting.
    """
    loaded = [load_run(folder) for folder in record.find_runs(Path(root))]
    misplaced = _misplaced([part.run for part in loaded])
    loaded = [part for part in loaded if part.run["folder"] not in misplaced]
    runs = _labelled(pd.DataFrame([part.run for part in loaded], columns=list(RUN_COLUMNS)))
    problems = [problem for part in loaded for problem in part.problems]
    return Records(runs, _metrics(runs, loaded), problems + list(misplaced.values()))


def _labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with their precision in ``series`` where the runs of a setting differ in it."""
    folders = runs["folder"].map(lambda folder: str(Path(folder).absolute().parents[1]))
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


def _metrics(runs: pd.DataFrame, loaded: Sequence[LoadedRun]) -> pd.DataFrame:
    """Return ``Records.metrics``, without rows whose step is NaN.

    The columns of text are categorical, since many rows share few values. ``runs``: ``Records.runs``, of which
    ``loaded`` has the metrics.
    """
    lengths = [len(part.splits) for part in loaded]
    columns: dict[str, Any] = {}
    for key in IDENTITY:
        codes, names = pd.factorize(runs[key])
        repeated = np.repeat(codes, lengths)
        names = pd.Index(names, dtype=object)  # conversions from PyArrow's strings took a tenth of a report's time
        columns[key] = runs[key].to_numpy()[:0] if runs.empty else pd.Categorical.from_codes(repeated, names)
    columns["seed"] = np.repeat(runs["seed"].to_numpy(), lengths)
    columns["split"], total = None, sum(lengths)
    numbers = {key: np.full(total, math.nan) for key in METRIC_COLUMNS if key not in columns}
    for part, length, end in zip(loaded, lengths, np.cumsum(lengths, dtype=int), strict=True):
        for key in (key for key in part.columns if key not in columns):
            if key not in numbers:
                numbers[key] = np.full(total, math.nan)
            numbers[key][end - length : end] = part.columns[key]
    splits = [part.splits for part in loaded]
    columns["split"] = union_categoricals(splits, sort_categories=True) if splits else pd.Categorical([])
    columns |= numbers
    frame = pd.DataFrame(columns, copy=False)
    unknown = frame["step"].isna()
    return frame[~unknown].reset_index(drop=True) if unknown.any() else frame
