"""How far campaigns and items of the paper are, and how long the runs that are left take, from records.

Times are those of one run after the other, without warm-up. A run that has begun goes on at its own pace. Any other run
takes the mean time of the finished runs of its norm and stage; a final run, if there are none, that of the tuning runs
times ``Plan.longer``, so without test splits. If there are none of these either, a trial says it, if one is made.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp.campaign import campaign_file
from rmsexp.records import record
from rmsexp.records.states import NOT_STARTED, Run, read_run
from rmsexp.system.command_line import command, value_word

# A run of a campaign or an item: hashable, with ``stage``, ``norm``, and ``folder`` (below the results)
Planned = Any
Trial = Callable[[Planned], float | None]  # returns the seconds of a run, or None if they are not known


class Stage(NamedTuple):
    """How far a stage of a campaign, or an item of the paper, is.

    ``states``: the number of its runs by state. ``coming``: how many more it will need, as far as that is known.
    ``seconds``: what the finished ones took. ``seconds_left``: what those left and coming take; None: unknown.
    """

    name: str
    states: Counter[str]
    coming: int
    seconds: float
    seconds_left: float | None


class Plan(NamedTuple):
    """The runs that a command asks for, by the records so far.

    Attributes:
        stages: the planned runs by stage, or by item.
        states: the state of each of them, in the order of doing them.
        coming: the runs that will follow, as far as that is known.
        longer: the steps of a final run divided by those of a tuning run.
        lines: what is printed below the plan, such as remarks.
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

    def progress(
        self, results: Path, trial: Trial = lambda _: None, read: Callable[[Path], Run] = read_run
    ) -> list[Stage]:
        """Return how far each stage is.

        ``results``: the folder of all records. ``trial``: is asked once for each norm without finished runs. ``read``:
        returns the state of the run in a folder.
        """
        runs = {run: read(results / run.folder) for run in self.states}
        finished = {run: runs[run].seconds or 0.0 for run, state in self.states.items() if state == "finished"}
        known: dict[tuple[str, bool], list[float]] = defaultdict(list)  # by norm, and whether runs were final
        for run, seconds in finished.items():
            known[run.norm, run.stage == "final"].append(seconds)
        means: dict[tuple[str, bool], float | None] = {key: statistics.fmean(known[key]) for key in known}

        def left(run: Planned) -> float | None:
            key = run.norm, run.stage == "final"
            own = runs[run].seconds_left if run in runs else None
            if own is None and key not in means:
                tuning = means.get((run.norm, False))
                means[key] = tuning and self.longer * tuning if (run.norm, False) in means else trial(run)
            return means[key] if own is None else own

        needed = {run: left(run) for run in [*self.left, *self.coming]}
        stages = []
        for name in dict.fromkeys([*self.stages, *(run.stage for run in self.coming)]):
            planned, later = self.stages.get(name, ()), [run for run in self.coming if run.stage == name]
            time = total(needed[run] for run in (*planned, *later) if run in needed)
            took = sum(finished.get(run, 0.0) for run in planned)
            stages.append(Stage(name, Counter(self.states[run] for run in planned), len(later), took, time))
        return stages


def total(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of the times is unknown."""
    known = list(seconds)
    return None if None in known else sum(time for time in known if time is not None)


# --- the overview of a folder


@dataclass(frozen=True)
class CampaignState:
    """The state of a campaign. ``next``: the command that continues it or, once it is decided, writes the report."""

    name: str
    question: str
    stages: Sequence[Stage]
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
    folders = record.find_runs(results, (record.STATUS, record.RUN, record.METRICS))
    runs = {folder: read_run(folder) for folder in folders}
    problems = [problem for run in runs.values() for problem in run.problems]
    campaigns = []
    for path in campaign_file.find(results):
        try:
            campaigns.append(read_campaign(path, runs))
        except Exception as error:  # a file may be strange in many ways
            problems.append(str(error) if str(path) in str(error) else f"{path}: {error!r}")
    return Overview(results, campaigns, list(runs.values()), problems)


def read_campaign(path: Path, runs: Mapping[Path, Run]) -> CampaignState:
    """Return the state of a campaign. ``path``: its file. ``runs``: by folder, those below its results.

    Raises: OSError if the file cannot be opened; ValueError if it is damaged.
    """
    from rmsexp.campaign import results  # imports pandas

    def read(folder: Path) -> Run:
        return runs.get(folder, Run(folder, NOT_STARTED, 0))

    campaign = results.load(path)
    root, words = campaign.root, ["rmsexp.report", str(campaign.root)]
    states = {job: read(root / job.folder).state for job in campaign.jobs}
    plan = Plan(campaign.stages, states, campaign.coming(), campaign.longer)
    if plan.left or campaign.undecided:
        place = [] if str(root) == "results" else [value_word("results", root)]
        words = ["rmsexp.campaign", *campaign.command, *place]
    return CampaignState(campaign.name, campaign.question, plan.progress(root, read=read), command(*words))
