"""``rmsexp.compare_steps``: time training steps of your own, interleaved."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pandas as pd
import torch

from rmsexp.config import expanded
from rmsexp.config.timing import TimingConfig
from rmsexp.measure import processes as measuring
from rmsexp.measure.new_process import without_main
from rmsexp.measure.own_steps import HERE, Maker, OwnSteps
from rmsexp.records.frames import timing_records
from rmsexp.report.tables import markup, savings
from rmsexp.system import atomic, process, readers
from rmsexp.system.command_line import ConfigError, inform
from rmsexp.system.machine_lock import Report
from rmsexp.train.device import available


@dataclass(frozen=True)
class StepTimes:
    """What :func:`compare_steps` found. ``folder``: the record's. ``table``: one row per maker; ``notes``: on it.

    ``rows``: the record's rows, with ``ratio``, ``low`` and ``high`` relative to the reference, and ``peak_bytes``.
    """

    folder: Path
    rows: pd.DataFrame
    table: pd.DataFrame
    notes: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the times of the record in a folder."""
        content = readers.read_json(folder / timing_records.FILE)
        rows = pd.DataFrame(timing_records.rows(content, str(folder)), columns=list(timing_records.COLUMNS))
        table = savings.of_record(rows)
        return cls(folder, rows, table.loc[:, (table != "").any()], tuple(timing_records.notes(rows)))

    def write_table(self) -> None:
        """Write the rows to ``timing.csv`` beside the record."""
        estimates = self.rows["estimates"].map(lambda ratios: " ".join(f"{ratio:.5f}" for ratio in ratios))
        table = self.rows.assign(estimates=estimates).drop(columns=["seconds", "sessions"])
        atomic.write_atomic(self.folder / "timing.csv", markup.csv(table))

    def __str__(self) -> str:
        table = self.table.to_string(index=False)
        return "\n".join([table, *self.notes, f"record  {self.folder / timing_records.FILE}"])


def compare_steps(
    makers: Mapping[str, Maker],
    task: str = "own_steps",
    *,
    setting: str = "own",
    reference: str | None = None,
    results: str | Path = "results",
    processes: int = 6,
    budget: float | None = None,
    device: torch.device | str | None = None,
    report: Report = inform,
) -> StepTimes:
    """Time training steps of your own against each other, interleaved, as ``python -m rmsexp.timing`` does.

    Each process builds all steps, and takes blocks of each in random order, so that all meet the same conditions. The
    record is ``<results>/<task>/<setting>/timing/steps<n>/timing.json``, and reports show it.

    Args:
        makers: By name, such as "ln" and "rms", a function without arguments that builds model, optimiser and data, and
            returns a function ``step()``, which takes one training step. torch's seed is set to 0 before each call of a
            maker. If all makers can be imported from modules, fresh processes call them. Functions that are defined in
            a notebook, in the program itself or in another function cannot; then all is timed in this process.
        task, setting: Names of what is trained, and of what its runs have in common, for the record's folder.
        reference: The step with which the others are compared; by default the first.
        processes: The number of fresh processes.
        budget: Seconds for all processes; by default 50 for each.
        device: Where the steps compute; by default the GPU if there is one.
        report: Gets lines on the progress.

    Raises: ConfigError for a name that a folder cannot have, a single maker, or an unknown reference; ProcessError if a
    process fails; KeyboardInterrupt after a signal, once the processes that have measured are recorded.
    """
    makers = {str(name): make for name, make in makers.items()}
    parts = [task, setting, *makers]
    if len(makers) < 2 or not all(part.strip(".") and "/" not in part for part in parts):
        raise ConfigError(f"compare_steps needs two steps or more, and names that a folder can have; got {parts}")
    chosen = next(iter(makers)) if reference is None else str(reference)
    if chosen not in makers:
        raise ConfigError(f"reference={chosen} is not one of {', '.join(makers)}")
    fresh = _importable(makers)
    if not fresh:
        report("timed in this process only, since not all makers can be imported; put them into a module of their own")
    where = str(available(device))
    impl, folder = "own" if fresh else HERE, expanded(results) / task / setting
    shared = (task, setting, torch.get_num_threads(), where, impl, folder)
    own = {name: OwnSteps(make, *shared) for name, make in makers.items()}
    options = TimingConfig(processes if fresh else 1, budget, reference=chosen)
    found: list[StepTimes] = []

    def show(folder: Path) -> None:
        found.append(StepTimes.read(folder))
        found[0].write_table()

    try:
        measuring.record(own, options, report, ["rmsexp.compare_steps"], show)
    except process.Interrupted:
        raise KeyboardInterrupt from None
    return found[0]


def _importable(makers: Mapping[str, Maker]) -> bool:
    try:
        with without_main():
            pickle.dumps(dict(makers))
    except Exception:  # what a maker holds may raise anything
        return False
    return True
