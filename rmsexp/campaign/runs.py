"""The runs of a campaign, as workers do them and as they are planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rmsexp import config
from rmsexp.campaign import campaign_file, plan, registration
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.progress import Planned, longer
from rmsexp.campaign.question import Question
from rmsexp.campaign.results import Campaign
from rmsexp.campaign.timing import Timing, interleaved

STAGES = {"pilot": "pilot", "tune": "tuning", "final": "final"}


class PlannedRuns(NamedTuple):
    """The runs of a campaign or of items of the paper, by the records so far.

    The first four are as in :func:`rmsexp.campaign.progress.progress`. ``lines``: what else is printed.
    """

    stages: Mapping[str, Sequence[Planned]]
    states: Mapping[Planned, str]
    coming: Sequence[Planned] = ()
    longer: float = 1.0
    lines: Sequence[str] = ()


@dataclass
class CampaignRuns:
    """The runs of a campaign. The class implements :class:`rmsexp.work.worker.Runs`."""

    question: Question
    _campaign: Campaign | None = field(default=None, init=False)  # by the last call of ``left``

    @property
    def results(self) -> Path:
        return self.question.results

    @property
    def folder(self) -> Path:
        return self.question.folder

    @property
    def title(self) -> str:
        return f"{self.question.name}: {self.question.content.question}"

    @property
    def config_dir(self) -> str | None:
        return self.question.config_dir

    def command(self) -> tuple[str, ...]:
        return self.question.command()

    def timings(self) -> Sequence[Timing]:
        jobs = self.question.timed()
        return [interleaved(jobs, self.question.content.timing, self.folder)] if jobs else []

    def trial_words(self, run: Planned) -> Sequence[str]:
        """Return the words of a tuning run of a norm. It does not evaluate test splits."""
        campaign = self.question.campaign
        return self.question.overrides("tune", run.norm, campaign.grid[0], campaign.seeds.tune[0])

    def plan(self) -> PlannedRuns:
        campaign = plan.update(self.question)
        stages = {stage: [job for job in campaign.jobs if job.stage == stage] for stage in STAGES}
        states = {job: campaign.results[job].status for job in campaign.jobs}
        lines = [*campaign.problems, *campaign.remarks, f"plan    {campaign.path}"]
        return PlannedRuns(stages, states, campaign.coming(), longer(campaign), lines)

    # --- for workers

    def left(self) -> list[Job]:
        """Write the plan for the records so far, and return its runs that have not ended."""
        self._campaign = plan.update(self.question)
        return self._campaign.left

    def headline(self, job: Job) -> str:
        """Return the run with its place in its stage."""
        assert self._campaign is not None
        runs = [other for other in self._campaign.jobs if other.stage == job.stage]
        where = f"{job.norm} {self.question.rate}={job.rate:g} seed={job.seed}"
        return f"{STAGES[job.stage]} run {runs.index(job) + 1} of {len(runs)}: {where}"

    def begin(self, job: Job) -> config.Job:
        """Return the run. Unless it is a pilot run, register the campaign first, if that was not done.

        Raises: registration.OtherCommitError if the campaign was registered with other code.
        """
        if job.stage != "pilot":
            self.register()
        return self.question.job(job.stage, job.norm, job.rate, job.seed)

    def register(self) -> Path:
        """Register the campaign, unless that was done, and return the file.

        Raises: registration.OtherCommitError if it was registered with other code.
        """
        with plan.locked(self.question):
            registration.register(self.question, registration.code())
        return self.folder / campaign_file.REGISTRATION
