"""Do the runs of a campaign, one after the other, beside other workers on this machine or on others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rmsexp import machine_lock, record, runner
from rmsexp.campaign import plan
from rmsexp.campaign.question import Question
from rmsexp.campaign_file import Job
from rmsexp.train import clock, provenance

POLL_SECONDS = 5.0  # between two looks at runs that other workers have locked


@dataclass
class Worker:
    """Does runs until none is left. ``failed``: the message of each run that failed here; it is not tried again."""

    question: Question
    n_jobs: int
    report: Callable[[str], None]
    failed: dict[Job, str] = field(default_factory=dict)

    def work(self) -> int | None:
        """Do runs until all have ended or failed. Return the number of the signal that stopped this worker, or None.

        A run that another worker has locked is left to it. If no other is left, wait until one ends or is free again.
        """
        with machine_lock.working(self.report) as pause:
            while True:
                campaign, results = plan.update(self.question)
                left = [job for job in campaign.jobs if not results[job].ended and job not in self.failed]
                if not left:
                    return None
                outcome = self._one_of(left, pause)
                if outcome is None:
                    threading.Event().wait(POLL_SECONDS)
                elif outcome.signum is not None:
                    return outcome.signum

    def _one_of(self, jobs: list[Job], pause: machine_lock.Pause) -> runner.Outcome | None:
        """Do the first of the runs that is not locked, and return its outcome; None if all are locked."""
        for job in jobs:
            if job.stage == "final":
                plan.register(self.question, code(), clock.now())
            run = self.question.job(job.stage, job.norm, job.rate, job.seed)
            if record.RunFolder(run.folder).is_locked():
                continue
            try:
                outcome = runner.execute(run, self.n_jobs, pause)
            except record.RunLockedError:
                continue
            self.report(f"{job.stage} {job.folder}: {outcome.status} at step {outcome.step}")
            if outcome.status == "failed":
                self.failed[job] = str(outcome.error)
                self.report(f"rmsexp: {outcome.error}")
            elif outcome.already:
                self._check(job)
            return outcome
        return None

    def _check(self, job: Job) -> None:
        """Note a run that has ended but cannot count, so that it is not tried for ever."""
        _, results = plan.update(self.question)
        if not results[job].ended:
            self.failed[job] = f"it has {results[job].status}, but has no score"


def code() -> str:
    """Return the commit of this code, with "+" if there are uncommitted changes; without git, a digest of its files."""
    git = provenance.git()
    return f"{git['commit']}{'+' if git['dirty'] else ''}" if git["commit"] else f"code {provenance.code()}"
