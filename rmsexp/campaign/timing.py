"""The last stage of a campaign: time the training steps of its norms, interleaved, once for all of its workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rmsexp.campaign.question import Question
from rmsexp.compare.records import timing_records
from rmsexp.lock import Lock, RunLockedError
from rmsexp.measure import processes
from rmsexp.measure.options import TimingConfig

REFERENCE = "ln"  # ratios of times are relative to this norm if it is timed, and otherwise to the first


def is_left(question: Question) -> bool:
    """Return whether the campaign asks for a timing of which there is no record yet.

    Records of one process do not count if the campaign asks for several.
    """
    jobs = question.timed()
    if not jobs:
        return False
    records = timing_records.load(next(iter(jobs.values())).setting_folder)
    fewest = min(2, question.content.timing.processes)
    records = records[(records["kind"] == "steps") & (records["processes"] >= fewest)]
    return not any(set(jobs) <= set(series) for _, series in records.groupby("folder")["series"])


def measure(question: Question, report: Callable[[str], None]) -> None:
    """Time the steps and write the record, unless another worker is doing so or has done so.

    The caller must not be a worker that others wait for (:func:`rmsexp.machine_lock.working`).

    Raises: ProcessError as :func:`rmsexp.measure.processes.measure`; then there is no record.
    """
    with suppress(RunLockedError), Lock(question.folder / ".timing.lock", question.folder).held():
        if is_left(question):
            jobs, asked = question.timed(), question.content.timing
            reference = list(jobs)[asked.norms.index(REFERENCE) if REFERENCE in asked.norms else 0]
            options = TimingConfig(reference=reference, processes=asked.processes, budget=asked.budget)
            *_, content = processes.measure(jobs, options, report)
            folder = timing_records.write(content, next(iter(jobs.values())).setting_folder)
            report(f"timing  {folder / timing_records.FILE}")
