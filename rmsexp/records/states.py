"""The states of runs, from their records alone.

Of the configs only those of runs that have not ended are read. Damage in the metrics is a problem of a run that has
ended; a process that works, or was killed, may leave an unfinished line, which it writes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp.records import record
from rmsexp.system import clock
from rmsexp.system.checks import MOST
from rmsexp.system.readers import read_yaml

LONGEST_SECONDS = 1e12  # a longer time in a record is damaged
UNKNOWN = "unknown"  # the state of a run whose status.json is missing or damaged
NOT_STARTED = "not started"  # the state of a run without a folder, of a campaign or of a sweep
STATES = ("running", "failed", UNKNOWN, "diverged", "interrupted", "finished")  # in the order in which they are shown


class Evaluation(NamedTuple):
    """An evaluation of a run. ``value``: of the task's target metric; None: it was not finite."""

    step: int
    split: str
    metric: str
    value: float | None


@dataclass(frozen=True)
class Run:
    """The state of a run.

    ``state``: one of ``STATES``. ``steps``: number of steps of the whole run; None: unknown, as are other values that
    are None. ``evaluation``: the last one. ``seconds``: time of the run's processes so far, without warm-up.
    ``error``: why the run diverged, failed or was interrupted. ``problems``: messages about damaged files.
    """

    folder: Path
    state: str
    step: int
    steps: int | None = None
    evaluation: Evaluation | None = None
    seconds: float | None = None
    seconds_per_step: float | None = None
    error: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def series(self) -> str:
        """The norm with its changed options, such as "prms+p=0.5"."""
        return self.folder.absolute().parent.name

    @property
    def setting(self) -> Path:
        """The folder of the run's setting."""
        return self.folder.absolute().parent.parent

    @property
    def seconds_left(self) -> float | None:
        """The time that the remaining steps take at the pace so far, with evaluations; 0 if the run has ended."""
        if self.state in record.ENDED:
            return 0.0
        if self.steps is None or self.seconds_per_step is None:
            return None
        return max(0.0, self.steps - self.step) * self.seconds_per_step


def read_run(folder: Path) -> Run:
    """Return the state of the run in a folder. What cannot be read is named in its ``problems``."""
    files, problems = record.RunFolder(folder), list[str]()

    def content(read: Callable[..., Any], *arguments: Any, missing: bool) -> Any:
        """Return what ``read`` returns, or {}, with a problem, for a damaged or (with ``missing``) missing file."""
        try:
            return read(*arguments)
        except FileNotFoundError as error:
            problems.extend([f"{error.filename} is missing"] if missing else [])
        except (OSError, ValueError) as error:
            problems.append(str(error))
        return {}

    status: Mapping[str, Any] = content(files.read_status, missing=True)
    state, step = status.get("status", UNKNOWN), status.get("step", 0)
    ended = state in record.ENDED
    target = content(files.read_run, missing=ended).get("target") or {}
    steps = step if state == "finished" else content(read_yaml, files.config_path, missing=False).get("max_steps")
    has_metrics = ended and (status.get("metrics") or {}).get("bytes") != 0  # 0 if it diverged at its first step
    rows, damage = content(files.read_metrics, missing=has_metrics) or ([], None)
    problems += [damage] if ended and damage else []
    last, seconds = (_step(rows[-1]), _seconds(rows[-1])) if rows else (0, None)
    return Run(
        folder,
        state,
        max(step, last) if state == "running" else step,
        steps if type(steps) is int and 0 <= steps <= MOST else None,
        _last_evaluation(rows, target),
        seconds,
        seconds / last if seconds is not None and last > 0 else None,
        status.get("error"),
        tuple(dict.fromkeys(problems)),
    )


def _last_evaluation(rows: Sequence[record.Row], target: Mapping[str, Any]) -> Evaluation | None:
    """Return the last evaluation in the rows: on the target's split, else that which selects, else any."""
    metric, splits = str(target.get("metric")), (target.get("split"), target.get("selection"))
    evaluations = [row for row in rows if row["split"] != "train" and metric in row]
    if not evaluations:
        return None
    by_split = {row["split"]: row for row in evaluations if row["step"] == evaluations[-1]["step"]}
    row = next((by_split[split] for split in splits if split in by_split), evaluations[-1])
    value = record.number(row[metric])
    return Evaluation(_step(row), row["split"], metric, None if math.isnan(value) else value)


def _step(row: record.Row) -> int:
    step = record.number(row["step"])
    return 0 if math.isnan(step) else int(step)


def _seconds(row: record.Row) -> float | None:
    """Return the time in all buckets of the clock but the warm-up, or None."""
    buckets = row.get("seconds")
    if not isinstance(buckets, dict):
        return None
    seconds = sum(record.number(buckets.get(name)) for name in clock.BUCKETS if name != "warmup")
    return seconds if 0 <= seconds <= LONGEST_SECONDS else None


def state(folder: Path, steps: int) -> str:
    """Return the state of a run that is to have a number of steps. One that finished earlier is to be continued.

    One whose record contradicts that it has ended is unknown.
    """
    if not folder.exists():
        return NOT_STARTED
    run = read_run(folder)
    if run.state in record.ENDED and run.problems:
        return UNKNOWN
    return "interrupted" if run.state == "finished" and run.step < steps else run.state
