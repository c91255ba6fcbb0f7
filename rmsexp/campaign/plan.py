"""Which runs a campaign asks for, given the records so far. The plan is written to ``campaign.json``.

The plan is a function of the question and of the records of its runs, so all workers agree on it, and deleting the file
loses nothing. Only the registration is a fact of its own.

Workers on several machines that share the results need a file system whose flock excludes processes on other machines,
as NFS on Linux does. No clocks are compared. A machine that still sees an older state of a record, as NFS allows for
some seconds, at worst tries to begin a run that has ended; the run's lock and its record, read again under the lock,
prevent that it is done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rmsexp.campaign import campaign_file, registration
from rmsexp.campaign.campaign_file import Job, Stage
from rmsexp.campaign.question import Question
from rmsexp.campaign.results import Campaign
from rmsexp.system import atomic
from rmsexp.system.command_line import report
from rmsexp.system.lock import Lock
from rmsexp.system.regular_file import read_regular

PATIENCE = 5.0  # seconds after which a line says that this process waits for the campaign's folder


@contextmanager
def locked(question: Question) -> Iterator[None]:
    """Inside the context, no other process writes the files of the campaign. Waits for those that do.

    A line says so if that takes more than some seconds. At the beginning the temporary files of processes that were
    killed are removed.

    Raises: OSError if the folder cannot be written, or the file system has no locks.
    """
    lock = Lock(question.folder / ".lock", question.folder)
    with lock.held(lambda refusal: report(f"waiting: {refusal.partition(';')[0]}"), PATIENCE):
        for path in question.folder.glob(".*.tmp"):
            path.unlink()
        yield


def update(question: Question) -> Campaign:
    """Write the campaign's file for the records so far, and return the campaign with the results of its runs.

    The records are read under the lock of the campaign, so an older plan never replaces a newer one.

    Raises: OSError if the file cannot be written; ValueError if the registration is damaged.
    """
    with locked(question):
        campaign = planned(question)
        text = campaign_file.text(campaign)
        if not campaign.path.exists() or read_regular(campaign.path) != text.encode():
            atomic.write_atomic(campaign.path, text)
    return campaign


def planned(question: Question) -> Campaign:
    """Return the campaign with the runs that the rules ask for, and their results."""
    campaign = replace(question.campaign, registered=registration.read(question))
    while True:
        needed = campaign.needed_seeds()
        jobs = tuple(dict.fromkeys([*campaign.jobs, *_next_jobs(question, campaign, needed)]))
        if (jobs, needed) == (campaign.jobs, campaign.seeds.needed):
            return campaign
        campaign = replace(campaign, jobs=jobs, seeds=replace(campaign.seeds, needed=needed)).with_results()


def _next_jobs(question: Question, campaign: Campaign, needed: int | None) -> Iterator[Job]:
    """Yield the runs that the rules ask for now; those of earlier stages come first."""

    def job(stage: Stage, norm: str, rate: float, seed: int) -> Job:
        return Job(stage, norm, rate, seed, question.relative_folder(stage, norm, rate, seed))

    pilot = question.content.pilot
    if pilot.rate is not None:
        yield from (job("pilot", arm, pilot.rate, pilot.seed) for arm in campaign.every_arm)
    yield from (job("tune", *run) for run in campaign.tuning.runs)
    if campaign.tuning.runs or any(job.stage == "tune" for job in campaign.left):
        return
    yield from (job("final", *run) for run in campaign.final_runs(needed or campaign.seeds.min_seeds))
