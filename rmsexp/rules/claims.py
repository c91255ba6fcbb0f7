"""Claims that one norm is as good as, better than, or not worse than another, and how they are decided.

d is the score of a minus the score of b at the same seed, oriented so that positive means that a is better. A claim
states bounds for its mean: -margin < d < margin (equivalence), d > 0 (superiority), d > -margin (non-inferiority).

A claim may give the score of a model that has learnt nothing. If the better norm is not better than that by more than
the margin, both are equally bad, and the claim is inconclusive.

supported     the interval lies wholly within the bounds of the claim
refuted       the interval lies wholly outside them
inconclusive  the rest

The interval is two-sided at level 1 - 2 alpha. alpha is 0.05 for a claim without a family, and 0.05 / m for each claim
of a family of m (Bonferroni), so that the intervals of a family hold together. So "supported" is the outcome of the
one-sided test (equivalence: of two) at level alpha. The interval counts what the choice of the rates of both norms may
have cost, as far as that is known (:class:`.selection.Choice`): mean ± sqrt((t s)² / n + z² (R_a² + R_b²) / 4).

Diverged runs:

- A pair of which both runs diverged does not count.
- If only one run of a pair diverged, equivalence is inconclusive. Superiority is decided by an exact sign-flip test of
  ranks, in which the diverged runs are last; it has no interval. Non-inferiority is decided by the finished pairs, but
  without a lower bound of the interval if a diverged, so that it is never supported, and without an upper bound if b
  diverged, so that it is never refuted.

A claim is tested once, when all its runs are there.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rmsexp.rules import significance
from rmsexp.rules.pairs import Pairs, Scores, pair, sign
from rmsexp.system import checks

ALPHA = 0.05
SUPPORTED, REFUTED, INCONCLUSIVE = "supported", "refuted", "inconclusive"
EQUIVALENCE, SUPERIORITY, NONINFERIORITY = TESTS = ("equivalence", "superiority", "noninferiority")
MIN_PAIRS = 2  # fewest finished pairs for an interval


@dataclass(frozen=True)
class Claim:
    """A claim about the norms ``a`` and ``b``.

    Attributes:
        claim: the claim in words.
        test: "equivalence", "superiority" or "noninferiority".
        margin: the largest difference that does not matter, in the unit of the scores; None for superiority.
        family: claims of the same family are corrected together; None stands for no correction.
        seeds: the claim is tested on this number of seeds; None stands for all.
        untrained: the score of a model that has learnt nothing, such as the loss of one that knows word frequencies.

    Raises: ValueError for a value that does not fit.
    """

    claim: str
    test: str
    a: str
    b: str
    margin: float | None = None
    family: str | None = None
    seeds: int | None = None
    untrained: float | None = None

    def __post_init__(self) -> None:
        checks.choice("test", self.test, TESTS)
        if self.a == self.b:
            raise ValueError(f"the claim {self.claim!r} compares {self.a} with itself; a and b must differ")
        if self.test == SUPERIORITY:
            if self.margin is not None:
                raise ValueError(f"the claim {self.claim!r} must not have a margin: superiority means better than 0")
        elif self.margin is None:
            raise ValueError(f"the claim {self.claim!r} needs a margin, because its test is {self.test}")
        else:
            checks.positive(f"margin of the claim {self.claim!r}", self.margin)
        checks.at_least(f"seeds of the claim {self.claim!r}", self.seeds, MIN_PAIRS)

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds between which the claim states the mean difference to lie."""
        if self.margin is None:
            return 0.0, math.inf
        return -self.margin, self.margin if self.test == EQUIVALENCE else math.inf


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim. Differences are oriented: positive means that a is better.

    Attributes:
        difference: the mean difference of the finished pairs; NaN if there is none.
        low, high: the interval; an end is infinite where diverged runs, or scores known only to be at least as good,
            leave no bound; NaN if there is no interval.
        level: the confidence level of the interval: 0.9, in a family higher.
        alone: the interval at level 0.9, as if the claim stood alone.
        against_zero: "better" or "worse" if the two-sided interval at level 0.95 lies wholly above or below 0, else "".
        p, adjusted_p: the p-value of the test, and with Bonferroni's correction; 1 if the claim cannot be supported.
        rates: the standard deviation of the difference that comes from the choice of rates, sqrt(R_a² + R_b²) / 2, and
            is counted in the interval; NaN if it is not known, and then the interval does not count it.
        sd: the standard deviation of the differences of the finished pairs; NaN if there are less than two.
        pairs: the number of pairs that were tested.
        diverged_a, diverged_b, diverged_both: the numbers of pairs of which only a, only b, or both diverged.
    """

    claim: Claim
    outcome: str
    difference: float
    low: float
    high: float
    level: float
    alone: tuple[float, float]
    against_zero: str
    p: float
    adjusted_p: float
    rates: float
    sd: float
    pairs: int
    diverged_a: int
    diverged_b: int
    diverged_both: int
    reason: str

    @property
    def smallest_margin(self) -> float:
        """The smallest margin with which a claim of equivalence or non-inferiority would be supported.

        NaN for superiority and without an interval; infinite if diverged runs leave no bound.
        """
        if self.claim.margin is None:
            return math.nan
        # max keeps a NaN only if it comes first
        return max(-self.low, self.high) if self.claim.test == EQUIVALENCE else max(-self.low, 0.0)


def decide(
    claims: Sequence[Claim],
    scores: Scores,
    mode: str,
    seeds: Sequence[int],
    uncertainty: Mapping[str, float] = {},
    at_least: Collection[str] = (),
) -> list[Verdict]:
    """Return the verdicts of the claims, in their order. Families are corrected within ``claims``.

    Args:
        claims: all claims of a campaign.
        scores: the scores of the final runs, by norm and seed, in the unit of the margins. NaN stands for a run that
            diverged. A norm that diverged at all rates has NaN at all seeds.
        mode: "min" or "max", the better direction of the score.
        seeds: the seeds of the final runs. A claim with a number of seeds uses the first ones.
        uncertainty: R of each norm whose choice of a rate has a known uncertainty; 0 for a rate that was given.
        at_least: the norms whose scores are only known to be at least as good as given, such as the width of a range
            that reaches the end of a grid. The interval has no upper bound if a is one of them, no lower if b is.
    """
    verdicts = []
    for claim, size in zip(claims, family_sizes(claims), strict=True):
        pairs = pair(scores.get(claim.a, {}), scores.get(claim.b, {}), seeds[: claim.seeds], mode)
        open_ends = claim.a in at_least, claim.b in at_least
        verdicts.append(_verdict(claim, pairs, mode, size, rates_of(claim, uncertainty), open_ends))
    return verdicts


def rates_of(claim: Claim, uncertainty: Mapping[str, float]) -> float:
    """Return the standard deviation sqrt(R_a² + R_b²) / 2 that the choice of rates adds; NaN if one is not known."""
    return math.hypot(uncertainty.get(claim.a, math.nan), uncertainty.get(claim.b, math.nan)) / 2


def family_sizes(claims: Sequence[Claim]) -> list[int]:
    """Return for each claim the number of claims in its family; 1 without a family."""
    sizes = Counter(claim.family for claim in claims)
    return [1 if claim.family is None else sizes[claim.family] for claim in claims]


def ruled_out(claim: Claim, pairs: Pairs) -> bool:
    """Return whether diverged runs rule out that a claim of equivalence or non-inferiority is supported."""
    return bool(pairs.diverged_a or (pairs.diverged_b and claim.test == EQUIVALENCE))


def _verdict(claim: Claim, pairs: Pairs, mode: str, size: int, rates: float, open_ends: tuple[bool, bool]) -> Verdict:
    """Return the verdict of a claim in a family of this size.

    ``open_ends``: whether the scores of a, and those of b, are only known to be at least as good as given.
    """
    diverged, few = bool(pairs.diverged_a or pairs.diverged_b), len(pairs.finished) < MIN_PAIRS
    alpha, by_ranks = ALPHA / size, claim.test == SUPERIORITY and diverged and not pairs.missing
    unbounded = diverged and claim.test == EQUIVALENCE
    (a_open, b_open), uncertainty = open_ends, np.nan_to_num(rates)  # 0 where it is not known

    def interval(alpha: float) -> tuple[float, float]:
        if by_ranks or pairs.missing or few:
            return math.nan, math.nan
        low, high = significance.interval(pairs.differences, alpha, uncertainty)
        return (
            -math.inf if pairs.diverged_a or unbounded or b_open else low,
            math.inf if pairs.diverged_b or unbounded or a_open else high,
        )

    trains, p = True, 1.0
    means = [float(np.mean(own[np.isfinite(own)])) for own in pairs.scores.T if np.isfinite(own).any()]
    if claim.untrained is not None and means:  # whether a norm is better than that, by more than the margin
        best = max(means)
        trains = best - sign(mode) * claim.untrained > (claim.margin or 0.0)
    if trains and not (pairs.missing or b_open or (a_open and claim.test == EQUIVALENCE)):
        if by_ranks:
            p = significance.p_of_ranks(pairs.scores)
        elif not few and not ruled_out(claim, pairs):
            p = significance.p_between(pairs.differences, *claim.bounds, uncertainty)
    low, high = interval(alpha)
    both = interval(ALPHA / 2)
    lower, upper = claim.bounds
    supported, refuted = low > lower and (high < upper or upper == math.inf), high < lower or low > upper
    p_reversed = significance.p_of_ranks(pairs.scores[:, ::-1]) if by_ranks else math.nan
    if by_ranks:
        supported, refuted = p < alpha, p_reversed < alpha
    outcome = INCONCLUSIVE if not trains else SUPPORTED if supported else REFUTED if refuted else INCONCLUSIVE
    if pairs.missing:
        reason = f"{len(pairs.missing)} of {pairs.total} pairs are not finished; the claim is tested when all are"
    elif not trains:
        learnt = f"a model that has learnt nothing ({claim.untrained:g})"
        reason = f"neither norm is better than {learnt} by more than the margin"
    elif by_ranks:
        decisive = f"p {p:.3g}" if outcome != REFUTED else f"p of the reverse {p_reversed:.3g}"
        reason = f"exact sign-flip test of ranks with diverged runs last, {decisive} at level {alpha:.3g}, no interval"
    elif few:
        reason = f"{len(pairs.finished)} finished pairs; an interval needs {MIN_PAIRS}"
    else:
        reason = f"the {100 * (1 - 2 * alpha):.3g} % interval lies {_place(claim, outcome)}"
    counts = {
        f"only {claim.a} diverged": pairs.diverged_a,
        f"only {claim.b} diverged": pairs.diverged_b,
        "both runs diverged (does not count)": pairs.diverged_both,
    }
    lost = [f"pairs of which {what}: {len(seeds)}" for what, seeds in counts.items() if seeds]
    return Verdict(
        claim=claim,
        outcome=outcome,
        difference=float(np.mean(pairs.differences)) if pairs.finished else math.nan,
        low=low,
        high=high,
        level=1 - 2 * alpha,
        alone=interval(ALPHA),
        against_zero="better" if both[0] > 0 else "worse" if both[1] < 0 else "",
        p=p,
        adjusted_p=min(1.0, size * p),
        rates=rates,
        sd=math.nan if few else float(np.std(pairs.differences, ddof=1)),
        pairs=len(pairs.scores) if by_ranks else len(pairs.finished),
        diverged_a=len(pairs.diverged_a),
        diverged_b=len(pairs.diverged_b),
        diverged_both=len(pairs.diverged_both),
        reason="; ".join([reason, *lost]),
    )


def _place(claim: Claim, outcome: str) -> str:
    """Return where the interval lies, such as "wholly within ±0.5", for the reason of an outcome."""
    bound = {EQUIVALENCE: "±{:g}", SUPERIORITY: "0", NONINFERIORITY: "-{:g}"}[claim.test].format(claim.margin)
    inside, outside = ("within", "beyond") if claim.test == EQUIVALENCE else ("above", "below")
    where = {SUPPORTED: f"wholly {inside}", REFUTED: f"wholly {outside}"}
    return f"{where.get(outcome, f'neither {inside} nor {outside}')} {bound}"
