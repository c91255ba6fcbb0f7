"""Do runs, one after the other, beside other workers on this machine or on others; and trials, to plan them."""

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmsexp import config
from rmsexp.campaign.items import Asked
from rmsexp.campaign.progress import Plan, Planned
from rmsexp.records import record
from rmsexp.system import lock, machine_lock
from rmsexp.system.command_line import inform, report, value_word
from rmsexp.work import runner

TRIAL_STEPS = 20
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


def trial(asked: Asked, run: Planned) -> float | None:
    """Return the seconds of training of a whole run, estimated from a trial of ``TRIAL_STEPS`` steps.

    Return 0 if the trial diverges, and None if it fails, which is reported. The trial is done in a hidden folder below
    that of the campaign, or of the items, which is removed afterwards.

    Raises: SystemExit if a signal stops it.
    """
    inform(f"trying {TRIAL_STEPS} steps of {run.norm}, to estimate the time of training")
    words = asked.words_of(run)
    own = [word for word in words if not word.lstrip("+~").startswith(("logger=", "logger."))]  # a trial is no run
    own += [f"{key}={TRIAL_STEPS}" for key in ("max_steps", "log_every", "checkpoint_every", "eval_every")]
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=asked.folder) as results:
        job = config.job([*own, value_word("results", results)], asked.config_dir)
        machine_lock.pause(report)  # a timing on this machine is not disturbed
        outcome = runner.execute(job, runner.Conditions(pauses=True, quiet=True, evaluates=False))
        if outcome.signum is not None:
            raise SystemExit(128 + outcome.signum)
        if outcome.status == "failed":
            reason = str(outcome.error).partition(" (traceback in ")[0]  # which is removed with the trial
            report(f"the trial of {run.norm} failed: {reason}")
            return None
        if outcome.status == "diverged":
            return 0.0
        clock = record.RunFolder(job.folder).read_metrics()[0][-1]["seconds"]
        steps = asked.composed(words).config.max_steps
        return float(clock["data"] + clock["train"]) * steps / TRIAL_STEPS
