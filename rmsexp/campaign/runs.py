"""The runs of a campaign, as workers do them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rmsexp import config, states
from rmsexp.campaign import plan, registration, summary
from rmsexp.campaign.question import Question
from rmsexp.campaign_file import Job
from rmsexp.command_line import duration
from rmsexp.compare.records.campaigns import Campaign, Result

STAGES = {"pilot": "pilot", "tune": "tuning", "final": "final"}


@dataclass
class CampaignRuns:
    """The runs of a campaign. The class implements :class:`rmsexp.campaign.worker.Runs`."""

    question: Question
    # by the last call of ``left``
    _planned: tuple[Campaign, dict[Job, Result]] | None = field(default=None, init=False)
    _known: plan.Known = field(default_factory=dict, init=False)
    _problems: list[str] = field(default_factory=list, init=False)  # damaged records, as of the last call of ``left``
    _reader: states.RunReader = field(default_factory=states.RunReader, init=False)

    @property
    def results(self) -> Path:
        return self.question.results

    def left(self) -> list[Job]:
        """Write the plan for the records so far, and return its runs that have not ended."""
        self._problems.clear()
        campaign, results = plan.update(self.question, self._problems, self._known)
        self._planned = campaign, results
        return [job for job in campaign.jobs if not results[job].ended]

    def headline(self, job: Job) -> str:
        assert self._planned is not None
        campaign, results = self._planned
        runs = [other for other in campaign.jobs if other.stage == job.stage]
        where = f"{job.norm} {self.question.rate}={job.rate:g} seed={job.seed}"
        total = self._total(campaign, results)
        return f"{STAGES[job.stage]} run {runs.index(job) + 1} of {len(runs)} · {total}: {where}"

    def _total(self, campaign: Campaign, results: Mapping[Job, Result]) -> str:
        """Return how far the whole campaign is, such as "17 of about 45 runs ended, 3:20:00 left with one worker"."""
        folders = [folder for job in campaign.jobs if (folder := self.results / job.folder).exists()]
        runs = {folder: self._reader.read(folder) for folder in folders}
        coming = campaign.coming(results, 0, campaign.seeds.min_seeds)
        state = states.read_campaign(campaign.path, runs, lambda *_: coming)
        left = "" if state.seconds_left is None else f", {duration(state.seconds_left)} left with one worker"
        return f"{state.total} ended{left}"

    def begin(self, job: Job) -> config.Job:
        """Return the run. Unless it is a pilot run, register the campaign first, if that was not done.

        Raises: registration.OtherCommitError if the campaign was registered with other code.
        """
        if job.stage != "pilot":
            self.register()
        return self.question.job(job.stage, job.norm, job.rate, job.seed)

    def register(self) -> None:
        """Register the campaign, unless that was done.

        Raises: registration.OtherCommitError if it was registered with other code.
        """
        with plan.locked(self.question):
            registration.register(self.question, registration.code())

    def why_left(self, job: Job) -> str:
        """Return why a run is left although it has ended."""
        names = f"{job.folder}/", f"{job.folder}:"  # a damaged file of the run, or its folder
        if problem := next((line for line in self._problems if any(name in line for name in names)), ""):
            return problem
        score = " ".join(self.question.score if job.stage == "final" else self.question.tuned_by)
        return f"it has ended without its evaluations of {score}; to repeat it, remove its folder"

    def after(self, job: Job) -> list[str]:
        """Return how the pilot went, if this was the last of its runs."""
        if job.stage != "pilot":
            return []
        campaign, results = plan.update(self.question)
        ended = all(results[job].ended for job in campaign.jobs if job.stage == "pilot")
        return summary.pilot(campaign, results, self.question) if ended else []
