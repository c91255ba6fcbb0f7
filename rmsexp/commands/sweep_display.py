"""How far a sweep is: a table of the runs that other processes do at the same time, and the time left in all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rmsexp import config
from rmsexp.records import record, states
from rmsexp.records.states import NOT_STARTED, Run
from rmsexp.system.command_line import duration

REFRESH_SECONDS = 1.0


def read(jobs: Sequence[config.Job], runs: states.RunReader) -> list[Run | None]:
    """Return the state of each run from its record; None if it has no folder.

    A finished run with fewer steps than its job asks for counts as interrupted, because the sweep continues it.
    """
    found = (runs.read(job.folder) if job.folder.exists() else None for job in jobs)
    return [states.until(run, job.config.max_steps) for run, job in zip(found, jobs, strict=True)]


def time_left(runs: Sequence[Run | None], at_once: int = 1) -> str:
    """Return the time until all runs have ended, such as "12:03 left in all", or "" if it is not known.

    ``at_once``: how many of them are done at the same time.
    """
    seconds = states.seconds_left(runs, at_once)
    return "" if seconds is None else f"about {duration(seconds)} left in all"


def counts(runs: Sequence[Run | None]) -> str:
    """Return the number of runs in each state, such as "5 finished, 2 interrupted, 11 not started"."""
    found = Counter(NOT_STARTED if run is None else run.state for run in runs)
    return ", ".join(f"{found[state]} {state}" for state in (*reversed(states.STATES), NOT_STARTED) if found[state])


def name(job: config.Job, several: bool) -> str:
    """Return the name of a run in its sweep. ``several``: whether the sweep has several settings."""
    return f"{job.setting + '  ' if several else ''}{job.series} seed{job.config.seed}"


@contextmanager
def shown(jobs: Sequence[config.Job], at_once: int) -> Iterator[None]:
    """Inside the context, print a line for each run that ends and, on a terminal, show a table of those that run."""
    ended, display = threading.Event(), _Display(jobs, at_once)
    thread = threading.Thread(target=display.follow, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Display:
    def __init__(self, jobs: Sequence[config.Job], at_once: int) -> None:
        self._jobs, self._at_once, self._runs = jobs, at_once, states.RunReader()
        several = len({job.setting_folder for job in jobs}) > 1
        self._names = [name(job, several) for job in jobs]
        self._before = [None if run is None else run.state for run in read(jobs, self._runs)]
        self._running: set[int] = set()
        self._console = Console(stderr=True, highlight=False)

    def follow(self, ended: threading.Event) -> None:
        """Show the states again and again until ``ended`` is set, and then once more, without a table."""
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not ended.wait(REFRESH_SECONDS):
                live.update(self._update(), refresh=True)
            self._update()

    def _update(self) -> Group:
        runs = read(self._jobs, self._runs)
        done = sum(run is not None and run.state in record.ENDED for run in runs)
        for number, run in enumerate(runs):
            if run is None:  # perhaps its folder was removed
                self._running.discard(number)
                continue
            if run.state == self._before[number] and number not in self._running:
                continue
            self._before[number] = run.state
            if run.state == "running":
                self._running.add(number)
                continue
            self._running.discard(number)
            line = f"[{done}/{len(runs)}] {run.state}: {self._names[number]}  step {run.step}  {evaluation(run)}"
            self._console.print(Text(line.rstrip()), soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("running", "step", "last evaluation", "time left"):
            table.add_column(column, no_wrap=True)
        for number in sorted(self._running):
            run = runs[number]
            assert run is not None
            left = "" if run.seconds_left is None else duration(run.seconds_left)
            table.add_row(self._names[number], f"{run.step}/{run.steps or '?'}", evaluation(run), left)
        return Group(table, Text(f"[{done}/{len(runs)}] {counts(runs)}  {time_left(runs, self._at_once)}"))


def evaluation(run: Run) -> str:
    """Return the last evaluation of a run, such as "test error 0.1234", or ""."""
    found = run.evaluation
    if found is None:
        return ""
    return f"{found.split} {found.metric} {'not finite' if found.value is None else f'{found.value:.4f}'}"
