"""How many seeds the claims of a campaign need, from the spread of the differences over the seeds that run first.

The claims are tested once, with the number of seeds that is decided here. The decision uses the standard deviation of
the differences alone, not their mean, so it does not depend on which norm is ahead.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from rmsexp.rules import claims as rules
from rmsexp.rules.claims import ALPHA, Claim, Verdict
from rmsexp.rules.pairs import Scores, pair

MOST = 1000  # seeds that a campaign may have
POWER = 0.9  # chance of supporting a claim whose true difference is 0
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def needed(
    claims: Sequence[Claim],
    scores: Scores,
    mode: str,
    seeds: Sequence[int],
    most: int,
    uncertainty: Mapping[str, float] = {},
) -> int:
    """Return the smallest number of seeds, from ``len(seeds)`` to ``most``, with power 0.9 for every claim that counts.

    Without such a number it is ``most``. Claims of equivalence and non-inferiority count if the campaign does not fix
    their number of seeds, at least two pairs are finished, and diverged runs and the uncertainty of the rates leave
    support possible. Their power is for a true difference of 0, the standard deviation of the differences at ``seeds``,
    the uncertainty of the rates, and the number of seeds less those of ``seeds`` without a finished pair.

    Args:
        claims, scores, mode, uncertainty: as for :func:`rmsexp.rules.claims.decide`.
        seeds: the seeds that were run first.
        most: the largest number of seeds.
    """
    count = len(seeds)
    for claim, size in zip(claims, rules.family_sizes(claims), strict=True):
        pairs = pair(scores.get(claim.a, {}), scores.get(claim.b, {}), seeds, mode)
        counts = claim.test != rules.SUPERIORITY and claim.seeds is None
        if not counts or rules.ruled_out(claim, pairs) or len(pairs.finished) < rules.MIN_PAIRS:
            continue
        sd, lost = float(np.std(pairs.differences, ddof=1)), len(seeds) - len(pairs.finished)
        alpha, rates = ALPHA / size, float(np.nan_to_num(rules.rates_of(claim, uncertainty)))
        if power(claim, 0.0, count, alpha, rates=rates) == 0:  # no number of seeds is enough
            continue
        while count < most and power(claim, sd, count - lost, alpha, rates=rates) < POWER:
            count += 1
    return count


def power(
    claim: Claim, sd: float, count: int, alpha: float = ALPHA, difference: float = 0.0, rates: float = 0.0
) -> float:
    """Return the probability, over seeds, that a claim is supported.

    With n = ``count`` pairs, true mean difference D and true standard deviation σ = ``sd`` the claim lower < D < upper
    is supported if lower + h < mean < upper - h, h² = (t s)² / n + (z r)², where r = ``rates`` is the standard
    deviation that comes from the choice of rates. The mean is normal, and u = s / σ is independent of it with (n - 1)
    u² chi-squared, n - 1 degrees of freedom. So the power is the integral over u of the density of u times
    Φ((upper - D) √n / σ - k) - Φ((lower - D) √n / σ + k), k² = (t u)² + n (z r / σ)², up to the u at which this is 0.
    It is computed by Gauss-Legendre quadrature.
    """
    low, high = (bound - difference for bound in claim.bounds)
    fixed = float(special.ndtri(1 - alpha)) * rates
    if sd == 0 or fixed >= (high - low) / 2:
        return float(low + fixed < 0 < high - fixed)
    freedom = count - 1
    t = special.stdtrit(freedom, 1 - alpha)
    low, high, fixed = (value * math.sqrt(count) / sd for value in (low, high, fixed))
    widest = math.sqrt((high - low) ** 2 / 4 - fixed**2) / t  # infinite for a claim with one bound
    end = min(math.sqrt(special.chdtri(freedom, 1e-14) / freedom), widest)
    u = end * (NODES + 1) / 2
    factor = math.log(2) + freedom / 2 * math.log(freedom / 2) - special.gammaln(freedom / 2)
    density = np.exp(factor + (freedom - 1) * np.log(u) - freedom * u**2 / 2)
    half = np.hypot(t * u, fixed)
    inside = special.ndtr(high - half) - special.ndtr(low + half)
    return float(end / 2 * np.sum(WEIGHTS * density * inside))


def sensitivity(verdict: Verdict) -> tuple[float, float]:
    """Return the power of a verdict's test, and the :func:`smallest` difference that its interval would tell from 0.

    The power is that at a true difference of 0, with the spread of the verdict's differences; NaN for superiority. Both
    are NaN if the interval has no finite lower end, as where diverged runs rule out support.
    """
    if not math.isfinite(verdict.low):
        return math.nan, math.nan
    rates = float(np.nan_to_num(verdict.rates))
    seen = smallest(verdict.sd, verdict.pairs, rates, verdict.level)
    if verdict.claim.margin is None:
        return math.nan, seen
    return power(verdict.claim, verdict.sd, verdict.pairs, (1 - verdict.level) / 2, rates=rates), seen


def smallest(sd: float, count: int, rates: float = 0.0, level: float = 1 - 2 * ALPHA) -> float:
    """Return the true difference that an interval at this confidence would tell from 0 in 9 of 10 campaigns.

    It is sqrt(((t + t₉) s)² / n + ((z + z₉) r)²), where s = ``sd`` is the standard deviation of the n = ``count``
    differences, r = ``rates`` that of the choice of rates, t and z the quantiles of the interval and t₉ and z₉ those of
    ``POWER``.
    """
    chances = [(1 + level) / 2, POWER]
    of_seeds = float(special.stdtrit(count - 1, chances).sum()) * sd / math.sqrt(count)
    return math.hypot(of_seeds, float(special.ndtri(chances).sum()) * rates)
