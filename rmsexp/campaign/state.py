"""The states of campaigns, and of all that lies below a folder of results, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.time_left import Cost, PlannedRuns, Progress, costs, progress
from rmsexp.records import record
from rmsexp.records.states import NOT_STARTED, Run, RunReader
from rmsexp.system.command_line import command, value_word


@dataclass(frozen=True)
class CampaignState:
    """The state of a campaign. ``next``: a command."""

    name: str
    question: str
    progress: Progress
    next: str


@dataclass(frozen=True)
class Overview:
    """The campaigns and runs below the folder ``results``; ``problems``: messages about damaged files."""

    results: Path
    campaigns: Sequence[CampaignState]
    runs: Sequence[Run]
    problems: Sequence[str]


class Reader:
    """Reads the overview of a folder again and again."""

    def __init__(self, results: Path) -> None:
        self._results, self._runs = results, RunReader()

    def read(self) -> Overview:
        """Return the overview. Raises: ValueError if there is no such folder."""
        if not self._results.is_dir():
            raise ValueError(f"{self._results} is no folder; name the folder of your results")
        files = (record.STATUS, record.RUN, record.METRICS)
        misnamed = list[str]()
        runs = {folder: self._runs.read(folder) for folder in record.find_runs(self._results, files, misnamed)}
        problems = [problem for run in runs.values() for problem in run.problems] + misnamed
        campaigns = []
        for path in campaign_file.find(self._results):
            try:
                campaigns.append(read_campaign(path, runs))
            except (OSError, ValueError) as error:
                problems.append(str(error))
        return Overview(self._results, campaigns, list(runs.values()), problems)


def read_campaign(path: Path, runs: Mapping[Path, Run]) -> CampaignState:
    """Return the state of a campaign from its file and the runs below its results, by folder.

    Raises: OSError if the file cannot be opened; ValueError if it is damaged.
    """
    stored, root = campaign_file.read(path), path.parents[2]
    begun = {job: run for job in stored.jobs if (run := runs.get(root / job.folder)) is not None}
    states = {job: begun[job].state if job in begun else NOT_STARTED for job in stored.jobs}
    stages: dict[str, Sequence[Job]] = {
        job.stage: [other for other in stored.jobs if other.stage == job.stage] for job in stored.jobs
    }
    decided = "final" in stages and stored.seeds.needed is not None
    diverged = "final" not in stages and {states[job] for job in stages.get("tune", [])} == {"diverged"}
    coming: Sequence[Job] = ()
    finished: Mapping[Job, Cost] = {}
    if (decided or diverged) and all(state in record.ENDED for state in states.values()):
        words = ["rmsexp.report", str(root)]
    else:
        from rmsexp.campaign import results  # imports pandas, which only campaigns that go on need

        campaign = results.load(path)
        found = campaign.results()
        coming = campaign.coming(found, 0, campaign.seeds.min_seeds)
        finished = costs(root, [job for job, result in found.items() if result.status == "finished"])
        words = ["rmsexp.campaign", *stored.command]
        words += [] if str(root) == "results" else [value_word("results", root)]
    left = {job: run.seconds_left for job, run in begun.items()}
    whole = progress(PlannedRuns(stages, states, coming), finished, left)
    return CampaignState(stored.name, stored.question, whole, command(*words))
