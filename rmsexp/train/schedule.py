"""Learning rate schedules, as functions of the step alone. Lengths are in steps."""

import math
from dataclasses import dataclass

from rmsexp.system import checks


@dataclass
class HoldThenDecay:
    """A constant rate in the first half of training, then a linear decrease towards zero; beta1 drops in the middle.

    The ``steps`` of training are divided into E periods of ``period`` steps, each with a constant rate (in the paper, a
    period is an epoch). Period e (from 0) has the factor ``min(1, 2 - 2 e / E)``. From period E / 2 on, ``late_beta1``
    replaces ``beta1`` (Salimans & Kingma 2016, section 5.1).
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
        if self.steps <= 2 * self.period:
            raise ValueError(f"schedule.period={self.period} must be less than half of schedule.steps={self.steps}")

    def at(self, step: int) -> dict[str, float]:
        """Return the factor on the learning rate, and beta1, at a step (from 0); later steps have the last one's."""
        period = min(step, self.steps - 1) // self.period
        half = self.steps / self.period / 2
        return {"lr": min(1.0, 2 - period / half), "beta1": self.beta1 if period < half else self.late_beta1}


@dataclass
class Constant:
    """A constant rate. Training has ``steps`` steps.

    ``warmup``: number of first steps in which the rate increases linearly; None: there are none. ``decay``: share of
    the steps, at the end, in which the rate decreases linearly towards zero; None: it does not decrease.
    """

    steps: int
    warmup: int | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        checks.at_least("schedule.steps", self.steps, 1)
        checks.at_least("schedule.warmup", self.warmup, 1)
        if self.warmup is not None and self.warmup > self.steps:
            raise ValueError(f"schedule.warmup={self.warmup} must be at most schedule.steps={self.steps}")
        checks.fraction("schedule.decay", self.decay)

    def at(self, step: int) -> dict[str, float]:
        """Return the factor on the learning rate at a step (from 0)."""
        last = 1.0  # the factor of the linear decrease; that of the last step is one step's decrease above zero
        if self.decay is not None:
            last = min(1.0, (self.steps - min(step, self.steps - 1)) / (self.decay * self.steps))
        return {"lr": self.first(step + 1) * last}

    def first(self, number: int) -> float:
        """Return the factor of the linear increase in step ``number``, from 1."""
        return min(1.0, number / (self.warmup or 1))


@dataclass
class WarmUp(Constant):
    """A linear increase over ``warmup`` steps, then a decrease with step^-0.5 (Vaswani et al. 2017, section 5.3).

    The factor is 1 at its peak, where the rate is ``optim.lr``. In that paper the rate at the peak is
    ``width^-0.5 * warmup^-0.5``. ``decay``: see :class:`Constant`; the linear decrease multiplies the other factor.
    """

    warmup: int = 4000

    def first(self, number: int) -> float:
        """Return the factor of the increase and of the decrease that follows, in step ``number``, from 1."""
        return min(number / self.warmup, (self.warmup / number) ** 0.5)


@dataclass
class Cosine:
    """A linear increase over ``warmup`` steps, then a decrease along half a cosine to the share ``floor`` of the rate.

    Source: Loshchilov & Hutter 2017, Eq. 5, without restarts.
    """

    steps: int
    warmup: int
    floor: float = 0.1

    def __post_init__(self) -> None:
        checks.at_least("schedule.steps", self.steps, 1)
        checks.at_least("schedule.warmup", self.warmup, 1)
        checks.probability("schedule.floor", self.floor)
        if self.warmup >= self.steps:
            raise ValueError(f"schedule.warmup={self.warmup} must be less than schedule.steps={self.steps}")

    def at(self, step: int) -> dict[str, float]:
        """Return the factor on the learning rate at a step (from 0); after the last it stays."""
        if step < self.warmup:
            return {"lr": (step + 1) / self.warmup}
        done = min(1.0, (step - self.warmup + 1) / (self.steps - self.warmup))
        return {"lr": self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2}
