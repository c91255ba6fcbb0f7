"""How long the runs of a campaign take, in uncontended seconds: those they would take alone on their cores.

The seconds of a run are the sum of its clock's buckets, divided by 1 + w. w is the time that its threads waited for a
core, over the time that they ran. A run that is not done takes as long as the mean of the runs of its norm that are,
and otherwise as a trial of 20 steps says.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from rmsexp import record, runner
from rmsexp.campaign.question import Question
from rmsexp.campaign_file import Job
from rmsexp.compare.records.campaigns import Result
from rmsexp.rules import score

TRIAL_STEPS = 20
# A trial has one evaluation of whole splits; a run has SCORED of these, and others whose cost is this share of it.
INTERIM_SHARE = 0.1

Key = tuple[str, bool]  # a norm, and whether the test splits are evaluated


def seconds(folder: Path) -> float:
    """Return the uncontended seconds of a run. Raises: OSError, ValueError or LookupError if the record is damaged."""
    files = record.RunFolder(folder)
    rows, _ = files.read_metrics()
    return sum(rows[-1]["seconds"].values()) / (1 + _waited(files))


def _waited(files: record.RunFolder) -> float:
    """Return w, the mean over the run's processes; those of which it is not known count as not having waited."""
    sessions = files.read_run()["sessions"]
    return statistics.fmean((session.get("contention") or {}).get("waited") or 0.0 for session in sessions)


def spent(question: Question, results: dict[Job, Result]) -> dict[Job, float]:
    """Return the seconds of each run that has ended."""
    return {job: seconds(question.results / job.folder) for job, result in results.items() if result.ended}


def estimates(
    question: Question, jobs: Iterable[Job], spent: dict[Job, float], report: Callable[[str], None]
) -> dict[Job, float]:
    """Return the estimated seconds of each of the jobs."""
    known: dict[Key, list[float]] = {}
    for job, value in spent.items():
        known.setdefault(_key(job), []).append(value)
    found: dict[Job, float] = {}
    for job in jobs:
        if _key(job) not in known:
            known[_key(job)] = [_tried(question, job, report)]
        found[job] = statistics.fmean(known[_key(job)])
    return found


def _key(job: Job) -> Key:
    return job.norm, job.stage == "final"


def _tried(question: Question, job: Job, report: Callable[[str], None]) -> float:
    """Return the seconds that a run would take, from a trial of ``TRIAL_STEPS`` steps in a hidden folder.

    The trial does not evaluate test splits, not even for a final run.
    """
    trial = replace(question, words=(*question.words, f"results={question.folder / '.trials'}"))
    words = [f"max_steps={TRIAL_STEPS}", f"log_every={TRIAL_STEPS}", f"checkpoint_every={TRIAL_STEPS}"]
    run = replace(trial, words=(*trial.words, *words)).job("tune", job.norm, job.rate, job.seed)
    report(f"trying {TRIAL_STEPS} steps of {job.norm}, to estimate the cost")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        outcome = runner.execute(run)
    if outcome.status == "failed":
        raise ValueError(f"{job.norm}: {outcome.error}")
    return extrapolated(record.read(run.folder), run.config.schedule.steps)


def extrapolated(trial: record.Record, steps: int) -> float:
    """Return the uncontended seconds of a run of ``steps`` steps from the record of a trial of ``TRIAL_STEPS``."""
    spent: dict[str, Any] = trial.metrics[-1]["seconds"]
    evaluations = score.SCORED + INTERIM_SHARE * (score.EVALUATIONS - score.SCORED)
    training = (spent["data"] + spent["train"]) * steps / TRIAL_STEPS
    return (spent["warmup"] + training + spent["eval"] * evaluations) / (1 + _waited(record.RunFolder(trial.folder)))
