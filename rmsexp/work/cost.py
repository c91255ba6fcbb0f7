"""How long the runs of a campaign take, in uncontended seconds: those they would take alone on their cores.

The seconds of a run are the sum of its clock's buckets, divided by 1 + w. w is the time that its threads waited for a
core, over the time that they ran. A run that is not done takes as long as the mean of the finished runs of its norm on
machines like this one; if there are none, as a trial of 20 steps says. Test splits are taken to need as long as the
validation split, as long as no final run of the norm has finished. That is too little for a task that decodes test
splits with a beam, and the validation split greedily.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp import config
from rmsexp.campaign.campaign_file import Job, Stage
from rmsexp.campaign.question import Question
from rmsexp.campaign.results import Result
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.system import atomic, machine_lock
from rmsexp.system.command_line import ReportedError, report, value_word
from rmsexp.train import quiet
from rmsexp.work import runner

TRIAL_STEPS = 20
# With this schedule a trial has an evaluation of the first validation examples at half of its steps, and one of the
# whole split, too, at its end.
TRIAL_WORDS = (
    f"max_steps={TRIAL_STEPS}",
    f"schedule.steps={TRIAL_STEPS // 2 * score.EVALUATIONS}",
    *(f"{key}={TRIAL_STEPS}" for key in ("log_every", "checkpoint_every")),
)


class Cost(NamedTuple):
    """The uncontended seconds of a run, and those of one evaluation of its whole validation split."""

    seconds: float
    evaluation: float


def spent(question: Question, results: Mapping[Job, Result]) -> dict[Job, Cost]:
    """Return the cost of each run that has ended."""
    return {job: cost(question.results / job.folder) for job, result in results.items() if result.ended}


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
        return Cost(sum(rows[-1]["seconds"].values()) / pace, _evaluations(rows)[1] / pace)
    except (LookupError, TypeError, AttributeError):
        raise ValueError(f"{files.metrics_path} lacks times; to repeat the run, remove its folder") from None


def waited(files: record.RunFolder) -> float:
    """Return w, the mean over the run's processes; those of which it is not known count as not having waited."""
    reports = [session.get("contention") for session in files.read_run()["sessions"]]
    return statistics.fmean((report.get("waited") if report else None) or 0.0 for report in reports)


def is_from_this_machine(folder: Path) -> bool:
    """Return whether all processes of a run had the processor, caches and cores of this machine (same machine id)."""
    sessions = record.RunFolder(folder).read_run()["sessions"]
    return {session.get("machine", {}).get("id") for session in sessions} == {quiet.machine_id()}


def _evaluations(rows: Iterable[record.Row]) -> tuple[float, float]:
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


def estimates(
    question: Question,
    jobs: Iterable[Job],
    spent: Mapping[Job, Cost],
    results: Mapping[Job, Result],
    report: Callable[[str], None],
) -> dict[Job, float]:
    """Return the estimated seconds of each of the jobs. ``report`` gets a line before each trial.

    Raises: ReportedError if a trial fails.
    """
    known: dict[tuple[str, bool], list[Cost]] = {}  # by norm, and whether the test splits were evaluated
    for job, found in spent.items():
        if results[job].status == "finished" and is_from_this_machine(question.results / job.folder):
            known.setdefault((job.norm, job.stage == "final"), []).append(found)
    means: dict[tuple[str, bool], float] = {}
    for norm, final in dict.fromkeys((job.norm, job.stage == "final") for job in jobs):
        costs, tests = known.get((norm, final)), 0
        if not costs:
            if (norm, False) not in known:
                report(f"trying {TRIAL_STEPS} steps of {norm}, to estimate the cost")
                known[norm, False] = [trial(question, norm)]
            costs, tests = known[norm, False], score.SCORED if final else 0
            if final and question.tuning_words:  # which may have fewer steps
                longer = _schedule(question, "final", norm).steps / _schedule(question, "tune", norm).steps
                costs = [Cost(seconds * longer, evaluation) for seconds, evaluation in costs]
        means[norm, final] = statistics.fmean(seconds + tests * evaluation for seconds, evaluation in costs)
    return {job: means[job.norm, job.stage == "final"] for job in jobs}


def trial(question: Question, norm: str) -> Cost:
    """Return the cost of a whole run, from a trial of ``TRIAL_STEPS`` steps, which does not evaluate test splits.

    Raises: ReportedError if it fails; SystemExit if a signal stops it.
    """

    schedule = _schedule(question, "tune", norm)
    content = replace(question.content, tune=replace(question.content.tune, runs={}))
    without = "+".join(part for part in norm.split("+") if not part.startswith("schedule."))

    def job(words: Sequence[str]) -> config.Job:
        own = unlogged([*question.words, *question.tuning_words])
        changed = replace(question, content=content, words=(*own, *trial_words(schedule), *words))
        return changed.job("tune", without, question.grid[0], question.tuning_seeds[0])

    with tried(question.folder, norm, job) as files:
        return extrapolated(files, schedule.steps)


def _schedule(question: Question, stage: Stage, norm: str) -> Any:
    return question.job(stage, norm, question.grid[0], question.tuning_seeds[0]).config.schedule


def unlogged(words: Iterable[str]) -> list[str]:
    """Return the words without those about loggers: a trial is no run, and leaves nothing behind."""
    return [word for word in words if not word.lstrip("+~").startswith(("logger=", "logger."))]


def trial_words(schedule: object) -> tuple[str, ...]:
    """Return the words of a trial of a run with this schedule.

    A warm-up or a period too long for the trial's schedule would be refused; what a step costs does not depend on them.
    """
    return (*TRIAL_WORDS, *(f"schedule.{key}=1" for key in ("warmup", "period") if getattr(schedule, key, None)))


@contextmanager
def tried(folder: Path, name: str, job: Callable[[Sequence[str]], config.Job]) -> Iterator[record.RunFolder]:
    """Do a trial in a hidden folder below ``folder``, which is removed after the context, and return its record.

    ``name``: that of the trial in messages. ``job``: returns it, with these further words.

    Raises: ReportedError if it fails; SystemExit if a signal stops it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=folder) as results:
        run = job([value_word("results", results)])
        with (
            machine_lock.working(report) as pause,  # a timing on this machine is not disturbed
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
        ):
            outcome = runner.execute(run, runner.Around(pause=pause))
        if outcome.signum is not None:
            raise SystemExit(128 + outcome.signum)
        if outcome.status == "failed":
            reason, written = str(outcome.error), record.RunFolder(run.folder).traceback_path
            if written.exists():
                kept = folder / written.name
                atomic.write_atomic(kept, written.read_bytes())
                reason = re.sub(r" \(traceback in .*\)$", f" (traceback in {kept})", reason)
            raise ReportedError(f"the trial of {name} failed: {reason}")
        yield record.RunFolder(run.folder)


def extrapolated(files: record.RunFolder, steps: int) -> Cost:
    """Return the cost of a run of ``steps`` steps, from the record of a trial; 0 if the trial diverged."""
    rows = files.read_metrics()[0] if files.metrics_path.exists() else []
    if not rows or rows[-1]["step"] < TRIAL_STEPS:
        return Cost(0.0, 0.0)
    clock, (interim, whole) = rows[-1]["seconds"], _evaluations(rows)
    training = (clock["data"] + clock["train"]) * steps / TRIAL_STEPS
    evaluation = score.EVALUATIONS * interim + score.SCORED * whole
    pace = 1 + waited(files)
    return Cost((clock["warmup"] + training + evaluation) / pace, whole / pace)
