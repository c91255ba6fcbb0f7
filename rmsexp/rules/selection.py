"""How the learning rate of each norm is chosen: which runs it takes, and the choice.

1. Every norm is run once at every rate of the grid, with the first tuning seed.
2. Where the best rate of a norm is at an edge of the grid, the grid is extended by an octave on that side, for every
   norm, and 1 is repeated. A norm that diverged at every rate counts as best at the lowest.
3. The two best rates of each norm are run with the other tuning seeds, too. A rate that diverges there is replaced by
   the norm's next best.
4. The rate of a norm is the one of these with the best mean over the seeds. Where it is at an edge, the grid is
   extended as in 2, and the rates that were run with all seeds stay in the choice. The grid is extended at most twice
   in all; one extension may be at both edges.

A rate at which any seed diverged ranks behind every rate at which none did. Everything is a function of the values so
far and does not depend on the order in which the runs finish, so any number of workers agree on it.

Values are given by norm, rate and seed. NaN stands for a run that diverged; a run that is not finished has no entry.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import special

from rmsexp import checks
from rmsexp.rules.pairs import sign

EXTENSIONS = 2
TUNING_SEEDS = 3
FINALISTS = 2  # rates of a norm that are run with all tuning seeds
LUCK_LEVEL = 0.95  # of the bound of how much better another rate may be

Seeds = Mapping[int, float]
Rates = Mapping[float, Seeds]
Values = Mapping[str, Rates]


class Run(NamedTuple):
    norm: str
    rate: float
    seed: int


class Plan(NamedTuple):
    """The grid as extended so far, and the runs that are to be made now. Without a run, tuning is finished."""

    grid: tuple[float, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Choice:
    """The rate of a norm.

    Attributes:
        rate: the chosen rate; None if the norm diverged at every rate.
        mean: the mean of the validation metric over the tuning seeds that did not diverge at this rate.
        diverged: the number of tuning seeds that diverged at this rate.
        edge: "lowest" or "highest" if it is at an edge of the extended grid, otherwise None.
        luck: how much better the norm would be at another rate of the grid, at most, in the unit of the metric: the
            largest of max(0, t s / sqrt(n) - d) over the other rates at which no seed diverged. With n seeds common to
            both rates, d is how much better the chosen rate is in their mean, and the first term of the difference
            makes this a 95 % bound for the rate. s² is the variance over seeds of the difference between a norm's two
            best rates, pooled over the m norms with k seeds, and t the 95 % quantile of the t distribution with
            m (k - 1) degrees of freedom. 0 if no other rate remained, NaN if the chosen rate is not known to be stable
            or there is a single seed.
    """

    rate: float | None
    mean: float
    diverged: int
    edge: str | None
    luck: float


def next_runs(grid: Sequence[float], values: Values, mode: str, seeds: Sequence[int]) -> Plan:
    """Return the extended grid and the runs to be made now, which do not depend on each other.

    Args:
        grid: the rates that the campaign starts with, ascending, an octave apart.
        values: the validation metric so far; its keys are all norms.
        mode: "min" or "max", the better direction of the metric.
        seeds: the tuning seeds. With a single one, a rate is chosen by one run.

    Raises: ValueError if the rates are not an octave apart or there is no seed.
    """
    return _replay(grid, values, mode, seeds)[0]


def choose(grid: Sequence[float], values: Values, mode: str, seeds: Sequence[int]) -> dict[str, Choice]:
    """Return the choice of each norm. The arguments are those of :func:`next_runs`.

    Raises: ValueError if runs are missing, or as :func:`next_runs`.
    """
    (_, runs), norms = _replay(grid, values, mode, seeds)
    if runs:
        raise ValueError(f"tuning is not finished: {len(runs)} runs are missing, such as {runs[0]}")
    leads = [lead for norm in norms.values() if (lead := norm.lead()) is not None]
    freedom = len(leads) * (len(seeds) - 1)
    if freedom:
        deviation = math.sqrt(np.mean(np.var(leads, axis=1, ddof=1)))
        bound = float(special.stdtrit(freedom, LUCK_LEVEL)) * deviation
    else:
        bound = math.nan
    return {name: norm.choice(bound) for name, norm in norms.items()}


def ranked(tried: Rates, mode: str) -> list[float]:
    """Return the rates by the share of seeds that diverged, then by the mean of the others, best first.

    Rates at which no seed finished are left out.
    """
    orientation = sign(mode)
    order = {}
    for rate, values in tried.items():
        finished = [value for value in values.values() if not math.isnan(value)]
        if finished:
            order[rate] = (1 - len(finished) / len(values), -orientation * math.fsum(finished) / len(finished))
    return sorted(order, key=lambda rate: order[rate])


@dataclass(frozen=True)
class _Norm:
    """The tuning runs of one norm.

    Attributes:
        grid: the rates as extended so far.
        mode: "min" or "max", the better direction of the metric.
        kept: the rates that were run with all seeds before the grid was last extended.
    """

    tried: Rates
    grid: tuple[float, ...]
    seeds: tuple[int, ...]
    mode: str
    kept: tuple[float, ...] = ()

    def by_first_seed(self) -> list[float]:
        """Return the rates at which the first seed did not diverge, best first; of equal ones the lowest first."""
        return ranked({rate: {self.seeds[0]: self.tried[rate][self.seeds[0]]} for rate in self.grid}, self.mode)

    def finalists(self) -> list[float]:
        """Return the rates that are run with all seeds: the two best, those kept, and the next best if they diverge."""
        best = self.by_first_seed()
        found = list(dict.fromkeys([*self.kept, *best[:FINALISTS]]))
        rest = [rate for rate in best if rate not in found]
        while True:
            lacking = FINALISTS - sum(self._share_diverged(rate) == 0 for rate in found)
            unfinished = any(seed not in self.tried[rate] for rate in found for seed in self.seeds)
            if unfinished or lacking <= 0 or not rest:
                return found
            found, rest = found + rest[:lacking], rest[lacking:]

    def ranked(self) -> list[float]:
        """Return the rates that were run with all seeds, best first."""
        finals = {rate: {seed: self.tried[rate][seed] for seed in self.seeds} for rate in self.finalists()}
        return ranked(finals, self.mode)

    def lead(self) -> list[float] | None:
        """Return the second best rate's values minus the best one's, by seed; None if they are not both stable."""
        best = self.ranked()[:FINALISTS]
        if len(best) < FINALISTS or any(map(self._share_diverged, best)):
            return None
        return [self.tried[best[1]][seed] - self.tried[best[0]][seed] for seed in self.seeds]

    def choice(self, bound: float) -> Choice:
        """Return the choice. ``bound``: t s of :class:`Choice`."""
        order = self.ranked()
        if not order:
            return Choice(None, math.nan, 0, None, math.nan)
        rate = order[0]
        edges = {self.grid[-1]: "highest", self.grid[0]: "lowest"}
        diverged = sum(math.isnan(self.tried[rate][seed]) for seed in self.seeds)
        return Choice(rate, self._mean(rate), diverged, edges.get(rate), self._luck(rate, bound))

    def _luck(self, chosen: float, bound: float) -> float:
        """Return the rate luck of the chosen rate. ``bound``: t s of :class:`Choice`."""
        if len(self.seeds) == 1 or self._share_diverged(chosen):
            return math.nan
        losses = [0.0]
        for rate in self.grid:
            if rate != chosen and not self._share_diverged(rate):
                common = [seed for seed in self.seeds if seed in self.tried[rate]]
                leads = [sign(self.mode) * (self.tried[chosen][seed] - self.tried[rate][seed]) for seed in common]
                losses.append(bound / math.sqrt(len(common)) - math.fsum(leads) / len(leads))
        return math.nan if any(map(math.isnan, losses)) else max(losses)

    def _share_diverged(self, rate: float) -> float:
        values = [self.tried[rate][seed] for seed in self.seeds if seed in self.tried[rate]]
        return sum(map(math.isnan, values)) / len(values)

    def _mean(self, rate: float) -> float:
        values = [self.tried[rate][seed] for seed in self.seeds if not math.isnan(self.tried[rate][seed])]
        return math.fsum(values) / len(values)


def _replay(grid: Sequence[float], values: Values, mode: str, seeds: Sequence[int]) -> tuple[Plan, dict[str, _Norm]]:
    """Return the plan, and the norms with the plan's grid, by going through the steps from the beginning."""
    rates, extensions = _checked(grid, seeds), EXTENSIONS
    norms = {name: _Norm(tried, rates, tuple(seeds), mode) for name, tried in values.items()}
    while True:
        if runs := _unfinished(norms, dict.fromkeys(norms, rates), seeds[:1]):
            return Plan(rates, runs), norms
        wider = _extended(rates, [norm.by_first_seed() for norm in norms.values()], extensions)
        if wider == rates:
            finalists = {name: tuple(norm.finalists()) for name, norm in norms.items()}
            if runs := _unfinished(norms, finalists, seeds):
                return Plan(rates, runs), norms
            wider = _extended(rates, [norm.ranked() for norm in norms.values()], extensions)
            norms = {name: replace(norm, kept=finalists[name]) for name, norm in norms.items()}
        if wider == rates:
            return Plan(rates, ()), norms
        rates, extensions = wider, extensions - 1
        norms = {name: replace(norm, grid=rates) for name, norm in norms.items()}


def _checked(grid: Sequence[float], seeds: Sequence[int]) -> tuple[float, ...]:
    if not grid or not seeds:
        raise ValueError("tuning needs at least one rate and one seed")
    for low, high in itertools.pairwise(grid):
        if not math.isclose(high, 2 * low, rel_tol=1e-6):
            raise ValueError(f"the rates of the grid must be an octave apart: {high:g} does not follow {low:g}")
    checks.positive("the lowest rate of the grid", grid[0])
    return tuple(grid)


def _unfinished(
    norms: Mapping[str, _Norm], rates: Mapping[str, Sequence[float]], seeds: Sequence[int]
) -> tuple[Run, ...]:
    """Return the runs of each norm at its ``rates``, with all ``seeds``, that are not finished."""
    runs = (Run(name, *at) for name in norms for at in itertools.product(rates[name], seeds))
    return tuple(run for run in runs if run.seed not in norms[run.norm].tried.get(run.rate, {}))


def _extended(rates: tuple[float, ...], orders: Iterable[Sequence[float]], extensions: int) -> tuple[float, ...]:
    """Return the grid, wider by an octave at each edge at which a norm is best, if extensions are left.

    ``orders``: of each norm, the rates at which it did not diverge, best first.
    """
    best = {order[0] if order else rates[0] for order in orders} if extensions else set()
    lower = (rates[0] / 2,) if rates[0] in best else ()
    higher = (2 * rates[-1],) if rates[-1] in best else ()
    return lower + rates + higher
