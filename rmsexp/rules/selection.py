"""How the learning rate of each norm is chosen: which runs it takes, the choice, and how uncertain it is.

Rates are counted in quarters of an octave; an octave is a factor of 2.

1. Every norm is run once at every rate of the grid, octaves apart, with the first tuning seed.
2. Where the best rate of a norm is at an edge of the grid, the grid is extended by an octave on that side, for every
   norm, and 1 is repeated. A norm that diverged at every rate counts as best at the lowest.
3. Every norm is run once at the two half-octaves beside its best rate, then once at the two quarter-octaves beside the
   best rate so far.
4. The three best rates of each norm are run with the other tuning seeds, too. A rate that diverges there is replaced by
   the norm's next best.
5. The rate of a norm is the one of these with the best mean over the seeds. Where it is at or beyond an edge of the
   grid, or the rate at the edge is not clearly worse, the grid is extended as in 2, and the rates that were run with
   all seeds stay in the choice. The grid is extended at most twice in all; one extension may be at both edges.
6. The quarter-octaves beside the chosen rate are run once, unless that was done, and 4 and 5 are repeated with them.

A rate is clearly worse if it is worse by more than four standard errors of the mean difference, computed from the
:func:`scatter` of the runs. Campaigns that began before 1 December 2026 have the rule ``QUARTERS``, without that
comparison; those before 28 November have ``OCTAVES``, also without the steps 3 and 6, and with two rates in step 4.

A rate at which any seed diverged ranks behind every rate at which none did. Everything is a function of the values so
far and does not depend on the order in which the runs finish, so any number of workers agree on it.

Values are given by norm, rate and seed. NaN stands for a run that diverged; a run that is not finished has no entry.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from rmsexp.rules.pairs import sign
from rmsexp.system import checks

EXTENSIONS = 2
# In standard errors. Their estimate has few degrees of freedom, and several norms are compared at two ends.
CLEARLY_WORSE = 4
TUNING_SEEDS = 3
OCTAVE = 4  # quarters of an octave
DIGITS = 4  # significant digits of a rate between octaves

Seeds = Mapping[int, float]
Rates = Mapping[float, Seeds]
Values = Mapping[str, Rates]
K = TypeVar("K")


class Rule(NamedTuple):
    """``steps``: the distances, in quarters of an octave, at which rates beside the best one are run, in this order.

    ``finalists``: the number of rates of a norm that are run with all tuning seeds. ``counts_scatter``: whether the
    :func:`scatter` of tuning runs counts, in the extensions of step 5 and in the uncertainty.
    """

    steps: tuple[int, ...]
    finalists: int
    counts_scatter: bool

    @property
    def runs(self) -> int:
        """The least number of runs of a norm beyond the grid if none diverges; step 6 and extensions may add some."""
        return 2 * len(self.steps) + self.finalists * (TUNING_SEEDS - 1)


OCTAVES = Rule((), 2, counts_scatter=False)
QUARTERS = Rule((2, 1), 3, counts_scatter=False)
SCATTER = Rule((2, 1), 3, counts_scatter=True)


class Run(NamedTuple):
    norm: str
    rate: float
    seed: int


@dataclass(frozen=True)
class Choice:
    """The rate of a norm.

    Attributes:
        rate: the chosen rate; None if the norm diverged at every rate.
        edge: "lowest" or "highest" if it is at or beyond an edge of the extended grid, otherwise None.
        uncertainty: R = √(min((d₋ + d₊) / 4, 2 d₋ d₊ / (d₋ + d₊))² + s² / n) in the unit of the metric. d₋ and d₊
            are by how much the chosen rate is better than the rates a quarter-octave below and above it, in the mean
            over the seeds that both have, and at least 0; a rate at which a seed diverged is infinitely worse. R / 2 is
            taken as the standard deviation of what the norm would gain at its best rate. If the metric is a parabola in
            the logarithm of the rate, and the best rate is at most an eighth of an octave away, the gain is at most
            half of the first term. The second limits R where one d is more than 5.8 times the other. s is the scatter
            of tuning runs and n the number of seeds, so the last term is the variance of a mean; older rules leave it
            out. NaN if R is not known: a neighbour was not run, both diverged, the chosen rate itself diverged, or the
            scatter is not known.
    """

    rate: float | None
    edge: str | None = None
    uncertainty: float = math.nan


class Plan(NamedTuple):
    """The grid as extended so far, the runs to be made now, and, if there are none, the choice of each norm."""

    grid: tuple[float, ...]
    runs: tuple[Run, ...]
    choices: dict[str, Choice]


def tune(grid: Sequence[float], values: Values, mode: str, seeds: Sequence[int], rule: Rule = SCATTER) -> Plan:
    """Return the extended grid and the runs to be made now, which do not depend on each other, or the choices.

    Args:
        grid: the rates that the campaign starts with, ascending, an octave apart.
        values: the validation metric so far; its keys are all norms.
        mode: "min" or "max", the better direction of the metric.
        seeds: the tuning seeds. With a single one, a rate is chosen by one run.
        rule: by which rates are chosen.

    Raises: ValueError if the rates are not positive and an octave apart, or if there is no rate or no seed.
    """
    if not grid or not seeds:
        raise ValueError("tuning needs at least one rate and one seed")
    for low, high in itertools.pairwise(grid):
        if not math.isclose(high, 2 * low, rel_tol=1e-6):
            raise ValueError(f"the rates of the grid must be an octave apart: {high:g} does not follow {low:g}")
    checks.positive("the lowest rate of the grid", grid[0])
    rate, ends, extensions = scale(grid), (0, OCTAVE * (len(grid) - 1)), EXTENSIONS
    norms = [_Norm(name, tried, rate, mode, seeds, rule.finalists) for name, tried in values.items()]
    while True:  # go through the steps from the beginning
        for norm in norms:
            norm.ends = ends
            norm.places.update(range(ends[0], ends[1] + 1, OCTAVE))
        runs = _first_runs(norms)
        wider = ends if runs else _extended(ends, [norm.by_first_seed()[:1] for norm in norms], extensions)
        s = 0.0
        if wider == ends and not runs and not (runs := _refine(norms, rule)):
            s = scatter(norm.with_all_seeds() for norm in norms) if rule.counts_scatter else 0.0
            wider = _extended(ends, [norm.may_be_best(s) for norm in norms], extensions)
        if wider == ends:
            octaves = range(ends[0], ends[1] + 1, OCTAVE)
            return Plan(tuple(map(rate, octaves)), runs, {} if runs else {norm.name: norm.choice(s) for norm in norms})
        ends, extensions = wider, extensions - 1


def scatter(norms: Iterable[Mapping[K, Seeds]]) -> float:
    """Return the residual standard deviation of runs in the additive model rate + seed, pooled over norms.

    ``norms``: the values of each norm by rate and seed; all of its rates have the same seeds, in one order. Rates at
    which a seed diverged do not count. NaN if no norm has two rates and two seeds.
    """
    squares, freedom = 0.0, 0
    for tried in norms:
        values = np.array([[*seeds.values()] for seeds in tried.values() if all(map(math.isfinite, seeds.values()))])
        if len(values):
            rest = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
            squares += float((rest**2).sum())
            freedom += (len(values) - 1) * (values.shape[1] - 1)
    return math.sqrt(squares / freedom) if freedom else math.nan


def ranked(tried: Mapping[K, Seeds], mode: str) -> list[K]:
    """Return the rates by the share of seeds that diverged, then by the mean of the others, best first.

    The keys of ``tried`` are the rates, or stand for them. Rates at which no seed finished are left out.
    """
    order = {}
    for rate, values in tried.items():
        finished = [value for value in values.values() if not math.isnan(value)]
        if finished:
            order[rate] = (1 - len(finished) / len(values), -sign(mode) * math.fsum(finished) / len(finished))
    return sorted(order, key=lambda rate: order[rate])


def scale(grid: Sequence[float]) -> Callable[[int], float]:
    """Return a function that maps a number of quarter-octaves above the lowest rate of the grid to a rate.

    Rates between octaves are rounded to ``DIGITS`` significant digits.
    """

    def rate(place: int) -> float:
        octave, quarters = divmod(place, OCTAVE)
        known = min(max(octave, 0), len(grid) - 1)
        lower = grid[known] * 2.0 ** (octave - known)
        return float(f"{lower * 2 ** (quarters / OCTAVE):.{DIGITS}g}") if quarters else lower

    return rate


class _Norm:
    """The tuning runs of one norm, as far as the steps have come.

    Attributes:
        rate: the rate at a place, in quarters of an octave (:func:`scale`).
        ends: the lowest and the highest place of the grid.
        places: the places that are run with the first seed.
        number: how many places are run with all seeds.
        kept: the places that are run with all seeds; none is given up when others are added.
    """

    def __init__(
        self, name: str, tried: Rates, rate: Callable[[int], float], mode: str, seeds: Sequence[int], number: int
    ) -> None:
        self.name, self.tried, self.rate, self.mode, self.seeds, self.number = name, tried, rate, mode, seeds, number
        self.ends, self.places, self.kept = (0, 0), set[int](), list[int]()

    def values(self, place: int) -> Seeds:
        return self.tried.get(self.rate(place), {})

    def add_beside(self, order: Sequence[int], step: int) -> None:
        """Add the places ``step`` quarter-octaves below and above the best, the first of ``order``, if there is one.

        Places an octave beyond the grid, or further, are left out.
        """
        added = (place + side for place in order[:1] for side in (-step, step))
        self.places.update(place for place in added if self.ends[0] - OCTAVE < place < self.ends[1] + OCTAVE)

    def unfinished(self, places: Iterable[int], seeds: Iterable[int]) -> list[Run]:
        runs = itertools.product(places, seeds)
        return [Run(self.name, self.rate(place), seed) for place, seed in runs if seed not in self.values(place)]

    def by_first_seed(self) -> list[int]:
        """Return the places at which the first seed did not diverge, best first; of equal ones the lowest first."""
        first = self.seeds[0]
        return ranked({place: {first: self.values(place)[first]} for place in sorted(self.places)}, self.mode)

    def finalists(self) -> list[int]:
        """Return the places that are run with all seeds: the best, those kept, and the next best if they diverge."""
        best = self.by_first_seed()
        found = list(dict.fromkeys([*self.kept, *best[: self.number]]))
        rest = [place for place in best if place not in found]
        while True:
            values = [[self.values(place).get(seed, 0.0) for seed in self.seeds] for place in found]
            lacking = self.number - sum(not any(map(math.isnan, of_place)) for of_place in values)
            if self.unfinished(found, self.seeds) or lacking <= 0 or not rest:
                return found
            found, rest = found + rest[:lacking], rest[lacking:]

    def with_all_seeds(self) -> dict[int, Seeds]:
        """Return the values of the places that were run with all seeds, in the order of the seeds."""
        return {place: {seed: self.values(place)[seed] for seed in self.seeds} for place in self.kept}

    def ranked(self) -> list[int]:
        """Return the places that were run with all seeds, best first."""
        return ranked(self.with_all_seeds(), self.mode)

    def may_be_best(self, s: float) -> list[int]:
        """Return the best place, if there is one, and the ends of the grid that are not clearly worse.

        ``s``: the scatter of runs. An end that has only its first seed at this step is compared by that seed, even if
        it was run with the others later: going through the steps again must give the same extensions.
        """
        best = self.ranked()[:1]
        found = [*best]
        for end in self.ends if best else ():
            seeds = self.seeds if end in self.kept else self.seeds[:1]
            if self._drop(best[0], end, seeds) < CLEARLY_WORSE * s * math.sqrt(2 / len(seeds)):
                found.append(end)
        return found

    def choice(self, s: float) -> Choice:
        """Return the rate of the norm. ``s``: the scatter of runs."""
        order = self.ranked()
        if not order:
            return Choice(None)
        place = order[0]
        edge = "highest" if place >= self.ends[1] else "lowest" if place <= self.ends[0] else None
        low, high = sorted(self._drop(place, place + side, self.seeds) for side in (-1, 1))
        own = [self.values(place)[seed] for seed in self.seeds]
        if low == math.inf or any(map(math.isnan, (low, high, *own))):
            return Choice(self.rate(place), edge)
        drop = min((low + high) / 4, 2 * low / (1 + low / high)) if high else 0.0
        return Choice(self.rate(place), edge, math.hypot(drop, s / math.sqrt(len(self.seeds))))

    def _drop(self, chosen: int, other: int, seeds: Sequence[int]) -> float:
        """Return by how much ``chosen`` is better, at least 0; inf if a seed diverged; NaN if ``other`` was not run."""
        ours, theirs = self.values(chosen), self.values(other)
        leads = [sign(self.mode) * (ours[seed] - theirs[seed]) for seed in seeds if seed in theirs]
        if any(map(math.isnan, leads)):
            return math.inf
        return max(0.0, math.fsum(leads) / len(leads)) if leads else math.nan


def _refine(norms: Sequence[_Norm], rule: Rule) -> tuple[Run, ...]:
    """Take the steps 3 to 6, as far as the finished runs allow, and return the runs to be made now."""
    for step in rule.steps:
        for norm in norms:
            norm.add_beside(norm.by_first_seed(), step)
        if runs := _first_runs(norms):
            return runs
    while True:
        for norm in norms:
            norm.kept = norm.finalists()
        if runs := tuple(run for norm in norms for run in norm.unfinished(norm.kept, norm.seeds)):
            return runs
        before = [len(norm.places) for norm in norms]
        for norm in norms if rule.steps else ():
            norm.add_beside(norm.ranked(), 1)
        if before == [len(norm.places) for norm in norms] or (runs := _first_runs(norms)):
            return runs


def _first_runs(norms: Sequence[_Norm]) -> tuple[Run, ...]:
    """Return the runs of each norm at its places, with the first seed, that are not finished."""
    return tuple(run for norm in norms for run in norm.unfinished(sorted(norm.places), norm.seeds[:1]))


def _extended(ends: tuple[int, int], norms: Iterable[Sequence[int]], extensions: int) -> tuple[int, int]:
    """Return the ends of the grid, wider by an octave where a norm may be best at or beyond, if extensions are left.

    ``norms``: for each norm, the places that may be its best. A norm that diverged everywhere has none, and counts as
    best at the lowest rate.
    """
    low, high = ends
    best = [place for places in norms for place in places or [low]] if extensions else []
    return (
        low - OCTAVE if any(place <= low for place in best) else low,
        high + OCTAVE if any(place >= high for place in best) else high,
    )
