"""The states of campaigns, and of all that lies below a folder of results, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.progress import Cost, Plan, Progress, cost, progress
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
    stored, results = campaign_file.read(path), path.parents[2]
    begun = {job: run for job in stored.jobs if (run := runs.get(results / job.folder)) is not None}
    states = {job: begun[job].state if job in begun else NOT_STARTED for job in stored.jobs}
    stages: dict[str, Sequence[Job]] = {
        job.stage: [other for other in stored.jobs if other.stage == job.stage] for job in stored.jobs
    }
    decided = "final" in stages and stored.seeds.needed is not None
    diverged = "final" not in stages and {states[job] for job in stages.get("tune", [])} == {"diverged"}
    ended = frozenset(job for job, state in states.items() if state in record.ENDED)
    coming: Sequence[Job] = ()
    finished: Mapping[Job, Cost] = {}
    if (decided or diverged) and len(ended) == len(states):
        words = ["rmsexp.report", str(results)]
    else:
        coming, finished = _unfinished(path, ended)
        folder = [] if str(results) == "results" else [value_word("results", results)]
        words = ["rmsexp.campaign", *stored.command, *folder]
    left = {job: run.seconds_left for job, run in begun.items()}
    whole = progress(Plan(stages, states, coming), finished, left)
    return CampaignState(stored.name, stored.question, whole, command(*words))


@lru_cache(maxsize=64)
def _unfinished(path: Path, ended: frozenset[Job]) -> tuple[Sequence[Job], dict[Job, Cost]]:
    """Return the runs that a campaign will ask for, as far as that is known, and the costs of its finished runs.

    ``ended``: its runs that have ended.
    """
    from rmsexp.campaign import results as campaign_results  # imports pandas, which only campaigns that go on need

    campaign = campaign_results.load(path)
    results, costs = campaign.results(), {}
    for job in ended:
        if job in results and results[job].status == "finished":
            with suppress(OSError, ValueError):  # reported with the run
                costs[job] = cost(campaign.root / job.folder)
    return campaign.coming(results, 0, campaign.seeds.min_seeds), costs
