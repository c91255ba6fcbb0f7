"""Do runs, one after the other, beside other workers on this machine or on others."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmsexp.campaign.items import Asked
from rmsexp.campaign.progress import Plan, Planned
from rmsexp.records import record
from rmsexp.system import lock, machine_lock
from rmsexp.work import runner

POLL_SECONDS = 5.0  # between two looks at runs that other workers have locked
ENDED = "it has ended, but its record does not count (see rmsexp.status); to repeat it, remove its folder"


@dataclass
class Worker:
    """Does runs.

    ``n_jobs``: the number of workers that share this machine's cores. ``report``: gets lines about the progress.
    ``failed``: the runs that failed here since this worker began, with their messages. It does not try them again;
    other workers do, as data may be missing on this machine only.
    """

    asked: Asked
    n_jobs: int
    report: Callable[[str], None]
    failed: dict[Any, str] = field(default_factory=dict)

    def work(self) -> int | None:
        """Do runs until all have ended or failed. Return the number of the signal that stopped this worker, or None.

        A run that another worker has locked is left to it. If no other is left, wait until one ends or is free again.

        Raises: ReportedError if a run may not begin.
        """
        while {*(plan := self.asked.plan()).left} - self.failed.keys():
            machine_lock.pause(self.report)
            outcome = self._one_of(plan)
            if outcome is None:
                threading.Event().wait(POLL_SECONDS)
            elif outcome.signum is not None:
                return outcome.signum
        return None

    def _one_of(self, plan: Plan) -> runner.Outcome | None:
        """Do the first run that is left, not failed here and not locked, and return its outcome; None without one."""
        for job in plan.left:
            try:
                if job in self.failed or record.RunFolder(self.asked.results / job.folder).is_locked():
                    continue
                run = self.asked.begin(job)
                self.report(plan.place(job))
                outcome = runner.execute(run, runner.Conditions(self.n_jobs, pauses=True))
            except lock.RunLockedError:
                continue
            except OSError as error:  # of this run's files; those of the others may be fine
                outcome = runner.Outcome("failed", 0, str(error))
            self._note(job, outcome)
            return outcome
        return None

    def _note(self, job: Planned, outcome: runner.Outcome) -> None:
        """Note and report how a run ended here. One that had ended and still does not count is not tried again here."""
        if outcome.status == "failed" or (outcome.already and job in self.asked.plan().left):
            reasons = [outcome.error] if outcome.status == "failed" else [ENDED, outcome.notice]
            self.failed[job] = "; ".join(filter(None, reasons))
            self.report(f"failed: {job.folder}: {self.failed[job]}")
        elif outcome.status != "finished" and not outcome.already:
            self.report(f"{outcome.status} at step {outcome.step}: {job.folder}: {outcome.error}")
