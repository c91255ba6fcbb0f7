"""How far campaigns and items of the paper are, and how long the runs that are left take, from records.

Times are uncontended seconds, one run after the other: those that the runs would take alone on their cores. For a run
that has ended they are the sum of its clock's buckets, divided by 1 + w. w is the time that its threads waited for a
core, over the time that they ran. A run that is being done goes on at its own pace. Another run takes as long as the
mean of the finished runs of its norm in its stage, or else in others; if there are none, what a trial says, if one is
made. So a final run of whose norm none has finished is taken to need no time for test splits.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp.campaign import campaign_file
from rmsexp.records import record
from rmsexp.records.states import LONGEST_SECONDS, NOT_STARTED, Run, read_run
from rmsexp.system.command_line import command, value_word

# A run of a campaign or an item: hashable, with ``stage``, ``norm``, and ``folder`` (below the results)
Planned = Any
Trial = Callable[[Planned], float | None]  # returns the seconds of a run, or None if they are not known


class Stage(NamedTuple):
    """How far a stage of a campaign, or an item of the paper, is.

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
    def ended(self) -> int:
        return sum(self.states[state] for state in record.ENDED)

    @property
    def left(self) -> int:
        """The number of its planned runs that have not ended."""
        return sum(self.states.values()) - self.ended


class Plan(NamedTuple):
    """The runs that a command asks for, by the records so far.

    Attributes:
        stages: the planned runs by stage, or by item.
        states: the state of each of them, in the order of doing them.
        coming: the runs that will follow, as far as that is known.
        longer: how much longer a final run is than a tuning run.
        lines: what else is to be known.
    """

    stages: Mapping[str, Sequence[Planned]]
    states: Mapping[Planned, str]
    coming: Sequence[Planned] = ()
    longer: float = 1.0
    lines: Sequence[str] = ()

    @property
    def left(self) -> list[Planned]:
        """The runs that have not ended."""
        return [run for run, state in self.states.items() if state not in record.ENDED]

    def place(self, run: Planned) -> str:
        """Return a run with its place in its stage, such as "tune run 1 of 6: <folder>"."""
        name, runs = next((name, runs) for name, runs in self.stages.items() if run in runs)
        return f"{name} run {runs.index(run) + 1} of {len(runs)}: {run.folder}"

    def costs(self, results: Path) -> dict[Planned, float]:
        """Return the uncontended seconds of the runs that have finished. ``results``: the folder of all records."""
        return {run: cost(results / run.folder) for run, state in self.states.items() if state == "finished"}

    def progress(self, results: Path, finished: Mapping[Planned, float], trial: Trial = lambda _: None) -> list[Stage]:
        """Return how far each stage is.

        ``finished``: the seconds of the runs that have finished. ``trial``: is asked once for each norm without such.
        """
        known: dict[tuple[str, bool], list[float]] = defaultdict(list)  # by norm, and whether runs were final
        for run, seconds in finished.items():
            known[run.norm, run.stage == "final"].append(seconds)
        means: dict[tuple[str, bool], float | None] = {key: statistics.fmean(known[key]) for key in known}

        def left(run: Planned) -> float | None:
            folder, key = results / run.folder, (run.norm, run.stage == "final")
            own = read_run(folder).seconds_left if run.folder and folder.exists() else None
            if own is None and key not in means:
                tuning = means.get((run.norm, False))
                means[key] = tuning and self.longer * tuning if (run.norm, False) in means else trial(run)
            return means[key] if own is None else own

        needed = {run: left(run) for run in [*self.left, *self.coming]}
        stages = []
        for name in dict.fromkeys([*self.stages, *(run.stage for run in self.coming)]):
            runs, later = self.stages.get(name, ()), [run for run in self.coming if run.stage == name]
            time = total(needed[run] for run in (*runs, *later) if run in needed)
            took = sum(finished.get(run, 0.0) for run in runs)
            stages.append(Stage(name, Counter(self.states[run] for run in runs), len(later), took, time))
        return stages


def total(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of the times is unknown."""
    known = list(seconds)
    return None if None in known else sum(time for time in known if time is not None)


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


# --- the overview of a folder


@dataclass(frozen=True)
class CampaignState:
    """The state of a campaign. ``next``: a command."""

    name: str
    question: str
    stages: Sequence[Stage]
    next: str

    @property
    def seconds_left(self) -> float | None:
        return total(stage.seconds_left for stage in self.stages)

    @property
    def left(self) -> int:
        """The number of runs that have not ended, with those that are coming."""
        return sum(stage.left + stage.coming for stage in self.stages)


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
    plan, costs, words = Plan(campaign.stages, states), {}, ["rmsexp.report", str(root)]
    if plan.left or "final" not in plan.stages or campaign.seeds.needed is None:
        from rmsexp.campaign import results  # imports pandas, which only campaigns that go on need

        found = results.load(path)
        plan, costs = plan._replace(coming=found.coming(), longer=found.longer), plan.costs(root)
        if plan.left or found.undecided:
            place = [] if str(root) == "results" else [value_word("results", root)]
            words = ["rmsexp.campaign", *campaign.command, *place]
    return CampaignState(campaign.name, campaign.question, plan.progress(root, costs), command(*words))
