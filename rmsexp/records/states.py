"""Read a run's folder: what earlier processes left, to continue the run, and the state of the run, to show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rmsexp import config
from rmsexp.records import record
from rmsexp.system import clock
from rmsexp.system.checks import MOST
from rmsexp.system.command_line import ReportedError
from rmsexp.system.readers import read_yaml

LONGEST_SECONDS = 1e12  # a longer time in a record is damaged
UNKNOWN = "unknown"  # the state of a run whose status.json is missing or damaged
NOT_STARTED = "not started"  # the state of a run without a folder, of a campaign or of a sweep
STATES = ("running", "failed", UNKNOWN, "diverged", "interrupted", "finished")  # in the order in which they are shown
T = TypeVar("T")
ANEW = "start a new run with force=true, which keeps this one beside it"
NAME = "{}/{}/{}/seed{}"  # of a run, from its task, setting, series and seed
TOKENS = (record.SUBWORDS, record.WORDS)  # what gives the ids in the data their meaning
# What must be as it was when the run began: how it differs, and what else can be done than to start a new run.
DIFFERENCES = {
    "run": ("holds the run {before:.200}", "give the folder its old name back, or "),
    "config": ("was begun with another config ({before})", ""),
    "data": ("was trained on other data (digest {before:.12}, now {now:.12})", "set data.root to the old data, or "),
    **dict.fromkeys(TOKENS, ("was trained with other {key} than those that are now in data.root", "restore them, or ")),
}


class RefusedError(ReportedError, ValueError):
    """Refused: the run in a job's folder has another name, config or data, or is damaged. Status and log may change."""


@dataclass(frozen=True)
class Past:
    """The content of ``status.json``, ``run.json`` and ``config.yaml`` in the folder of a run.

    Each is None if its file is missing, as in a new run, or after a process died before it had written all of them.
    """

    files: record.RunFolder
    status: record.StatusContent | None
    run: record.RunContent | None
    resolved: dict[str, Any] | None

    @classmethod
    def read(cls, files: record.RunFolder) -> Past:
        """Read the files. Raises: RefusedError if one is damaged; OSError if one cannot be opened."""

        def content(read: Callable[[], T]) -> T | None:
            try:
                return read()
            except FileNotFoundError:
                return None
            except ValueError as error:
                advice = f"restore the file, or remove it, and it is written again; or {ANEW}"
                raise RefusedError(f"{error}; {advice}") from None

        return cls(
            files, content(files.read_status), content(files.read_run), content(lambda: read_yaml(files.config_path))
        )

    @property
    def step(self) -> int:
        """The step in the status, or 0."""
        return self.status["step"] if self.status else 0

    @property
    def checkpoint(self) -> int | None:
        """The step of the last checkpoint according to the status; 0: there is none; None: unknown."""
        return self.status.get("checkpoint") if self.status else None

    @property
    def sessions(self) -> list[record.Session]:
        """The sessions in ``run.json``, or an empty list."""
        return self.run["sessions"] if self.run else []

    def refuse_other(self, notes: Mapping[str, str] | None = None, **now: Any) -> None:
        """Raise RefusedError if what is known of the run now differs from what it began with.

        ``notes``: the task's notes, with the digests of its tokens. ``now``: the run's name as ``run``, its resolved
        config as ``config``, the digest of its data as ``data``. What is not given, or the record lacks, is not
        compared.
        """
        own: Mapping[str, Any] = self.run or {}
        began: dict[str, Any] = {**(own.get("notes") or {}), "config": self.resolved}
        if own:
            began["run"] = NAME.format(*(own.get(key) for key in ("task", "setting", "series", "seed")))
            began["data"] = own["dataset"]["digest"]
        tokens = {} if notes is None else {kind: notes.get(kind) for kind in TOKENS}
        for key, value in (now | tokens).items():
            before = began.get(key)
            if before is None:
                continue
            if key == "config":
                changed = config.differences(value, config.respelled(before))
                count = f"; {len(changed)} keys differ" if len(changed) > 1 else ""
                first = (f"{name:.80} is now {changed[name]!s:.40}{count}" for name in changed)
                before, value = next(first, None), None
            if before != value:
                how, instead = DIFFERENCES[key]
                raise RefusedError(
                    f"{self.files.path} {how.format(key=key, before=before, now=value)}; {instead}{ANEW}"
                )

    def has_ended(self, max_steps: int) -> bool:
        """Return whether the run diverged, or finished with at least ``max_steps`` steps, according to its status.

        Raises: RefusedError if it diverged or finished, but another file is missing or the metrics are damaged.
        """
        if self.status is None or self.status["status"] not in record.ENDED:
            return False
        files = self.files
        missing = [path for path in (files.run_path, files.config_path, files.metrics_path) if not path.exists()]
        problem = f"{missing[0]} is missing" if missing else files.read_metrics()[1]
        if problem is not None:
            raise RefusedError(f"{problem}; restore the file, or {ANEW}")
        return self.status["status"] == "diverged" or self.step >= max_steps


def name_of(job: config.Job) -> str:
    """Return the name of a run, which is the end of its folder's path."""
    return NAME.format(job.config.task, job.setting, job.series, job.config.seed)


# --- states


@dataclass(frozen=True)
class Run:
    """The state of a run.

    ``state``: one of ``STATES``, or ``NOT_STARTED``. ``steps``: number of steps of the whole run. ``evaluation``: the
    last one, such as "valid error 0.1234", or "". ``seconds``: time of the run's processes so far, without warm-up.
    ``seconds_left``: time of the remaining steps at the pace so far; 0 if the run has ended. These numbers are None if
    unknown. ``error``: why the run diverged, failed or was interrupted. ``problems``: messages about damaged files.
    """

    folder: Path
    state: str
    step: int
    steps: int | None = None
    evaluation: str = ""
    seconds: float | None = None
    seconds_left: float | None = None
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


def read_run(folder: Path) -> Run:
    """Return the state of the run in a folder; ``problems`` names the files that cannot be read.

    The config is read unless the run finished. A finished or diverged run with a missing or damaged file has the state
    ``UNKNOWN``. In other runs damaged lines of metrics are no problem: a cut last line is written again.
    """
    if not folder.exists():
        return Run(folder, NOT_STARTED, 0)
    files, problems = record.RunFolder(folder), list[str]()

    def content(read: Callable[..., Any], *arguments: Any, missing: bool) -> Any:
        """Return what ``read`` returns, or {}. A damaged file is a problem; a missing one only with ``missing``."""
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
    run = content(files.read_run, missing=ended)
    target = run.get("target") or {}
    steps = step if state == "finished" else content(read_yaml, files.config_path, missing=False).get("max_steps")
    steps = steps if type(steps) is int and 0 <= steps <= MOST else None
    has_metrics = ended and (status.get("metrics") or {}).get("bytes") != 0  # 0 if it diverged at its first step
    rows, damage = content(files.read_metrics, missing=has_metrics) or ([], None)
    problems += [damage] if ended and damage else []
    last, seconds = (record.number(rows[-1]["step"]), _seconds(rows[-1])) if rows else (0.0, None)
    # that of an interrupted run is its checkpoint's; a Recorder has none
    step = int(max(step, last)) if state == "running" or run.get("impl") == "own" else step
    left = None
    if seconds is not None and steps is not None and last > 0:
        left = max(0, steps - step) * seconds / last
    return Run(
        folder,
        UNKNOWN if ended and problems else state,
        step,
        steps,
        _last_evaluation(rows, target),
        seconds,
        0.0 if ended else left,
        status.get("error"),
        tuple(dict.fromkeys(problems)),
    )


def _last_evaluation(rows: Sequence[record.Row], target: Mapping[str, Any]) -> str:
    """Return the last evaluation as text, or "": on the target's split, else the selection split, else any."""
    metric, splits = str(target.get("metric")), (target.get("split"), target.get("selection"))
    evaluations = [row for row in rows if row["split"] != "train" and metric in row]
    by_split = {row["split"]: row for row in evaluations if row["step"] == evaluations[-1]["step"]}
    shown = [split for split in (*splits, *by_split) if split in by_split]
    return f"{shown[0]} {metric} {record.number(by_split[shown[0]][metric]):.4f}" if shown else ""


def _seconds(row: record.Row) -> float | None:
    """Return the seconds in all buckets of the clock but the warm-up; None if they are missing or impossible."""
    buckets = row.get("seconds")
    if not isinstance(buckets, dict):
        return None
    seconds = sum(record.number(buckets.get(name)) for name in clock.BUCKETS if name != "warmup")
    return seconds if 0 <= seconds <= LONGEST_SECONDS else None
