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
from rmsexp.campaign.question import WHERE_AND_HOW, Question
from rmsexp.campaign.results import Campaign, Result
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

    def waiting(refusal: str) -> None:
        report(f"waiting: {refusal.partition(';')[0]}")

    with Lock(question.folder / ".lock", question.folder).held(waiting, PATIENCE):
        for path in question.folder.glob(".*.tmp"):
            path.unlink()
        yield


def update(question: Question, problems: list[str] | None = None) -> tuple[Campaign, dict[Job, Result]]:
    """Write the campaign's file for the records so far, and return the campaign with the results of its runs.

    The records are read under the lock of the campaign, so an older plan never replaces a newer one. If ``problems`` is
    given, a line for each damaged record is added to it.

    Raises: OSError if the file cannot be written; ValueError if the registration is damaged.
    """
    with locked(question):
        campaign, results = _planned(question, [] if problems is None else problems)
        text = campaign_file.text(campaign)
        if not campaign.path.exists() or read_regular(campaign.path) != text.encode():
            atomic.write_atomic(campaign.path, text)
    return campaign, results


def _planned(question: Question, problems: list[str]) -> tuple[Campaign, dict[Job, Result]]:
    campaign, results = _without_runs(question), dict[Job, Result]()
    while True:
        new = tuple(job for job in campaign.jobs if job not in results)
        results |= replace(campaign, jobs=new).results(problems)
        needed = campaign.needed_seeds(results)
        jobs = tuple(dict.fromkeys([*campaign.jobs, *_next_jobs(question, campaign, results, needed)]))
        before, campaign = campaign, replace(campaign, jobs=jobs, seeds=replace(campaign.seeds, needed=needed))
        if before.jobs == campaign.jobs:
            return campaign, results


def _without_runs(question: Question) -> Campaign:
    content, final = question.content, question.content.final
    return Campaign(
        path=question.folder / campaign_file.FILE,
        rules=question.version,
        supersedes=content.supersedes,
        name=question.name,
        question=content.question,
        command=question.command(places=False),
        runs=dict(word.split("=", 1) for word in question.words if not word.startswith(WHERE_AND_HOW)),
        tuning_runs=dict(word.split("=", 1) for word in question.tuning_words),
        rate=question.rate,
        mode=question.mode,
        tuned_by=question.tuned_by,
        score=question.score,
        norms=tuple(content.norms),
        ladder={key: tuple(values) for key, values in content.ladder.items()},
        tolerance=final.tolerance,
        grid=question.grid,
        seeds=campaign_file.Seeds(question.tuning_seeds, final.min_seeds, final.max_seeds, None),
        claims=question.claims,
        jobs=(),
        registered=registration.read(question),
    )


def _next_jobs(question: Question, campaign: Campaign, results: dict[Job, Result], needed: int | None) -> Iterator[Job]:
    """Yield the runs that the rules ask for now; those of earlier stages come first."""
    pilot = question.content.pilot
    if pilot.rate is not None:
        yield from (_job(question, "pilot", arm, pilot.rate, pilot.seed) for arm in question.arms)
    tuning = campaign.tuning(results)
    yield from (_job(question, "tune", *run) for run in tuning.runs)
    if tuning.runs or not all(result.ended for job, result in results.items() if job.stage == "tune"):
        return
    count = campaign.seeds.min_seeds if needed is None else needed
    yield from (_job(question, "final", *run) for run in campaign.final_runs(results, count))


def _job(question: Question, stage: Stage, norm: str, rate: float, seed: int) -> Job:
    return Job(stage, norm, rate, seed, question.relative_folder(stage, norm, rate, seed))
