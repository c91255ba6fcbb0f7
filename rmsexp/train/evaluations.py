"""When a run evaluates its model, and on what. Steps count from 0; an evaluation at step s comes after s steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmsexp.config import score
from rmsexp.task import INTERIM, WHOLE, Extent


def after(config: Any, step: int) -> int:
    """Return the first step after ``step`` at which a run with this config of a task is evaluated.

    It is evaluated every ``eval_every`` steps or, if it gets a score, at the steps of :mod:`rmsexp.config.score`.
    """
    if config.evaluation is None:
        return (step // config.eval_every + 1) * config.eval_every
    steps = config.schedule.steps
    return next((point for point in score.steps(steps) if point > step), step + steps)


def at(config: Any, step: int, last: bool) -> Sequence[Extent]:
    """Return what is evaluated at a step, perhaps nothing. ``last``: whether it is the last step of the run."""
    if config.evaluation is None:
        return [WHOLE] if last or step % config.eval_every == 0 else []
    points = score.steps(config.schedule.steps)
    if last or step in points[-score.SCORED :]:
        return [INTERIM, Extent(test=config.evaluation == "scored")]
    return [INTERIM] if step in points else []
