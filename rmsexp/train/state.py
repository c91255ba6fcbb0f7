"""The progress of a run, as saved in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from rmsexp.system.typed import LARGEST, Between, Count, typed

Seconds = Annotated[float, Between(0, LARGEST)]


@dataclass
class State:
    """The progress of a run.

    ``pending``: for each step since the last training row, a list of its objective, the sum of each of ``metrics``, the
    norm of the gradient, and the number of predictions. ``metrics_bytes``: the length of ``metrics.jsonl``.
    """

    step: Count = 0  # number of steps taken
    examples: Count = 0  # number of training examples used
    evaluated: Annotated[int, Between(-1, LARGEST)] = -1  # the step of the last evaluation, or -1 before the first
    best: float | None = None  # best value so far of the metric that selects the best checkpoint
    pending: list[list[Any]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    metrics_bytes: Count = 0
    skipped: Count = 0  # number of steps that changed no parameter (precision=float16)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> State:
        """Return the state with the values of a checkpoint.

        Raises: ValueError, with the name of the value, for a value that no run can have.
        """
        missing = [field.name for field in fields(cls) if field.name not in values]
        if missing:
            raise ValueError(f"its state has no {missing[0]}")
        state = typed(cls, values, "its state")
        columns, step = len(state.metrics) + 3, state.step
        possible = {
            "examples": state.examples >= step,  # a step has at least one
            "evaluated": state.evaluated <= step,
            "skipped": state.skipped <= step,
            "pending": len(state.pending) <= step
            and all(len(row) == columns and {*map(type, row)} <= {int, float} for row in state.pending),
        }
        for name, is_possible in possible.items():
            if not is_possible:
                raise ValueError(f"its {name} is {values[name]!r:.40}")
        return state


def clock_seconds(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds in each bucket of a checkpoint's clock. Raises: ValueError if they are none."""
    return typed(dict[str, Seconds], values, "its clock")
