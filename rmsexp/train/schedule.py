"""Learning rate schedules: functions of the step alone. Lengths are in steps of the recipe."""

from __future__ import annotations

from dataclasses import dataclass

from rmsexp import checks


@dataclass
class HoldThenDecay:
    """A constant rate for the first half of the recipe, then a linear decrease to zero; beta1 drops at half time.

    The recipe's ``steps`` are divided into periods of ``period`` steps (an epoch in the paper) that share one rate.
    Period e of E has the factor ``min(1, 2 - 2 e / E)``, and from ``E / 2`` on ``beta1`` is ``late_beta1``
    (Salimans & Kingma 2016, section 5.1).
    """

    steps: int
    period: int
    beta1: float
    late_beta1: float

    def __post_init__(self) -> None:
        checks.at_least("schedule.steps", self.steps, 1)
        checks.at_least("schedule.period", self.period, 1)
        checks.probability("schedule.beta1", self.beta1)
        checks.probability("schedule.late_beta1", self.late_beta1)

    def at(self, step: int) -> dict[str, float]:
        """Return the factor on the learning rate and beta1 at a step (from 0); constant after the last step."""
        period = min(step, self.steps - 1) // self.period
        half = self.steps / self.period / 2
        return {"lr": min(1.0, 2 - period / half), "beta1": self.beta1 if period < half else self.late_beta1}


@dataclass
class Constant:
    """A constant rate; the recipe has ``steps`` steps."""

    steps: int

    def __post_init__(self) -> None:
        checks.at_least("schedule.steps", self.steps, 1)

    def at(self, step: int) -> dict[str, float]:  # noqa: ARG002
        """Return the factor on the learning rate."""
        return {"lr": 1.0}


@dataclass
class WarmUp:
    """A linear increase over ``warmup`` steps, then a decrease with step^-0.5 (Vaswani et al. 2017, section 5.3).

    The factor is 1 at its peak, where the rate is ``optim.lr``; in the paper it is ``width^-0.5 * warmup^-0.5``.
    """

    steps: int
    warmup: int

    def __post_init__(self) -> None:
        checks.at_least("schedule.steps", self.steps, 1)
        checks.at_least("schedule.warmup", self.warmup, 1)

    def at(self, step: int) -> dict[str, float]:
        """Return the factor on the learning rate at a step (from 0)."""
        number = step + 1
        return {"lr": min(number / self.warmup, (self.warmup / number) ** 0.5)}
