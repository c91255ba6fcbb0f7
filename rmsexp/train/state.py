"""The progress of a run, as saved in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class State:
    """The progress of a run.

    ``pending``: for each step since the last training row, a list of its objective, the sum of each of ``metrics``, the
    norm of the gradient, and the number of predictions. ``metrics_bytes``: the length of ``metrics.jsonl``.
    """

    step: int = 0  # number of steps taken
    examples: int = 0  # number of training examples used
    evaluated: int = -1  # the step of the last evaluation, or -1 before the first
    best: float | None = None  # best value so far of the metric that selects the best checkpoint
    pending: list[list[Any]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    metrics_bytes: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> State:
        """Return the state with the values of a checkpoint, whose digest was checked. Raises: KeyError for a lack."""
        return cls(**{each.name: values[each.name] for each in fields(cls)})
