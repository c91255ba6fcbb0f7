"""Which runs a campaign asks for, given the records so far. The plan is written to ``campaign.json``.

The plan is a function of the question and of the records of its runs, so all workers agree on it. Only the registration
is a fact of its own: the first worker that begins a final run writes it, once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rmsexp import atomic, campaign_file
from rmsexp.campaign.question import Question
from rmsexp.campaign_file import Job, Registered, Stage
from rmsexp.command_line import ReportedError
from rmsexp.compare.records.campaigns import Campaign, Result
from rmsexp.readers import read_json
from rmsexp.rules import seeds

REGISTERED = "registered.json"


class OtherCommitError(ReportedError):
    """The final runs of the campaign come from another commit than this one."""


def update(question: Question) -> tuple[Campaign, dict[Job, Result]]:
    """Write the campaign's file for the records so far, and return the campaign with the results of its runs.

    Raises: OSError if the file cannot be written.
    """
    campaign = _campaign(question, (), None, _registered(question))
    results: dict[Job, Result] = {}
    while True:
        missing = tuple(job for job in campaign.jobs if job not in results)
        results |= _campaign(question, missing, None, None).results(question.results)
        needed = _needed(campaign, results)
        jobs = tuple(dict.fromkeys([*campaign.jobs, *_next_jobs(question, campaign, results, needed)]))
        before, campaign = campaign, _campaign(question, jobs, needed, campaign.registered)
        if before.jobs == campaign.jobs:
            break
    _write(question, campaign)
    return campaign, results


def _campaign(question: Question, jobs: tuple[Job, ...], needed: int | None, registered: Registered | None) -> Campaign:
    content = question.content
    final = content.final.seeds
    return Campaign(
        path=question.folder / campaign_file.FILE,
        name=question.name,
        question=content.question,
        runs=dict(word.split("=", 1) for word in question.words),
        rate=question.rate,
        mode=question.target.mode,
        tuned_by=question.tuned_by,
        score=question.score,
        norms=tuple(content.norms),
        grid=question.grid,
        seeds=campaign_file.Seeds(question.tuning_seeds, final.look, final.most, needed),
        claims=question.claims,
        jobs=jobs,
        registered=registered,
    )


def _next_jobs(question: Question, campaign: Campaign, results: dict[Job, Result], needed: int | None) -> Iterator[Job]:
    """Yield the runs that the rules ask for now; those of earlier stages come first."""
    pilot = question.content.pilot
    if pilot.rate is not None:
        yield from (_job(question, "pilot", norm, pilot.rate, pilot.seed) for norm in campaign.norms)
    tuning = campaign.tuning(results)
    yield from (_job(question, "tune", *run) for run in tuning.runs)
    if tuning.runs or not all(result.ended for job, result in results.items() if job.stage == "tune"):
        return
    count = campaign.seeds.look if needed is None else needed
    for norm, choice in campaign.choice(results).items():
        if choice.rate is not None:
            for seed in range(final_count(campaign, norm, count)):
                yield _job(question, "final", norm, choice.rate, seed)


def final_count(campaign: Campaign, norm: str, count: int) -> int:
    """Return the number of final seeds of a norm: the most that a claim about it needs."""
    return max((min(claim.seeds or count, count) for claim in campaign.claims if norm in (claim.a, claim.b)), default=0)


def _needed(campaign: Campaign, results: dict[Job, Result]) -> int | None:
    """Return the number of seeds that the claims need; None before all runs of the first look have ended."""
    look = range(campaign.seeds.look)
    final = [job for job in campaign.jobs if job.stage == "final" and job.seed in look]
    if not final or not all(results[job].ended for job in final):
        return None
    scores = {
        norm: {seed: values[seed] for seed in look if seed in values}
        for norm, values in campaign.scores(results).items()
    }
    return seeds.needed(campaign.claims, scores, campaign.mode, look, campaign.seeds.most)


def _job(question: Question, stage: Stage, norm: str, rate: float, seed: int) -> Job:
    return Job(stage, norm, rate, seed, question.relative_folder(stage, norm, rate, seed))


def _write(question: Question, campaign: Campaign) -> None:
    """Write ``campaign.json``, unless it has this content already."""
    content: dict[str, Any] = {"format": campaign_file.FORMAT}
    for key in ("name", "question", "runs", "rate", "mode", "norms", "grid"):
        content[key] = getattr(campaign, key)
    content |= {"tuned_by": " ".join(campaign.tuned_by), "score": " ".join(campaign.score)}
    content |= {"seeds": campaign.seeds._asdict(), "claims": [asdict(claim) for claim in campaign.claims]}
    content["jobs"] = [job._asdict() for job in campaign.jobs]
    content["registered"] = None if campaign.registered is None else campaign.registered._asdict()
    question.folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1) + "\n"
    if not campaign.path.exists() or campaign.path.read_text(encoding="utf-8") != text:
        atomic.write_atomic(campaign.path, text)


def _registered(question: Question) -> Registered | None:
    """Return how the campaign was registered, and what has changed since; None before the first final run."""
    path = question.folder / REGISTERED
    if not path.exists():
        return None
    stored = read_json(path)
    then, now = stored["rules"], json.loads(json.dumps(question.rules()))
    changed = [
        f"{key} was {then.get(key)}, is {now.get(key)}"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]
    return Registered(stored["digest"], stored["commit"], stored["date"], "; ".join(changed) or None)


def register(question: Question, commit: str, date: str) -> None:
    """Write down the rules and the commit before the first final run; if that was done, compare the commit.

    Raises: OtherCommitError if the campaign was registered with another commit.
    """
    path = question.folder / REGISTERED
    content = {"digest": question.digest, "commit": commit, "date": date, "rules": question.rules()}
    own = path.with_name(f".{REGISTERED}.{os.getpid()}")
    atomic.write_json(own, content)
    try:
        os.link(own, path)  # fails if another worker was first, whose registration stands
    except FileExistsError:
        pass
    finally:
        own.unlink()
    registered = read_json(path)["commit"]
    if registered != commit:
        raise OtherCommitError(
            f"the final runs of {question.name} come from commit {registered}, and this is {commit}; "
            f"all must come from one: git worktree add ../rmsexp-{registered[:7]} {registered}, and work there"
        )
