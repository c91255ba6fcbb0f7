"""The last stage of a campaign: time the training steps of its norms, interleaved, once for all of its workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rmsexp.campaign.question import Question
from rmsexp.compare.records import timing_records
from rmsexp.lock import Lock, RunLockedError
from rmsexp.measure import steps
from rmsexp.measure.options import TimingConfig

REFERENCE = "ln"  # ratios of times are relative to this norm if it is timed, and otherwise to the first


def is_left(question: Question) -> bool:
    """Return whether the campaign asks for a timing of which there is no record yet."""
    jobs = question.timed()
    if not jobs:
        return False
    records = timing_records.load(next(iter(jobs.values())).setting_folder)
    records = records[records["kind"] == "steps"]
    return not any(set(jobs) <= set(series) for _, series in records.groupby("folder")["series"])


def measure(question: Question, report: Callable[[str], None]) -> None:
    """Time the steps and write the record, unless another worker is doing so or has done so.

    The caller must not be a worker that others wait for (:func:`rmsexp.machine_lock.working`).

    Raises: ValueError, OSError or DataError as :func:`rmsexp.measure.steps.measure`.
    """
    with suppress(RunLockedError), Lock(question.folder / ".timing.lock", question.folder).held():
        if is_left(question):
            jobs, options = question.timed(), question.content.timing
            reference = options.norms.index(REFERENCE) if REFERENCE in options.norms else 0
            content = steps.measure(jobs, TimingConfig(reference=list(jobs)[reference], budget=options.budget), report)
            folder = timing_records.write(content, next(iter(jobs.values())).setting_folder)
            report(f"timing  {folder / timing_records.FILE}")
