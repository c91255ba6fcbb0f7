"""What claims may be about in place of the score: the slope of scores along a ladder, and the stable range of rates.

Slope. A ladder is a series of sizes x_1 < … < x_k, such as numbers of steps. The slope of a norm with a seed is that of
the least-squares line through its scores over log2 x, in the unit of the score per doubling. Rates are chosen at both
ends of the ladder; between them the logarithm of the rate is linear in log2 x.

Stable range. The scores at the rates of a grid are joined by straight lines over log2 of the rate. The stable range is
the interval around the best rate in which this line is at most ``tolerance`` worse than at the best rate. A rate at
which a seed diverged is outside. Its width, in octaves, says how far a rate may be off. Every rate is run with the
first seed. The best rate and those on both sides of each end of the range have the other seeds, too, until these
rates do not change any more. Widths have pseudo-values by seed, n w - (n - 1) w_i, with the width w of all n seeds and
the width w_i without seed i (Tukey's jackknife), so that claims about them are decided by t-intervals like those about
scores.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rmsexp.rules.pairs import sign
from rmsexp.rules.selection import DIGITS, Rates, Seeds, ranked

SCORE, SLOPE, RANGE = "score", "slope", "stable range"


class Range(NamedTuple):
    """The stable range of a norm.

    Attributes:
        best, low, high: the best rate of the grid, and the ends of the range.
        at_least: whether the range reaches an end of the grid, so that it may be wider than measured.
        beside: the rates on both sides of each end of the range; where it reaches an end of the grid, that end.
    """

    best: float
    low: float
    high: float
    at_least: bool
    beside: tuple[float, ...]

    @property
    def width(self) -> float:
        """The width in octaves."""
        return math.log2(self.high / self.low)


def slopes(sizes: Sequence[float], scores: Sequence[Seeds]) -> dict[int, float]:
    """Return the slope by seed, for the seeds with a score at every size; NaN if a score of the seed is NaN."""
    x = np.log2(sizes)
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    common = set.intersection(*(set(of_size) for of_size in scores))
    return {seed: float(weights @ [of_size[seed] for of_size in scores]) for seed in sorted(common)}


def rates_between(sizes: Sequence[float], first: float, last: float) -> list[float]:
    """Return the rates of sizes between the ends, linear on log-log axes; ``first``, ``last``: those at the ends."""
    shares = [math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0]) for size in sizes[1:-1]]
    return [float(f"{first * (last / first) ** share:.{DIGITS}g}") for share in shares]


def stable_range(scores: Rates, mode: str, tolerance: float) -> Range | None:
    """Return the stable range of the mean scores; None if every rate has a seed that diverged (NaN).

    Args:
        scores: the scores by rate and seed.
        mode: "min" or "max", the better direction of the scores.
        tolerance: by how much a score within the range may be worse than the best.
    """
    rates = sorted(scores)
    means = {rate: math.fsum(scores[rate].values()) / len(scores[rate]) for rate in rates}
    best = next(iter(ranked({rate: {0: mean} for rate, mean in means.items()}, mode)), None)
    if best is None:
        return None
    worse = {rate: sign(mode) * (means[best] - mean) for rate, mean in means.items()}
    place, ends, beside = rates.index(best), [], list[float]()
    for side in (rates[place::-1], rates[place:]):
        last, at = best, best  # the last rate within the range, and its end
        for rate in side[1:]:
            if not worse[rate] <= tolerance:  # NaN, too
                share = 0.0 if math.isnan(worse[rate]) else (tolerance - worse[last]) / (worse[rate] - worse[last])
                at = last * (rate / last) ** share
                beside += [last, rate]
                break
            last = at = rate
        ends.append(at)
    reached = [end for end in (rates[0], rates[-1]) if worse[end] <= tolerance and end in ends]
    return Range(best, ends[0], ends[1], bool(reached), tuple(dict.fromkeys([*beside, *reached])))


def runs_of_range(
    scores: Rates, grid: Sequence[float], seeds: Sequence[int], mode: str, tolerance: float
) -> list[tuple[float, int]]:
    """Return the runs (rate, seed) that the range of a norm needs by the scores so far; it may need more after them."""
    runs = [(rate, seeds[0]) for rate in grid]
    while all(seed in scores.get(rate, {}) for rate, seed in runs):
        found = stable_range(
            {rate: {s: scores[rate][s] for r, s in runs if r == rate} for rate in grid}, mode, tolerance
        )
        rates = [] if found is None else [found.best, *found.beside]
        more = [(rate, seed) for rate in dict.fromkeys(rates) for seed in seeds if (rate, seed) not in runs]
        if not more:
            break
        runs += more
    return runs


def widths(scores: Rates, seeds: Sequence[int], mode: str, tolerance: float) -> dict[int, float]:
    """Return the pseudo-value of the width for each seed; all NaN if every rate has a seed that diverged."""
    whole = stable_range(scores, mode, tolerance)
    if whole is None:
        return dict.fromkeys(seeds, math.nan)
    found, n = {}, len(seeds)
    for seed in seeds:
        # without the seed, except at rates where it is the only one
        rest = {rate: {k: v for k, v in of_rate.items() if k != seed} or of_rate for rate, of_rate in scores.items()}
        without = stable_range(rest, mode, tolerance)
        assert without is not None  # the best rate has no diverged seed
        found[seed] = n * whole.width - (n - 1) * without.width
    return found
