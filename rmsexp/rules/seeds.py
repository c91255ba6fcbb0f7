"""How many seeds the claims of a campaign need, from the spread of the differences at its first look.

The claims are tested once, with the number of seeds that is decided here. The decision uses the standard deviation of
the differences alone, not their mean, so it does not depend on which norm is ahead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import special

from rmsexp.rules.claims import ALPHA, MIN_PAIRS, SUPERIORITY, Claim, Verdict, ruled_out
from rmsexp.rules.pairs import Scores, pair

MOST = 1000  # seeds that a campaign may have
POWER = 0.9  # chance of supporting a claim whose true difference is 0
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def needed(claims: Sequence[Claim], scores: Scores, mode: str, seeds: Sequence[int], most: int) -> int:
    """Return the smallest number of seeds, from ``len(seeds)`` to ``most``, with power 0.9 for every claim that counts.

    Claims of equivalence and non-inferiority without a number of seeds count (:func:`may_need_more`), if at least two
    pairs are finished and diverged runs do not rule out that they are supported. Their power is computed for a true
    difference of 0 and the standard deviation of the differences at these seeds; pairs that diverged so far are not
    among the tested ones. A claim of a family of m is taken at level alpha / m, the strictest of Holm's method.

    Args:
        claims, scores, mode: as for :func:`rmsexp.rules.claims.decide`.
        seeds: the seeds of the first look.
        most: the largest number of seeds.
    """
    sizes = Counter(claim.family for claim in claims)
    count = len(seeds)
    for claim in claims:
        pairs = pair(scores.get(claim.a, {}), scores.get(claim.b, {}), seeds, mode)
        if not may_need_more(claim) or ruled_out(claim, pairs):
            continue
        if len(pairs.finished) < MIN_PAIRS:
            continue
        sd, lost = float(np.std(pairs.differences, ddof=1)), len(seeds) - len(pairs.finished)
        alpha = ALPHA / (1 if claim.family is None else sizes[claim.family])
        while count < most and power(claim, sd, count - lost, alpha) < POWER:
            count += 1
    return count


def may_need_more(claim: Claim) -> bool:
    """Return whether a claim may need more seeds than those of the first look."""
    return claim.test != SUPERIORITY and claim.seeds is None


def power(claim: Claim, sd: float, count: int, alpha: float = ALPHA, difference: float = 0.0) -> float:
    """Return the probability that a claim is supported.

    With n = ``count`` pairs, true mean difference D and true standard deviation σ the claim lower < D < upper is
    supported if lower + t s / √n < mean < upper - t s / √n. The mean is normal, and u = s / σ is independent of it with
    (n - 1) u² chi-squared, n - 1 degrees of freedom. So the power is the integral over u of the density of u times
    Φ((upper - D) √n / σ - t u) - Φ((lower - D) √n / σ + t u), up to the u at which this is 0. It is computed by
    Gauss-Legendre quadrature.
    """
    low, high = (bound - difference for bound in claim.bounds)
    if sd == 0:
        return float(low < 0 < high)
    freedom = count - 1
    t = special.stdtrit(freedom, 1 - alpha)
    low, high = (bound * math.sqrt(count) / sd for bound in (low, high))
    end = min(math.sqrt(special.chdtri(freedom, 1e-14) / freedom), (high - low) / (2 * t))
    u = end * (NODES + 1) / 2
    factor = math.log(2) + freedom / 2 * math.log(freedom / 2) - special.gammaln(freedom / 2)
    density = np.exp(factor + (freedom - 1) * np.log(u) - freedom * u**2 / 2)
    inside = special.ndtr(high - t * u) - special.ndtr(low + t * u)
    return float(end / 2 * np.sum(WEIGHTS * density * inside))


def power_of(verdict: Verdict) -> float:
    """Return the power of a test with a margin, for a true difference of 0 and the spread of the tested differences.

    The spread is that of the interval, whose lower half is t s / √n. NaN for superiority, without an interval, and
    where diverged runs rule out that the claim is supported.
    """
    half = verdict.difference - verdict.low
    if verdict.claim.margin is None or not math.isfinite(half):
        return math.nan
    alpha = (1 - verdict.level) / 2
    sd = half * math.sqrt(verdict.pairs) / float(special.stdtrit(verdict.pairs - 1, 1 - alpha))
    return power(verdict.claim, sd, verdict.pairs, alpha)
