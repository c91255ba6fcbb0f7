"""When a run evaluates its model, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmsexp.config import score
from rmsexp.task import INTERIM, WHOLE, Extent


@dataclass(frozen=True)
class Every:
    """An evaluation of all held-out splits every ``every`` steps, and at the end.

    Steps count from 0; an evaluation at step s comes after s steps.
    """

    every: int

    def after(self, step: int) -> int:
        """Return the first step after ``step`` at which there is an evaluation."""
        return (step // self.every + 1) * self.every

    def at(self, step: int, last: bool) -> Sequence[Extent]:
        """Return what is evaluated at a step, perhaps nothing. ``last``: whether it is the last step of the run."""
        return [WHOLE] if last or step % self.every == 0 else []


@dataclass(frozen=True)
class Scored:
    """The evaluations of a run that gets a score: see :mod:`rmsexp.config.score`.

    ``steps``: the steps of the schedule. ``test``: whether the test splits are evaluated, too.
    """

    steps: int
    test: bool

    def after(self, step: int) -> int:
        return next((point for point in score.steps(self.steps) if point > step), step + self.steps)

    def at(self, step: int, last: bool) -> Sequence[Extent]:
        points = score.steps(self.steps)
        if last or step in points[-score.SCORED :]:
            return [INTERIM, Extent(test=self.test)]
        return [INTERIM] if step in points else []


def of(config: Any) -> Every | Scored:
    """Return the evaluations that ``evaluation``, ``eval_every`` and ``schedule.steps`` of a task's config describe."""
    if config.evaluation is None:
        return Every(config.eval_every)
    return Scored(config.schedule.steps, test=config.evaluation == "scored")
