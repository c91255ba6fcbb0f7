"""The states of campaigns, and of all that lies below a folder of results, from records alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rmsexp.campaign import campaign_file
from rmsexp.records import record, sweep_file
from rmsexp.records.states import NOT_STARTED, Run, RunReader, Sweep, number_left, read_sweep, results_word
from rmsexp.system.command_line import command

Coming = Callable[[Path, int], Sequence[campaign_file.Job]]


@dataclass(frozen=True)
class Stage:
    """A stage of a campaign: the number of its runs by state, and how many more (``coming``) it will need."""

    name: str
    states: Mapping[str, int]
    coming: int = 0

    @property
    def left(self) -> int:
        """The number of runs that have not ended."""
        return number_left(self.states)


@dataclass(frozen=True)
class CampaignState:
    """The state of a campaign. ``seconds_left``: of all runs that it still needs. ``next``: a command."""

    name: str
    question: str
    stages: Sequence[Stage]
    seconds_left: float | None
    next: str

    @property
    def total(self) -> str:
        """How many of its runs have ended, such as "17 of about 45 runs"."""
        runs, left, coming = (sum(numbers) for numbers in zip(*map(_numbers, self.stages), strict=True))
        return f"{runs - left} of {'about ' * (coming > 0)}{runs + coming} runs"


@dataclass(frozen=True)
class Overview:
    """The campaigns, sweeps and runs below the folder ``results``; ``problems``: messages about damaged files."""

    results: Path
    campaigns: Sequence[CampaignState]
    sweeps: Sequence[Sweep]
    runs: Sequence[Run]
    problems: Sequence[str]


class Reader:
    """Reads the overview of a folder again and again."""

    def __init__(self, results: Path, coming: Coming = lambda *_: ()) -> None:
        """``coming``: returns the runs that a campaign will ask for, by its file and the number of its ended runs."""
        self._results, self._runs, self._coming = results, RunReader(), coming

    def read(self) -> Overview:
        """Return the overview. Raises: ValueError if there is no such folder."""
        if not self._results.is_dir():
            raise ValueError(f"{self._results} is no folder; name the folder of your results")
        files = (record.STATUS, record.RUN, record.METRICS)
        misnamed = list[str]()
        runs = {folder: self._runs.read(folder) for folder in record.find_runs(self._results, files, misnamed)}
        problems = [problem for run in runs.values() for problem in run.problems] + misnamed

        def all_of(found: Iterable[Path], read: Callable[[Path, Mapping[Path, Run]], Any]) -> Iterator[Any]:
            for path in found:
                try:
                    yield read(path, runs)
                except (OSError, ValueError) as error:
                    problems.append(str(error))

        reading = partial(read_campaign, coming=self._coming)
        campaigns = list(all_of(campaign_file.find(self._results), reading))
        sweeps = list(all_of(sweep_file.find(self._results), read_sweep))
        return Overview(self._results, campaigns, sweeps, list(runs.values()), problems)


def _numbers(stage: Stage) -> tuple[int, int, int]:
    return sum(stage.states.values()), stage.left, stage.coming


class Planned(NamedTuple):
    """A run that a campaign lists, and its state. ``run``: None if the run has no folder."""

    job: campaign_file.Job
    folder: Path
    run: Run | None


def read_campaign(path: Path, runs: Mapping[Path, Run], coming: Coming) -> CampaignState:
    """Return the state of a campaign from its file and the runs below its results, by folder. ``coming``: see Reader.

    Raises: OSError if the file cannot be opened; ValueError if it is damaged.
    """
    stored, results = campaign_file.fields(path), path.parents[2]
    planned = [Planned(job, folder, runs.get(folder)) for job in stored["jobs"] for folder in [results / job.folder]]
    states: dict[str, Counter[str]] = defaultdict(Counter)
    for job, _, run in planned:
        states[job.stage][NOT_STARTED if run is None else run.state] += 1
    stages = [Stage(stage, counts) for stage, counts in states.items()]
    decided = "final" in states and stored["seeds"].needed is not None
    diverged = "final" not in states and states.get("tune", {}).keys() == {"diverged"}  # at every rate
    over = (decided or diverged) and not any(stage.left for stage in stages)
    if not over:
        ended = sum(numbers.total() for numbers in states.values()) - sum(stage.left for stage in stages)
        later = [Planned(job, results / job.folder, None) for job in coming(path, ended)]
        numbers_later = Counter[str](job.stage for job, _, _ in later)
        stages = [
            Stage(stage, states[stage], numbers_later[stage]) for stage in dict.fromkeys([*states, *numbers_later])
        ]
        planned += later
    goes_on = ["rmsexp.campaign", *stored["command"], *results_word(results)]
    words = ["rmsexp.report", str(results)] if over else goes_on
    seconds = _seconds_left(planned, runs.values())
    return CampaignState(stored["name"], stored["question"], stages, seconds, command(*words))


def _seconds_left(planned: Sequence[Planned], runs: Iterable[Run]) -> float | None:
    """Return the time that the runs take that have not ended, one after the other; None if that is unknown.

    A run without a pace of its own takes as long as the mean of the finished runs of its norm in its stage; if there
    are none, of its norm in any stage but the pilot, or else of its task, setting and series.
    """
    finished: dict[object, list[float]] = defaultdict(list)
    for job, _, run in planned:
        if run is not None and run.state == "finished" and run.seconds is not None:
            finished[job.stage, job.norm].append(run.seconds)
            if job.stage != "pilot":
                finished[job.norm].append(run.seconds)
    for run in runs:
        if run.state == "finished" and run.seconds is not None:
            finished[run.folder.parent].append(run.seconds)
    total = 0.0
    for job, folder, run in planned:
        seconds = run.seconds_left if run is not None else None
        keys = ((job.stage, job.norm), job.norm, folder.parent)
        known = next((finished[key] for key in keys if key in finished), None)
        if seconds is None and known is None:
            return None
        total += seconds if seconds is not None else fmean(known or [])
    return total
