"""Do the runs of a campaign, one after the other, beside other workers on this machine or on others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmsexp import lock, machine_lock, record, runner
from rmsexp.campaign import plan, registration
from rmsexp.campaign.question import Question
from rmsexp.campaign_file import Job
from rmsexp.compare.records.campaigns import Campaign, Result

POLL_SECONDS = 5.0  # between two looks at runs that other workers have locked
STAGES = {"pilot": "pilot", "tune": "tuning", "final": "final"}
COMMON_CAUSE = 2  # number of runs that fail with the same message before a worker stops: the next ones would, too


@dataclass
class Worker:
    """Does the runs of a campaign.

    ``n_jobs``: the number of workers that share this machine's cores. ``report``: gets lines about the progress.
    ``failed``: the runs that failed since this worker began, here or elsewhere, with their messages. They are not tried
    again.
    """

    question: Question
    n_jobs: int
    report: Callable[[str], None]
    failed: dict[Job, str] = field(default_factory=dict)
    _before: dict[Job, dict[str, Any]] = field(default_factory=dict)  # the statuses of runs that had failed before

    def work(self) -> int | None:
        """Do runs until all have ended or failed. Return the number of the signal that stopped this worker, or None.

        A run that another worker has locked is left to it. If no other is left, wait until one ends or is free again.
        The worker also returns if several runs failed for the same reason.

        Raises: registration.OtherCommitError before a final run, if the final runs come from another commit.
        """
        campaign, results = plan.update(self.question)
        self._before = {job: status for job in campaign.jobs if (status := self._failure(job)) is not None}
        with machine_lock.working(self.report) as pause:
            while left := self._left(campaign, results):
                outcome = self._one_of(campaign, left, pause)
                if outcome is None:
                    threading.Event().wait(POLL_SECONDS)
                elif outcome.signum is not None:
                    return outcome.signum
                if cause := self._common_cause():
                    self.report(f"stopped, because {COMMON_CAUSE} runs failed for the same reason: {cause}")
                    return None
                campaign, results = plan.update(self.question)
        return None

    def _failure(self, job: Job) -> dict[str, Any] | None:
        """Return the status of a run that failed; None for any other run."""
        try:
            status = record.RunFolder(self.question.results / job.folder).read_status()
        except (OSError, ValueError):
            return None
        return status if status["status"] == "failed" else None

    def _left(self, campaign: Campaign, results: Mapping[Job, Result]) -> list[Job]:
        """Return the runs that have neither ended nor failed since this worker began."""
        left = [job for job in campaign.jobs if not results[job].ended and job not in self.failed]
        for job in left:
            status = self._failure(job)
            if status is not None and status != self._before.get(job):  # another worker has tried it
                self.failed[job] = str(status["error"])
        return [job for job in left if job not in self.failed]

    def _one_of(self, campaign: Campaign, jobs: list[Job], pause: machine_lock.Pause) -> runner.Outcome | None:
        """Do the first of the runs that is not locked, and return its outcome; None if all are locked."""
        for job in jobs:
            if record.RunFolder(self.question.results / job.folder).is_locked():
                continue
            if job.stage == "final":
                with plan.locked(self.question):
                    registration.register(self.question, registration.code())
            self.report(self._headline(campaign, job))
            try:
                outcome = runner.execute(self.question.job(job.stage, job.norm, job.rate, job.seed), self.n_jobs, pause)
            except lock.RunLockedError:
                continue
            if outcome.status == "failed":
                self._fail(job, str(outcome.error))
            elif outcome.already:
                self._check(job)
            elif outcome.status != "finished":
                self.report(f"{outcome.status} at step {outcome.step}: {job.folder}: {outcome.error}")
            return outcome
        return None

    def _headline(self, campaign: Campaign, job: Job) -> str:
        runs = [other for other in campaign.jobs if other.stage == job.stage]
        where = f"{job.norm} {self.question.rate}={job.rate:g} seed={job.seed}"
        return f"{STAGES[job.stage]} run {runs.index(job) + 1} of {len(runs)}: {where}"

    def _fail(self, job: Job, message: str) -> None:
        self.failed[job] = message
        self.report(f"failed: {job.folder}: {message}")

    def _check(self, job: Job) -> None:
        """Note a run that had ended already, but cannot count, so that it is not tried for ever."""
        _, results = plan.update(self.question)
        if not results[job].ended:
            score = " ".join(self.question.score if job.stage == "final" else self.question.tuned_by)
            self._fail(job, f"it has ended without its evaluations of {score}; to repeat it, remove its folder")

    def _common_cause(self) -> str | None:
        messages = list(self.failed.values())
        return next((message for message in messages if messages.count(message) >= COMMON_CAUSE), None)
