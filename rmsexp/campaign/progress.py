"""How far campaigns and items of the paper are, and how long the runs that are left take, from records.

Times are uncontended seconds, one run after the other: those that the runs would take alone on their cores. For a run
that has ended they are the sum of its clock's buckets, divided by 1 + w. w is the time that its threads waited for a
core, over the time that they ran. A run that is being done goes on at its own pace. Another run takes as long as the
mean of the finished runs of its norm in its stage, or else in others; if there are none, what a trial says, if one is
made. So a final run of whose norm none has finished is taken to need no time for test splits.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import CampaignFile
from rmsexp.records import record
from rmsexp.records.states import LONGEST_SECONDS, NOT_STARTED, Run, read_run
from rmsexp.system.command_line import command, value_word

# A run of a campaign or an item: hashable, with ``stage``, ``norm``, and ``folder`` (below the results)
Planned = Any
Trial = Callable[[Planned], float | None]  # returns the seconds of a run, or None if they are not known


@dataclass(frozen=True)
class StageProgress:
    """A stage of a campaign, or an item of the paper.

    Attributes:
        name: its name.
        states: the number of its runs by state.
        coming: how many more runs it will need, as far as that is known.
        seconds: what the runs took that have finished.
        seconds_left: what the others take; None if that is unknown.
    """

    name: str
    states: Mapping[str, int]
    coming: int
    seconds: float
    seconds_left: float | None

    @property
    def left(self) -> int:
        """The number of its planned runs that have not ended."""
        return sum(count for state, count in self.states.items() if state not in record.ENDED)

    @property
    def ended(self) -> int:
        return sum(self.states.values()) - self.left


class Progress(NamedTuple):
    stages: Sequence[StageProgress]

    @property
    def seconds_left(self) -> float | None:
        return total(stage.seconds_left for stage in self.stages)

    @property
    def left(self) -> int:
        """The number of runs that have not ended, with those that are coming."""
        return sum(stage.left + stage.coming for stage in self.stages)


def progress(
    results: Path,
    stages: Mapping[str, Sequence[Planned]],
    states: Mapping[Planned, str],
    finished: Mapping[Planned, float],
    coming: Sequence[Planned] = (),
    longer: float = 1.0,
    trial: Trial = lambda _: None,
) -> Progress:
    """Return the progress of runs.

    Args:
        results: the folder of all records.
        stages: the planned runs by stage, or by item.
        states: the state of each of them.
        finished: their seconds, of those that have finished.
        coming: the runs that will follow, as far as that is known.
        longer: how much longer a final run is than a tuning run.
        trial: is asked once for each norm without finished runs.
    """
    known: dict[tuple[str, bool], list[float]] = {}  # seconds by norm, and whether runs were final
    for job, seconds in finished.items():
        known.setdefault((job.norm, job.stage == "final"), []).append(seconds)

    def whole(job: Planned) -> float | None:
        is_final = job.stage == "final"
        if of_stage := known.get((job.norm, is_final)):
            return statistics.fmean(of_stage)
        if (job.norm, False) not in known:
            tried = trial(job)
            known[job.norm, False] = [] if tried is None else [tried]
        others = known[job.norm, False]
        return (longer if is_final else 1.0) * statistics.fmean(others) if others else None

    def left(job: Planned) -> float | None:
        folder = results / job.folder
        own = read_run(folder).seconds_left if job.folder and folder.exists() else None
        return whole(job) if own is None else own

    needed = {job: left(job) for job in [*states, *coming] if states.get(job) not in record.ENDED}

    def stage(name: str) -> StageProgress:
        jobs, later = stages.get(name, ()), [job for job in coming if job.stage == name]
        took = sum(finished.get(job, 0.0) for job in jobs)
        seconds = total(needed[job] for job in (*jobs, *later) if job in needed)
        return StageProgress(name, Counter(states[job] for job in jobs), len(later), took, seconds)

    return Progress([stage(name) for name in dict.fromkeys([*stages, *(job.stage for job in coming)])])


def total(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of the times is unknown."""
    known = list(seconds)
    return None if None in known else sum(time for time in known if time is not None)


def costs(results: Path, states: Mapping[Planned, str]) -> dict[Planned, float]:
    """Return the uncontended seconds of the runs that have finished."""
    return {job: cost(results / job.folder) for job, state in states.items() if state == "finished"}


def cost(folder: Path) -> float:
    """Return the uncontended seconds of a run so far; 0 if its record has none."""
    files = record.RunFolder(folder)
    try:
        seconds = sum(files.read_metrics()[0][-1]["seconds"].values()) / (1 + waited(files))
        return seconds if 0 <= seconds <= LONGEST_SECONDS else 0.0
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return 0.0  # damage is reported with the run


def waited(files: record.RunFolder) -> float:
    """Return w, the mean over the run's processes; those of which it is not known count as not having waited."""
    sessions = files.read_run()["sessions"]
    return statistics.fmean((session.get("contention") or {}).get("waited") or 0.0 for session in sessions)


def longer(campaign: CampaignFile) -> float:
    """Return how many steps a final run has for each of a tuning run, as far as the campaign states it."""
    steps = [runs.get("schedule.steps") for runs in (campaign.runs, campaign.tuning_runs)]
    return 1.0 if None in steps else float(str(steps[0])) / float(str(steps[1]))


# --- the overview of a folder


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


def read(results: Path) -> Overview:
    """Return the overview of a folder of results. Raises: ValueError if there is no such folder."""
    if not results.is_dir():
        raise ValueError(f"{results} is no folder; name the folder of your results")
    runs = {
        folder: read_run(folder) for folder in record.find_runs(results, (record.STATUS, record.RUN, record.METRICS))
    }
    problems = [problem for run in runs.values() for problem in run.problems]
    campaigns = []
    for path in campaign_file.find(results):
        try:
            campaigns.append(read_campaign(path, runs))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    return Overview(results, campaigns, list(runs.values()), problems)


def read_campaign(path: Path, runs: Mapping[Path, Run]) -> CampaignState:
    """Return the state of a campaign from its file and the runs below its results, by folder.

    Raises: OSError if the file cannot be opened; ValueError if it is damaged.
    """
    campaign, root = campaign_file.read(path), path.parents[2]
    states = {job: runs[root / job.folder].state if root / job.folder in runs else NOT_STARTED for job in campaign.jobs}
    stages = {str(job.stage): [other for other in campaign.jobs if other.stage == job.stage] for job in campaign.jobs}
    decided = "final" in stages and campaign.seeds.needed is not None
    diverged = "final" not in stages and {states[job] for job in stages.get("tune", [])} == {"diverged"}
    if (decided or diverged) and all(state in record.ENDED for state in states.values()):
        whole = progress(root, stages, states, {})
        return CampaignState(campaign.name, campaign.question, whole, command("rmsexp.report", str(root)))
    from rmsexp.campaign import results  # imports pandas, which only campaigns that go on need

    coming = results.load(path).coming()
    whole = progress(root, stages, states, costs(root, states), coming, longer(campaign))
    words = ["rmsexp.campaign", *campaign.command, *([] if str(root) == "results" else [value_word("results", root)])]
    return CampaignState(campaign.name, campaign.question, whole, command(*words))
