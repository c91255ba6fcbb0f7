"""What a command of this package is to achieve: the verdicts of a campaign, or tables and figures of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmsexp import config
from rmsexp.campaign import items, question
from rmsexp.campaign.item_file import options
from rmsexp.campaign.items import Asked, Items
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.campaign.timing import Timing
from rmsexp.commands import summary


@dataclass(frozen=True)
class Goal:
    """``runs``: those that workers do."""

    runs: Asked

    def timings(self) -> Sequence[Timing]:
        """Return the timings that follow the runs."""
        return self.runs.timings()

    def print_plan(self) -> None:
        """Print the runs, what they take, and which are done."""
        summary.print_plan(self.runs)

    def register(self) -> Path:
        """Write down the rules before the first run, and return the file. Raises: ConfigError if there are none."""
        return self.runs.register()

    def conclude(self) -> None:
        """Print the verdicts that the records show, or draw the items."""
        if isinstance(self.runs, Items):
            summary.draw(self.runs)
        else:
            summary.print_verdicts(self.runs)


def read(name: str, words: Sequence[str], config_dir: str | None) -> Goal:
    """Return the goal of a command line. A campaign comes before an item of the same name.

    Raises: ConfigError for an unknown name and for a mistake in a file or in the words.
    """
    campaigns, known = config.options(question.GROUP, config_dir), [*options(config_dir), items.ALL]
    if name in campaigns:
        return Goal(CampaignRuns(question.read(name, words, config_dir)))
    if name in known:
        return Goal(items.read(name, words, config_dir))
    raise config.ConfigError(config.unknown(question.GROUP, name, [*campaigns, *known], config_dir))
