"""The runs of a campaign, as workers do them and as they are planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmsexp import config
from rmsexp.campaign import campaign_file, plan, registration
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.campaign.remarks import remarks
from rmsexp.campaign.results import Campaign, Result
from rmsexp.campaign.time_left import Planned, PlannedRuns, begun, costs, progress
from rmsexp.campaign.timing import Timing, interleaved
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.records.frames.load import number
from rmsexp.rules import seeds, selection
from rmsexp.system.command_line import duration

STAGES = {"pilot": "pilot", "tune": "tuning", "final": "final"}


@dataclass
class CampaignRuns:
    """The runs of a campaign. The class implements :class:`rmsexp.work.worker.Runs`."""

    question: Question
    # by the last call of ``left``: the plan, and lines about damaged records
    _planned: tuple[Campaign, dict[Job, Result]] | None = field(default=None, init=False)
    _problems: list[str] = field(default_factory=list, init=False)

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

    def alike(self, run: Planned) -> str:
        return run.norm

    def trial_words(self, run: Planned) -> Sequence[str]:
        """Return the words of a tuning run of a norm. It does not evaluate test splits."""
        return self.question.overrides("tune", run.norm, self.question.grid[0], self.question.tuning_seeds[0])

    def plan(self) -> PlannedRuns:
        problems: list[str] = []
        campaign, results = plan.update(self.question, problems)
        lines = [*problems, *pilot(campaign, results, self.question), *remarks(campaign, results)]
        return self._plan(campaign, results)._replace(lines=lines, path=campaign.path)

    def _plan(self, campaign: Campaign, results: Mapping[Job, Result]) -> PlannedRuns:
        stages = {stage: [job for job in campaign.jobs if job.stage == stage] for stage in STAGES}
        left = [job for job in campaign.jobs if not results[job].ended]
        least = campaign.seeds.min_seeds
        most_seeds = campaign.seeds.max_seeds if any(map(seeds.may_need_more, campaign.claims)) else least
        coming = campaign.coming(results, 0, least)
        most, reasons = [*left, *coming], []
        if campaign.seeds.needed is None and most:
            most = [*left, *campaign.coming(results, selection.EXTENSIONS, most_seeds)]
        if most_seeds > least:
            reasons.append(f"the spread of scores asks for all {most_seeds} seeds")
        if not stages["final"]:
            reasons.append(f"best rates at its edge extend the grid by {selection.EXTENSIONS} rates")
        more = (most, " and ".join(reasons)) if len(most) > len(left) + len(coming) else ((), "")
        return PlannedRuns(stages, {job: results[job].status for job in campaign.jobs}, coming, self._longer(), more)

    def _longer(self) -> float:
        """Return how many steps a final run has for each of a tuning run."""
        if not self.question.tuning_words:
            return 1.0
        arm, rate = self.question.arms[0], self.question.grid[0]
        final, tune = (self.question.job(stage, arm, rate, 0).config for stage in ("final", "tune"))
        return float(final.schedule.steps / tune.schedule.steps)

    # --- for workers

    def left(self) -> list[Job]:
        """Write the plan for the records so far, and return its runs that have not ended."""
        self._problems.clear()
        campaign, results = plan.update(self.question, self._problems)
        self._planned = campaign, results
        return [job for job in campaign.jobs if not results[job].ended]

    def headline(self, job: Job) -> str:
        """Return the run with its place in its stage, and how far the whole campaign is."""
        assert self._planned is not None
        campaign, results = self._planned
        runs = [other for other in campaign.jobs if other.stage == job.stage]
        where = f"{job.norm} {self.question.rate}={job.rate:g} seed={job.seed}"
        planned = self._plan(campaign, results)
        finished = [other for other, result in results.items() if result.status == "finished"]
        whole = progress(planned, costs(self.results, finished), begun(self.results, planned))
        known = "" if whole.seconds_left is None else f", {duration(whole.seconds_left)} left with one worker"
        return f"{STAGES[job.stage]} run {runs.index(job) + 1} of {len(runs)} · {whole.runs} ended{known}: {where}"

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
        return pilot(campaign, results, self.question) if ended else []


def pilot(campaign: Campaign, results: Mapping[Job, Result], question: Question) -> list[str]:
    """Return a line for each pilot run that has ended: how its metric moved, and by how much in the last fifth of the
    steps; or that it diverged.

    The metric is that of tuning, on the first 256 validation examples.
    """
    lines = []
    metric = campaign.tuned_by.metric
    factor = names.scale_and_unit(metric)[0]
    for job in (job for job in campaign.jobs if job.stage == "pilot"):
        files = record.RunFolder(question.results / job.folder)
        rows = files.read_metrics()[0] if files.metrics_path.exists() else []
        values = [factor * number(row.get(metric)) for row in rows if row["split"] == score.INTERIM]
        if results[job].status == "diverged":
            lines.append(f"pilot {job.norm}: diverged at step {rows[-1]['step'] if rows else 0}")
        elif len(values) == score.EVALUATIONS:
            lines.append(f"pilot {job.norm}: {metric} {_movement(campaign, values)}")
    return lines


def _movement(campaign: Campaign, values: Sequence[float]) -> str:
    """Return the beginning and the end of a pilot run, and its gain beside half of the smallest margin of the claims.

    One evaluation is noisy. So the end is the mean of the last three, and the gain is the difference between it and the
    mean of the three a fifth of the steps earlier.
    """
    fifth = score.EVALUATIONS // 5
    end, before = score.score(values[-score.SCORED :]), score.score(values[-score.SCORED - fifth : -fifth])
    gain = end - before if campaign.mode == "max" else before - end
    ends = f"{values[0]:.4g} at first, {end:.4g} {names.scale_and_unit(campaign.tuned_by.metric)[1]}".rstrip()
    text = f"{ends} at the end; it {'lost' if gain < 0 else 'gained'} {abs(gain):.2g} in the last fifth of the steps"
    margins = [claim.margin for claim in campaign.claims if claim.margin is not None]
    if not margins:
        return text
    half = min(margins) / 2
    return f"{text}; half of the smallest margin is {half:g}{': longer runs may differ' * (abs(gain) > half)}"
