"""Interleaved timing of training steps, after the runs, once for all workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rmsexp import config
from rmsexp.config.timing import ProcessOptions, TimingConfig
from rmsexp.records.frames import comparable, names, timing_records
from rmsexp.train import provenance


@dataclass(frozen=True)
class Timing:
    """A timing that is asked for.

    ``jobs``: the runs whose steps are timed, all of one setting, by series. ``options``: how they are timed.
    ``lock``: the file that a worker locks while it measures.
    """

    jobs: Mapping[str, config.Job]
    options: TimingConfig
    lock: Path

    @property
    def folder(self) -> Path:
        """The folder of the setting."""
        return next(iter(self.jobs.values())).setting_folder

    @property
    def budget(self) -> float:
        """The seconds for all processes."""
        return self.options.seconds(len(comparable.grouped(self.jobs, self.options.reference)))

    def is_left(self) -> bool:
        """Return whether some series was measured in fewer processes than asked for, in the records so far.

        As in reports, records of the same clock and code count together: a budget may end before all processes did.
        Records of another config, or of a norm of the user's own that has changed since, do not count.
        """
        records = timing_records.load(self.folder)
        records = records[(records["kind"] == "steps") & records["series"].isin(list(self.jobs))]
        asked = records["series"].map({series: provenance.workload(job) for series, job in self.jobs.items()})
        records = records[records["workload"].isna() | (records["workload"] == asked)]
        for _, same in records.groupby([*comparable.CLOCK, "code"], dropna=False):
            measured = same.groupby("series")["processes"].sum()
            if len(measured) == len(self.jobs) and measured.min() >= self.options.processes:
                return False
        return True


def interleaved(jobs: Mapping[str, config.Job], asked: ProcessOptions, folder: Path) -> Timing:
    """Return the timing of runs of one setting, by series, whose lock is in ``folder``.

    Ratios of times are relative to a plain LayerNorm if there is one, else to the first series.
    """
    reference = next(filter(names.is_plain_ln, jobs), next(iter(jobs)))
    options = TimingConfig(reference=reference, processes=asked.processes, budget=asked.budget)
    return Timing(jobs, options, folder / ".timing.lock")
