"""The paper's tables and figures that a command is to make, and the runs and timings that they need.

The runs are ordinary runs in ordinary folders. A run of an item that has ended already is not repeated, and items share
runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rmsexp import config
from rmsexp.campaign import item_file, question
from rmsexp.campaign.item_file import Group, Item
from rmsexp.campaign.question import WHERE_AND_HOW, as_word, folder_name, refuse_managed
from rmsexp.campaign.runs import CampaignRuns, PlannedRuns
from rmsexp.campaign.timing import Timing, interleaved
from rmsexp.config.schema import flatten
from rmsexp.config.timing import ProcessOptions
from rmsexp.records import record, states
from rmsexp.system.command_line import config_dir_words

ALL = "paper"  # the name that stands for all items
FOLDER = "paper"  # of tables and figures, below the results
MANAGED = ("task", "norm", "seed", "force")  # keys of runs that items set themselves, by seeds=[…] and their files


@dataclass
class Options:
    """The words that do not change runs."""

    seeds: list[int] = field(default_factory=lambda: [0])
    timing: ProcessOptions = field(default_factory=ProcessOptions)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must list at least one seed, each once, as in seeds=[0,1]")


class Run(NamedTuple):
    """A run that an item needs. ``folder``: below the results. ``words``: its overrides."""

    folder: str
    words: tuple[str, ...]
    stage: str = "final"

    @property
    def norm(self) -> str:
        """The folder of its setting, whose runs are taken to need the same time."""
        return str(PurePosixPath(self.folder).parents[1])


@dataclass(frozen=True)
class Items:
    """Items that a command is to make, a campaign without tuning and claims, which is drawn.

    ``name``: the name that was typed, ``typed``: the words after it. The class implements
    :class:`rmsexp.work.worker.Runs`.
    """

    name: str
    typed: tuple[str, ...]
    items: tuple[Item, ...]
    options: Options
    config_dir: str | None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The typed overrides of all runs."""
        return tuple(word for word in self.typed if not _is_option(word))

    @property
    def _common(self) -> config.Job:
        """A run of any task with the scale and the results of all runs."""
        return _job(tuple(word for word in self.words if word.startswith(("scale=", "results="))), self.config_dir)

    @property
    def results(self) -> Path:
        return config.expanded(self._common.config.results)

    @property
    def scale(self) -> str:
        return str(self._common.config.scale)

    @property
    def folder(self) -> Path:
        """The folder of the tables and figures."""
        changes = [word for word in self.words if not word.startswith((*WHERE_AND_HOW, "scale="))]
        return self.results / FOLDER / folder_name(self.scale, changes)

    def page(self, item: str) -> Path:
        """Return the file with the text of an item."""
        return self.folder / f"{item}.md"

    def command(self) -> tuple[str, ...]:
        """Return the words after ``python -m rmsexp.campaign``."""
        return (self.name, *self.typed, *config_dir_words(self.config_dir))

    @property
    def title(self) -> str:
        item = self.items[0]
        return f"{item.title}: {item.caption}" if len(self.items) == 1 else "tables and figures of the paper"

    def register(self) -> Path:
        raise config.ConfigError("only campaigns with claims are registered")

    # --- runs

    def runs_of(self, item: Item, group: Group) -> dict[str, list[Run]]:
        """Return the runs of a group, one per seed, by the name of the row in the paper; none if it is absent.

        In a table of times alone, their training steps are timed, but the runs are not done.
        """
        norms = {} if group.absent else group.norms
        return {row: [self._run(item, group, norm, seed) for seed in self.options.seeds] for row, norm in norms.items()}

    def _run(self, item: Item, group: Group, norm: str, seed: int) -> Run:
        overrides = {"threads": 1} | flatten(group.runs) | flatten(item.at.get(self.scale, {}))
        typed = {word.partition("=")[0] for word in self.words}
        own = [as_word(key, value) for key, value in overrides.items() if key not in typed]
        words = (*own, *self.words, *config.norm_words(norm), f"seed={seed}")
        try:
            return Run(str(_job(words, self.config_dir).folder.relative_to(self.results)), words)
        except config.ConfigError as error:
            raise config.ConfigError(f"item {item.name}: {error}") from None

    def runs(self, chosen: Sequence[Item]) -> list[Run]:
        """Return the runs of items, each once."""
        groups = [self.runs_of(item, group) for item in chosen if item.has_runs for group in item.groups]
        return list(dict.fromkeys(run for group in groups for runs in group.values() for run in runs))

    def job(self, run: Run) -> config.Job:
        return _job(run.words, self.config_dir)

    def state(self, run: Run) -> str:
        return states.state(self.results / run.folder, self.job(run).config.max_steps)

    def missing(self, items: Sequence[Item]) -> list[Run]:
        """Return the runs of items that have not ended, each once."""
        return [run for run in self.runs(items) if self.state(run) not in record.ENDED]

    def plan(self) -> PlannedRuns:
        stages = {item.name: self.runs([item]) for item in self.items}
        return PlannedRuns(stages, {run: self.state(run) for run in self.runs(self.items)})

    def trial_words(self, run: Run) -> Sequence[str]:
        return run.words

    # --- for workers

    def left(self) -> list[Run]:
        return self.missing(self.items)

    def headline(self, run: Run) -> str:
        runs = self.runs(self.items)
        return f"run {runs.index(run) + 1} of {len(runs)}: {run.folder}"

    def begin(self, run: Run) -> config.Job:
        return self.job(run)

    # --- timings

    def timing(self, item: Item, group: Group) -> Timing | None:
        """Return the timing of a group's norms; None if it asks for none."""
        if group.absent or not item.timed:
            return None
        jobs = [self.job(runs[0]) for runs in self.runs_of(item, group).values()]
        return interleaved({job.series: job for job in jobs}, self.options.timing, jobs[0].setting_folder)

    def timings(self) -> list[Timing]:
        """Return the timings of all items, each once."""
        found = [self.timing(item, group) for item in self.items for group in item.groups]
        return list({(each.folder, frozenset(each.jobs)): each for each in found if each is not None}.values())


@lru_cache(maxsize=4096)
def _job(words: tuple[str, ...], config_dir: str | None) -> config.Job:
    """Return the run of these overrides. Composing is slow."""
    return config.job(words, config_dir)


def _is_option(word: str) -> bool:
    return re.match(r"(seeds|timing(\.[^=]*)?)=", word) is not None


def read(name: str, words: Sequence[str] = (), config_dir: str | None = None) -> Items:
    """Return the item ``name``, or all items for ``ALL``, with the options and the overrides of all runs in ``words``.

    Raises: ConfigError for an unknown name and for a mistake in a file or in the words.
    """
    typed = tuple({word.partition("=")[0]: word for word in words}.values())
    options: Options = config.from_words(Options, [word for word in typed if _is_option(word)])
    names = item_file.options(config_dir) if name == ALL else [name]
    chosen = tuple(item_file.read(each, config_dir) for each in names)
    asked = Items(name, typed, chosen, options, config_dir)
    for item in chosen:
        norms = [norm for group in item.groups for norm in group.norms.values()]
        own = [word.partition("=")[0] for norm in norms for word in config.norm_words(norm)]
        own += [key for group in item.groups for key in flatten(group.runs)]
        refuse_managed(asked.words, [*MANAGED, *own], f"the item {item.name}")
    asked.runs(chosen)  # composed now, so that a mistake is reported before anything is done
    return asked


# What a command asks for: the runs of a campaign, which are tuned and decide its claims, or those of items, which are
# drawn. ``plan`` and ``timings`` say what is asked for, ``trial_words`` how a trial of a run is done.
Asked = CampaignRuns | Items


def asked(name: str, words: Sequence[str], config_dir: str | None) -> Asked:
    """Return what a command line asks for. A campaign comes before an item of the same name.

    Raises: ConfigError for an unknown name and for a mistake in a file or in the words.
    """
    campaigns = config.options(question.GROUP, config_dir)
    known = [*campaigns, *item_file.options(config_dir), ALL]
    if name not in known:
        raise config.ConfigError(config.unknown(question.GROUP, name, known, config_dir))
    if name in campaigns:
        return CampaignRuns(question.read(name, words, config_dir))
    return read(name, words, config_dir)
