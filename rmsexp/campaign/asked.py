"""What a command asks for: a campaign, or tables and figures of the paper, as runs that workers do and timings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rmsexp.campaign.progress import Plan
from rmsexp.campaign.timing import Timing


class Asked(Protocol):
    """What a command asks for. Its runs are done by workers, for which it is a :class:`rmsexp.work.worker.Runs`.

    ``results``: the folder of all records. ``folder``: that of the campaign, or of the items, below it.
    ``config_dir``: the folder of ``--config-dir``.
    """

    @property
    def results(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    @property
    def config_dir(self) -> str | None: ...
    @property
    def title(self) -> str: ...

    def command(self) -> tuple[str, ...]:
        """Return the words after ``python -m rmsexp.campaign``."""

    def plan(self) -> Plan: ...

    def timings(self) -> Sequence[Timing]:
        """Return the timings that follow the runs."""

    def trial_words(self, job: Any) -> Sequence[str]:
        """Return the words of a run like this one, of which a trial is made."""

    def alike(self, job: Any) -> str:
        """Return what a run shares with those that take as long."""

    def register(self) -> Path:
        """Write down the rules before the first run, and return the file. Raises: ConfigError if there are none."""
