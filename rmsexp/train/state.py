"""The progress of a run, as saved in its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

ADDED = {"metrics_digest", "skipped"}  # values that checkpoints of older versions lack


@dataclass
class State:
    """The progress of a run, as in a checkpoint.

    ``pending``: for each step since the last training row, a list of its objective, the sum of each of ``metrics``, the
    norm of the gradient, and the number of predictions. ``metrics_bytes``: the length of ``metrics.jsonl``.
    ``metrics_digest``: the SHA-256 of these bytes at the last checkpoint; "" if it is not known.
    """

    step: int = 0  # number of steps taken
    examples: int = 0  # number of training examples used
    evaluated: int = -1  # the step of the last evaluation, or -1 before the first
    best: float | None = None  # best value so far of the metric that selects the best checkpoint
    pending: list[list[float]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    metrics_bytes: int = 0
    metrics_digest: str = ""
    skipped: int = 0  # number of steps that changed no parameter (precision=float16)

    @classmethod
    def of(cls, values: Any) -> State:
        """Return the state with the values of a checkpoint; those of older versions lack values of ``ADDED``.

        Raises: ValueError, with the name of the value, for a value that no run can have.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() | ADDED != names:
            raise ValueError(f"its state does not have the values {', '.join(sorted(names))}")
        state = cls(**values)
        for name, valid in state._validity():
            if not valid:
                raise ValueError(f"its {name} is {values.get(name)!r:.40}")
        return state

    def _validity(self) -> Iterator[tuple[str, bool]]:
        """Yield the name of each value and whether it is possible. A step has at least one example."""
        yield "step", _is_integer(self.step, 0)
        yield "examples", _is_integer(self.examples, self.step)
        yield "evaluated", _is_integer(self.evaluated, -1) and self.evaluated <= self.step
        yield "best", self.best is None or (_is_number(self.best) and math.isfinite(self.best))
        yield "metrics", isinstance(self.metrics, list) and all(isinstance(name, str) for name in self.metrics)
        yield "pending", isinstance(self.pending, list) and len(self.pending) <= self.step
        columns = len(self.metrics) + 3
        for row in self.pending:
            yield "pending", isinstance(row, list) and len(row) == columns and all(map(_is_number, row))
        yield "metrics_bytes", _is_integer(self.metrics_bytes, 0)
        yield "metrics_digest", isinstance(self.metrics_digest, str)
        yield "skipped", _is_integer(self.skipped, 0) and self.skipped <= self.step


def _is_integer(value: object, least: int) -> bool:
    return type(value) is int and value >= least


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
