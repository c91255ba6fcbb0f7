"""The paper's tables and figures that a command is to make: campaigns without tuning and claims, which are drawn.

Their runs are ordinary runs in ordinary folders. A run that has ended already is not repeated, and items share runs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rmsexp import config
from rmsexp.campaign import item_file, question
from rmsexp.campaign.asked import WHERE_AND_HOW, Request, Timing, folder_name, overrides, timing
from rmsexp.campaign.item_file import Group, Item
from rmsexp.campaign.progress import Plan
from rmsexp.config.timing import ProcessOptions
from rmsexp.records.states import read_run

ALL = "paper"  # the name that stands for all items
FOLDER = "paper"  # of tables and figures, below the results
OPTION = re.compile(r"(seeds|timing(\.[^=]*)?)=")  # words with options of the command; the others are overrides


@dataclass
class Options:
    """The options of the command, which are no overrides of runs."""

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
        """The folder of its setting. A plan estimates times by norm, and here all norms are taken to need the same."""
        return str(PurePosixPath(self.folder).parents[1])


@dataclass(frozen=True)
class Items(Request):
    """Items that a command is to make."""

    items: tuple[Item, ...]
    options: Options

    MANAGED = ("task", "norm", "seed", "force")  # by seeds=[…] and the items' files

    @property
    def scale(self) -> str:
        return str(self.common.config.scale)

    @property
    def folder(self) -> Path:
        """The folder of the tables and figures."""
        changes = [word for word in self.words if not word.startswith((*WHERE_AND_HOW, "scale="))]
        return self.results / FOLDER / folder_name(self.scale, changes)

    @property
    def title(self) -> str:
        item = self.items[0]
        return f"{item.title}: {item.caption}" if len(self.items) == 1 else "tables and figures of the paper"

    def page(self, item: str) -> Path:
        """Return the file with the text of an item."""
        return self.folder / f"{item}.md"

    @cached_property
    def groups(self) -> dict[str, list[dict[str, list[Run]]]]:
        """By the item's name, a dict per group: the runs of each row, one per seed, by the row's name in the paper.

        An absent group has no rows. In a table of times alone training steps are timed, but the runs are not done.
        """
        return {item.name: [self._runs(item, group) for group in item.groups] for item in self.items}

    def _runs(self, item: Item, group: Group) -> dict[str, list[Run]]:
        words = overrides({"threads": 1}, group.runs, item.at.get(self.scale, {}), typed=self.words)
        runs: dict[str, list[Run]] = {}
        try:
            for row, norm in {} if group.absent else group.norms.items():
                series = (*words, *config.norm_words(norm))
                folder = self.composed([*series, "seed=0"]).folder.parent.relative_to(self.results)
                runs[row] = [Run(f"{folder}/seed{seed}", (*series, f"seed={seed}")) for seed in self.options.seeds]
        except config.ConfigError as error:
            raise config.ConfigError(f"item {item.name}: {error}") from None
        return runs

    def words_of(self, run: Run) -> Sequence[str]:
        return run.words

    def state(self, run: Run) -> str:
        """Return the state of a run; "interrupted" if it finished with fewer steps than now asked for."""
        found = read_run(self.results / run.folder)
        is_longer = found.state == "finished" and found.step < self.composed(run.words).config.max_steps
        return "interrupted" if is_longer else found.state

    def begin(self, run: Run) -> config.Job:
        return self.composed(run.words)

    def plan(self) -> Plan:
        stages = {
            item.name: [run for group in self.groups[item.name] for runs in group.values() for run in runs]
            for item in self.items
            if item.has_runs
        }
        return Plan(stages, {run: self.state(run) for runs in stages.values() for run in runs})

    def timing_of(self, item: Item, runs: dict[str, list[Run]]) -> Timing | None:
        """Return the timing of a group's norms; None if the item is not timed or the group, ``runs``, is empty."""
        jobs = [self.composed(of_row[0].words) for of_row in runs.values()]
        return timing(jobs, self.options.timing) if item.timed and jobs else None

    def timings(self) -> list[Timing]:
        found = [self.timing_of(item, runs) for item in self.items for runs in self.groups[item.name]]
        return list({(each.folder, frozenset(each.jobs)): each for each in found if each is not None}.values())


Asked = question.Question | Items


def read(name: str, words: Sequence[str] = (), config_dir: str | None = None) -> Items:
    """Return the item ``name``, or all items for ``ALL``, with the options and the overrides of all runs in ``words``.

    Raises: ConfigError for an unknown name and for a mistake in a file or in the words.
    """
    typed = overrides(typed=words)
    options: Options = config.from_words(Options, [word for word in typed if OPTION.match(word)])
    chosen = item_file.options(config_dir) if name == ALL else [name]
    items = tuple(item_file.read(each, config_dir) for each in chosen)
    asked = Items(name, typed, tuple(word for word in typed if not OPTION.match(word)), config_dir, items, options)
    for group in (group for item in items for group in item.groups):
        own = [word.partition("=")[0] for norm in group.norms.values() for word in config.norm_words(norm)]
        asked.refuse_managed(asked.words, [*own, *config.flatten(group.runs)])
    assert asked.groups is not None  # composed now, so that a mistake is reported before anything is done
    return asked


def asked(name: str, words: Sequence[str], config_dir: str | None) -> Asked:
    """Return what a command line asks for. A campaign comes before an item of the same name.

    Raises: ConfigError for an unknown name and for a mistake in a file or in the words.
    """
    campaigns = config.options(question.GROUP, config_dir)
    known = [*campaigns, *item_file.options(config_dir), ALL]
    if name not in known:
        raise config.ConfigError(config.unknown(question.GROUP, name, known, config_dir))
    return question.read(name, words, config_dir) if name in campaigns else read(name, words, config_dir)
