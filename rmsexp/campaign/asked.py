"""What a command asks for: the runs of a campaign, which decide its claims, or those of items, which are drawn."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rmsexp import config
from rmsexp.config import identity
from rmsexp.config.timing import ProcessOptions, TimingConfig
from rmsexp.records.frames import comparable, names, timing_records
from rmsexp.system.command_line import config_dir_words, value_word
from rmsexp.train import provenance

# words that begin so say where runs are done, how they are logged and saved, but not which runs
WHERE_AND_HOW = (
    *("results=", "data.root=", "threads=", "device="),
    *("log_every=", "checkpoint_every=", "logger", "distributed.timeout="),
)


@dataclass(frozen=True)
class Timing:
    """An interleaved timing of training steps, which follows the runs, once for all workers.

    ``jobs``: the runs whose steps are timed, all of one setting, by series. ``options``: how they are timed.
    """

    jobs: Mapping[str, config.Job]
    options: TimingConfig

    @property
    def folder(self) -> Path:
        """The folder of the setting."""
        return next(iter(self.jobs.values())).setting_folder

    def is_left(self) -> bool:
        """Return whether some series was measured in fewer than ``options.processes`` processes, in the records so far.

        As in reports, records that agree in ``comparable.CLOCK`` and code count together: a budget may end before all
        processes did. Records of another config, or of a norm of the user's own that has changed since, do not count.
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


@dataclass(frozen=True)
class Request:
    """A campaign or items, as a command line asks for them.

    ``name``: the name on the command line. ``typed``: the words after the name. ``words``: the overrides of all runs.
    """

    name: str
    typed: tuple[str, ...]
    words: tuple[str, ...]
    config_dir: str | None

    MANAGED: ClassVar[tuple[str, ...]]  # keys of runs that are not overridden, because campaigns or items set them

    @cached_property
    def common(self) -> config.Job:
        """A job with the task, if all runs have one, the scale and the results folder of the runs; the norm is any."""
        return self.composed([word for word in self.words if word.startswith(("task=", "scale=", "results="))])

    @property
    def results(self) -> Path:
        return config.expanded(self.common.config.results)

    def command(self, places: bool = True) -> tuple[str, ...]:
        """Return the words after ``rmsexp.campaign``; ``places=False`` leaves out those that begin as WHERE_AND_HOW."""
        typed = (word for word in self.typed if places or not word.startswith(WHERE_AND_HOW))
        return (self.name, *typed, *config_dir_words(self.config_dir))

    def composed(self, words: Sequence[str]) -> config.Job:
        """Return the job of a run's overrides."""
        return _composed(tuple(words), self.config_dir)

    def refuse_managed(self, words: Sequence[str], more: Collection[str]) -> None:
        """Raise ConfigError for an override of a key in ``MANAGED`` or ``more``."""
        for override in config.parse(words):
            if override.key_or_group in (*self.MANAGED, *more):
                raise config.ConfigError(f"{override.input_line}: {self.name} sets this key itself; leave it out")


_composed = lru_cache(maxsize=4096)(config.job)  # composing is slow


def timing(jobs: Sequence[config.Job], asked: ProcessOptions) -> Timing:
    """Return the timing of runs of one setting.

    Ratios of times are relative to a plain LayerNorm if there is one, else to the first series.
    """
    by_series = {job.series: job for job in jobs}
    reference = next(filter(names.is_plain_ln, by_series), next(iter(by_series)))
    return Timing(by_series, TimingConfig(reference=reference, processes=asked.processes, budget=asked.budget))


def overrides(*stated: Mapping[str, Any], typed: Iterable[str] = ()) -> tuple[str, ...]:
    """Return overrides: those of the mappings, then the typed words. Of several for one key the last one counts."""
    words = [value_word(key, value) for values in stated for key, value in config.flatten(values).items()]
    # "+" before a key says "add it", and only keys with a dot can be new; "++" says "set or add it"
    plain = (re.sub(r"^\+(\+|(?=\w+=))", "", word) for word in (*words, *typed))
    return tuple({word.partition("=")[0].lstrip("+"): word for word in plain}.values())


def folder_name(name: str, words: Sequence[str]) -> str:
    """Return the name of a folder, such as "quality+norms=ln-mine+task=cifar10".

    Different words give different names; their order does not matter. If readable text cannot ensure this, or is too
    long, the name ends with a digest.
    """
    changes = sorted(words)
    text = "".join(f"+{word}" for word in changes)
    readable = re.sub(r"[^\w.=+-]", "_", re.sub(r"[\[\]'\" ]", "", name + text).replace(",", "-"))
    plain = all(re.fullmatch(r"[\w.]+=([\w.]+|\[[\w.,]+\])", word) for word in changes)
    if not plain or not re.fullmatch(r"[\w.-]+", name):
        readable += f"+{hashlib.sha256(json.dumps([name, changes]).encode()).hexdigest()[:8]}"
    return identity.shortened(readable)
