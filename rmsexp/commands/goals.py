"""What a command of this package is to achieve: the verdicts of a campaign, or tables and figures of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rmsexp import config
from rmsexp.campaign import campaign_file, items, question, timing
from rmsexp.campaign.item_file import options
from rmsexp.campaign.items import Items
from rmsexp.campaign.question import Question
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.campaign.timing import Timing
from rmsexp.commands import item_plan, summary
from rmsexp.system.checks import nearest
from rmsexp.work.worker import Runs


class Goal(Protocol):
    """``runs``: those that workers do."""

    @property
    def runs(self) -> Runs: ...

    def timings(self) -> Sequence[Timing]:
        """Return the timings that follow the runs."""

    def print_plan(self) -> None:
        """Print the runs, what they take, and which are done."""

    def register(self) -> Path:
        """Write down the rules before the first run, and return the file. Raises: ConfigError if there are none."""

    def conclude(self) -> None:
        """Print or write what the records show."""


@dataclass(frozen=True)
class Verdicts:
    """The goal of a campaign."""

    question: Question

    @property
    def runs(self) -> Runs:
        return CampaignRuns(self.question)

    def timings(self) -> Sequence[Timing]:
        asked = timing.of_campaign(self.question)
        return [] if asked is None else [asked]

    def print_plan(self) -> None:
        summary.print_plan(self.question)

    def register(self) -> Path:
        CampaignRuns(self.question).register()
        return self.question.folder / campaign_file.REGISTRATION

    def conclude(self) -> None:
        summary.print_verdicts(self.question)


@dataclass(frozen=True)
class PaperItems:
    """The goal of the paper's items."""

    asked: Items

    @property
    def runs(self) -> Runs:
        return self.asked

    def timings(self) -> Sequence[Timing]:
        return self.asked.timings(self.asked.items)

    def print_plan(self) -> None:
        item_plan.print_plan(self.asked)

    def register(self) -> Path:
        raise config.ConfigError("only campaigns with claims are registered")

    def conclude(self) -> None:
        item_plan.conclude(self.asked)


def read(name: str, words: Sequence[str], config_dir: str | None) -> Goal:
    """Return the goal of a command line. A campaign comes before an item of the same name.

    Raises: ConfigError for an unknown name and for a mistake in a file or in the words.
    """
    campaigns, known = config.options(question.GROUP, config_dir), [*options(config_dir), items.ALL]
    if name in known and name not in campaigns:
        return PaperItems(items.read(name, words, config_dir))
    if name not in campaigns:
        listed = ", ".join([*campaigns, *known])
        results = next((word.partition("=")[2] for word in words if word.startswith("results=")), "results")
        hint = config.own_folder(question.GROUP, name, config_dir, results) or nearest(name, [*campaigns, *known])
        own = "" if config_dir else "; your own: --config-dir DIR"
        raise config.ConfigError(f"campaign {name} is not known{hint}{own} (one of {listed})")
    return Verdicts(question.read(name, words, config_dir))
