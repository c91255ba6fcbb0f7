"""How far a campaign or an item of the paper is, and how long the runs that are left take, from records.

Times are uncontended seconds, one run after the other: those that the runs would take alone on their cores. For a run
that has ended they are the sum of its clock's buckets, divided by 1 + w. w is the time that its threads waited for a
core, over the time that they ran. A run that is being done goes on at its own pace. Another run takes as long as the
mean of the finished runs of its norm; if there are none, what a trial says, if one is made. Test splits are taken to
need as long as the validation split, as long as no final run of the norm has finished. That is too little for a task
that decodes test splits with a beam, and the validation split greedily.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.states import LONGEST_SECONDS, number_left, read_run

# A run of a campaign or an item, with its ``stage`` (final runs are evaluated on test splits), its ``norm``, and its
# ``folder`` below the results. It is hashable.
Planned = Any


class Cost(NamedTuple):
    """The uncontended seconds of a run, and those of one evaluation of its whole validation split."""

    seconds: float
    evaluation: float


Trial = Callable[[Planned], Cost | None]  # returns what a run takes, or None if that is not known


class PlannedRuns(NamedTuple):
    """The runs of a campaign or of items of the paper, by the records so far.

    Attributes:
        stages: the planned runs by stage, or by item.
        states: the state of each of them.
        coming: the runs that will follow, as far as that is known.
        longer: how much longer a final run is than a tuning run.
        most: the largest set of runs that may be left, and why; empty if it is the set above.
        lines: further lines to print.
        path: the file with the plan; None if there is none.
    """

    stages: Mapping[str, Sequence[Any]]
    states: Mapping[Any, str]
    coming: Sequence[Any] = ()
    longer: float = 1.0
    most: tuple[Sequence[Any], str] = ((), "")
    lines: Sequence[str] = ()
    path: Path | None = None


@dataclass(frozen=True)
class StageProgress:
    """A stage of a campaign, or an item of the paper.

    Attributes:
        name: its name.
        states: the number of its runs by state.
        coming: how many more runs it will need, as far as that is known.
        seconds: what the runs took that have ended, as far as that is known.
        seconds_left: what the others take; None if that is unknown.
    """

    name: str
    states: Mapping[str, int]
    coming: int = 0
    seconds: float = 0.0
    seconds_left: float | None = 0.0

    @property
    def left(self) -> int:
        """The number of its planned runs that have not ended."""
        return number_left(self.states)

    @property
    def ended(self) -> int:
        return sum(self.states.values()) - self.left


@dataclass(frozen=True)
class Progress:
    stages: Sequence[StageProgress]

    @property
    def seconds_left(self) -> float | None:
        return total(stage.seconds_left for stage in self.stages)

    @property
    def left(self) -> int:
        """The number of runs that have not ended, with those that are coming."""
        return sum(stage.left + stage.coming for stage in self.stages)

    @property
    def runs(self) -> str:
        """How many runs have ended, such as "17 of about 45 runs"."""
        ended = sum(stage.ended for stage in self.stages)
        about = "about " * any(stage.coming for stage in self.stages)
        return f"{ended} of {about}{ended + self.left} runs"


def progress(
    plan: PlannedRuns,
    finished: Mapping[Planned, Cost],
    begun: Mapping[Planned, float | None],
    spent: Mapping[Planned, Cost] | None = None,
    trial: Trial = lambda _: None,
) -> Progress:
    """Return the progress of runs.

    Args:
        plan: the runs.
        finished, begun, trial: as in :func:`seconds_left`.
        spent: the costs of the runs that have ended; by default those that are finished.
    """
    spent = finished if spent is None else spent
    left = [job for job, state in plan.states.items() if state not in record.ENDED]
    seconds = seconds_left([*left, *plan.coming], finished, begun, plan.longer, trial)

    def stage(name: str) -> StageProgress:
        jobs, later = plan.stages.get(name, ()), [job for job in plan.coming if job.stage == name]
        took = sum(spent[job].seconds for job in jobs if job in spent)
        needed = total(seconds[job] for job in (*jobs, *later) if job in seconds)
        return StageProgress(name, Counter(plan.states[job] for job in jobs), len(later), took, needed)

    return Progress([stage(name) for name in dict.fromkeys([*plan.stages, *(job.stage for job in plan.coming)])])


def total(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of the times is unknown."""
    known = list(seconds)
    return None if None in known else sum(time for time in known if time is not None)


def seconds_left(
    jobs: Collection[Planned],
    finished: Mapping[Planned, Cost],
    begun: Mapping[Planned, float | None],
    longer: float = 1.0,
    trial: Trial = lambda _: None,
) -> dict[Planned, float | None]:
    """Return the seconds that each of the runs needs until it ends; None if that is unknown.

    Args:
        jobs: runs that have not ended.
        finished: the costs of finished runs.
        begun: the seconds left of runs that have begun, as far as they are known.
        longer: how much longer a final run is than a tuning run.
        trial: is asked once for each norm without finished runs.
    """
    known: dict[tuple[str, bool], list[Cost]] = {}  # by norm, and whether the test splits were evaluated
    for job, found in finished.items():
        known.setdefault((job.norm, job.stage == "final"), []).append(found)

    def of_whole_run(job: Planned) -> float | None:
        is_final = job.stage == "final"
        if costs := known.get((job.norm, is_final)):
            return statistics.fmean(found.seconds for found in costs)
        if (job.norm, False) not in known:
            tried = trial(job)
            known[job.norm, False] = [] if tried is None else [tried]
        costs, factor, tests = known[job.norm, False], longer if is_final else 1.0, score.SCORED * is_final
        return statistics.fmean(factor * found.seconds + tests * found.evaluation for found in costs) if costs else None

    own = {job: begun.get(job) for job in jobs}
    return {job: of_whole_run(job) if seconds is None else seconds for job, seconds in own.items()}


# --- costs


def begun(results: Path, plan: PlannedRuns) -> dict[Planned, float | None]:
    """Return the seconds left of planned runs that have begun and not ended."""
    left = [job for job, state in plan.states.items() if state not in record.ENDED]
    return {job: read_run(results / job.folder).seconds_left for job in left if (results / job.folder).exists()}


def costs(results: Path, finished: Iterable[Planned]) -> dict[Planned, Cost]:
    """Return the costs of finished runs, without those whose records are damaged."""
    found: dict[Planned, Cost] = {}
    for job in finished:
        with suppress(OSError, ValueError):  # which is reported with the run
            found[job] = cost(results / job.folder)
    return found


def cost(folder: Path) -> Cost:
    """Return the cost of a run; 0 if it diverged before it wrote any metrics.

    Raises: OSError or ValueError if the record is damaged.
    """
    files = record.RunFolder(folder)
    try:
        rows = files.read_metrics()[0] if files.metrics_path.exists() else []
        if not rows:
            return Cost(0.0, 0.0)
        pace = 1 + waited(files)
        found = Cost(sum(rows[-1]["seconds"].values()) / pace, evaluations(rows)[1] / pace)
        if all(0 <= seconds <= LONGEST_SECONDS for seconds in found):
            return found
    except (LookupError, TypeError, AttributeError, ArithmeticError):
        pass
    raise ValueError(f"{files.metrics_path} lacks times; to repeat the run, remove its folder")


def waited(files: record.RunFolder) -> float:
    """Return w, the mean over the run's processes; those of which it is not known count as not having waited."""
    sessions = files.read_run()["sessions"]
    return statistics.fmean((session.get("contention") or {}).get("waited") or 0.0 for session in sessions)


def evaluations(rows: Iterable[record.Row]) -> tuple[float, float]:
    """Return the seconds of an evaluation of the first validation examples, and those of the whole split; 0: none."""
    ends: dict[int, float] = {}  # the seconds of evaluation up to each step with one
    whole = set()
    for row in rows:
        if row["split"] == score.INTERIM:
            ends[row["step"]] = row["seconds"]["eval"]
        elif row["split"] != "train":
            whole.add(row["step"])
    took = {step: ends[step] - before for step, before in zip(ends, [0.0, *ends.values()], strict=False)}
    first, both = ([seconds for step, seconds in took.items() if (step in whole) == known] for known in (False, True))
    interim = statistics.median(first) if first else 0.0
    return interim, max(0.0, statistics.median(both) - interim) if both else 0.0
