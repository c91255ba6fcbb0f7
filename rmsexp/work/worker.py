"""Do runs, one after the other, beside other workers on this machine or on others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rmsexp import config
from rmsexp.records import record
from rmsexp.system import lock, machine_lock
from rmsexp.work import runner

POLL_SECONDS = 5.0  # between two looks at runs that other workers have locked
COMMON_CAUSE = 2  # number of runs that fail with the same message before a worker stops: the next ones would, too


class Named(Protocol):
    """A run that is to be done; it is hashable. ``folder``: its folder below the results."""

    @property
    def folder(self) -> str: ...


class Runs(Protocol):
    """The runs that workers do. ``results``: the folder of all records."""

    @property
    def results(self) -> Path: ...

    def left(self) -> Sequence[Any]:
        """Return the runs (:class:`Named`) that have not ended, according to the records, in the order of doing them.

        New ones may follow when others have ended.
        """

    def headline(self, job: Any) -> str:
        """Return a line that reports the beginning of a run."""

    def begin(self, job: Any) -> config.Job:
        """Return a run that is about to begin."""

    def why_left(self, job: Any) -> str:
        """Return why a run is left although it has ended."""

    def after(self, job: Any) -> Sequence[str]:
        """Return lines to report after a run."""


@dataclass
class Worker:
    """Does runs.

    ``n_jobs``: the number of workers that share this machine's cores. ``report``: gets lines about the progress.
    ``failed``: the runs that failed here since this worker began, with their messages; ``failed_elsewhere``: those that
    failed meanwhile in other workers. They are not tried again.
    """

    runs: Runs
    n_jobs: int
    report: Callable[[str], None]
    failed: dict[Any, str] = field(default_factory=dict)
    failed_elsewhere: set[Any] = field(default_factory=set)
    _before: dict[Any, Mapping[str, Any] | None] = field(default_factory=dict)  # of each run: _failure when first seen

    def work(self) -> int | None:
        """Do runs until all have ended or failed. Return the number of the signal that stopped this worker, or None.

        A run that another worker has locked is left to it. If no other is left, wait until one ends or is free again.
        The worker also returns if several runs failed here for the same reason.

        Raises: ReportedError if a run may not begin.
        """
        with machine_lock.working(self.report) as pause:
            while left := self._left():
                outcome = self._one_of(left, pause)
                if outcome is None:
                    # A measurement waits until no worker holds the lock of the machine, so one without work frees it
                    pause.close()
                    threading.Event().wait(POLL_SECONDS)
                    pause.wait(self.report)
                elif outcome.signum is not None:
                    return outcome.signum
                if cause := self._common_cause():
                    self.report(f"stopped, because {COMMON_CAUSE} runs failed for the same reason: {cause}")
                    return None
        return None

    def failed_in_others(self) -> dict[Any, str]:
        """Return the runs that failed in other workers and were not done since, with their messages."""
        found = {job: self._failure(job) for job in self.failed_elsewhere}
        return {job: str(status.get("error")) for job, status in found.items() if status is not None}

    def _failure(self, job: Named) -> Mapping[str, Any] | None:
        """Return the status of a run that failed; None for any other run."""
        try:
            status = record.RunFolder(self.runs.results / job.folder).read_status()
        except (OSError, ValueError):
            return None
        return status if status["status"] == "failed" else None

    def _left(self) -> list[Any]:
        """Return the runs that have neither ended nor failed since this worker first saw them."""
        left = [job for job in self.runs.left() if job not in self.failed]
        for job in left:
            status = self._failure(job)
            before = self._before.setdefault(job, status)
            if status is not None and status != before:  # another worker has tried it
                self.failed_elsewhere.add(job)
        return [job for job in left if job not in self.failed_elsewhere]

    def _one_of(self, jobs: Sequence[Any], pause: machine_lock.Pause) -> runner.Outcome | None:
        """Do the first of the runs that is not locked, and return its outcome; None if all are locked."""
        for job in jobs:
            try:
                if record.RunFolder(self.runs.results / job.folder).is_locked():
                    continue
            except OSError as error:  # of this run's files; those of the others may be fine
                self._fail(job, str(error))
                continue
            run = self.runs.begin(job)
            self.report(self.runs.headline(job))
            try:
                outcome = runner.execute(run, runner.Around(self.n_jobs, pause))
            except lock.RunLockedError:
                continue
            except OSError as error:
                outcome = runner.Outcome("failed", 0, str(error))
            self._note(job, outcome)
            return outcome
        return None

    def _note(self, job: Named, outcome: runner.Outcome) -> None:
        """Note and report how a run ended here, and what is to be reported after it."""
        if outcome.status == "failed":
            self._fail(job, str(outcome.error))
        elif outcome.already:
            self._check(job, outcome.notices)
        elif outcome.status != "finished":
            self.report(f"{outcome.status} at step {outcome.step}: {job.folder}: {outcome.error}")
        for line in self.runs.after(job):
            self.report(line)

    def _fail(self, job: Named, message: str) -> None:
        self.failed[job] = message
        self.report(f"failed: {job.folder}: {message}")

    def _check(self, job: Named, notices: Sequence[str]) -> None:
        """Note a run that had ended already, but is left, so that it is not tried for ever."""
        if job in self.runs.left():
            self._fail(job, "; ".join([self.runs.why_left(job), *notices]))

    def _common_cause(self) -> str | None:
        # messages may name files in the folders of their runs
        messages = [message.replace(job.folder, "RUN") for job, message in self.failed.items()]
        return next((message for message in messages if messages.count(message) >= COMMON_CAUSE), None)
