"""Verdicts on claims, with and without families and diverged runs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rmsexp.rules import claims
from rmsexp.rules.claims import Claim, Verdict, decide

NAN = math.nan
NOISE = (0.2, -0.1, 0.15, -0.25, 0.1, 0.0, -0.2, 0.1)  # mean 0


def claim(test: str, **changes: Any) -> Claim:
    margin = None if test == "superiority" else 1.0
    return Claim(**{"claim": "a and b", "test": test, "a": "a", "b": "b", "margin": margin} | changes)


def verdict(of: Claim, a: Sequence[float], b: Sequence[float], mode: str = "max") -> Verdict:
    scores = {"a": dict(enumerate(a)), "b": dict(enumerate(b))}
    return decide([of], scores, mode, range(len(a)))[0]


def runs(difference: float, **changed: float) -> tuple[list[float], list[float]]:
    """Return the scores of a and b with this mean difference. ``changed``: new scores, such as ``a3=nan``."""
    b = [10.0 + seed for seed in range(len(NOISE))]
    scores = {"a": [value + difference + noise for value, noise in zip(b, NOISE, strict=True)], "b": b}
    for name, value in changed.items():
        scores[name[0]][int(name[1:])] = value
    return scores["a"], scores["b"]


@pytest.mark.parametrize(
    ("test", "difference", "outcome"),
    [
        *(("equivalence", difference, "supported") for difference in (0, 0.5, -0.5)),
        *(("equivalence", difference, "inconclusive") for difference in (0.95, -1)),
        *(("equivalence", difference, "refuted") for difference in (1.5, -1.5)),
        *(("noninferiority", difference, "supported") for difference in (0, 5)),
        *(("noninferiority", -1, "inconclusive"), ("noninferiority", -1.5, "refuted")),
        *(("superiority", 0.5, "supported"), ("superiority", 0, "inconclusive"), ("superiority", -0.5, "refuted")),
    ],
)
def test_outcomes(test: str, difference: float, outcome: str) -> None:
    found = verdict(claim(test), *runs(difference))
    differences = np.subtract(*runs(difference))
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    sides = zip(found.claim.bounds, ("greater", "less"), strict=True)
    tests = [stats.ttest_1samp(differences, bound, alternative=side) for bound, side in sides]
    assert found.p == pytest.approx(max(each.pvalue for each in tests if not math.isnan(each.pvalue)))
    assert found.outcome == outcome
    assert found.difference == pytest.approx(difference)
    assert (found.p < 0.05) == (outcome == "supported")
    assert (found.p, found.level, found.pairs) == (found.adjusted_p, 0.9, 8)


@pytest.mark.parametrize(
    ("test", "difference", "uncertainty", "outcome"),
    [
        ("equivalence", 0.5, (0.1, 0.2), "supported"),
        ("equivalence", 0.5, (0.0, 0.6), "inconclusive"),
        ("equivalence", 0.5, (0.6, 0.0), "inconclusive"),
        ("noninferiority", 0, (0.8, 0.8), "supported"),
        ("noninferiority", 0, (1.2, 0.8), "inconclusive"),
        ("noninferiority", -1.5, (0.1, 0.1), "refuted"),
        ("superiority", 0.5, (0.6, 0.5), "inconclusive"),
        ("superiority", 0.5, (NAN, 0.5), "supported"),  # not known, so the verdict is about the chosen rates
    ],
)
def test_the_uncertainty_of_the_rates_is_in_the_interval(
    test: str, difference: float, uncertainty: tuple[float, float], outcome: str
) -> None:
    a, b = runs(difference)
    scores = {"a": dict(enumerate(a)), "b": dict(enumerate(b))}
    found = decide([claim(test)], scores, "max", range(8), dict(zip("ab", uncertainty, strict=True)))[0]
    alone = verdict(claim(test), a, b)
    assert (found.outcome, math.isnan(alone.rates)) == (outcome, True)
    rates = 0.0 if math.isnan(found.rates) else math.hypot(*uncertainty) / 2
    half = math.hypot((alone.high - alone.low) / 2, stats.norm.ppf(0.95) * rates)
    assert (found.low, found.high) == pytest.approx((difference - half, difference + half))
    assert (found.p < 0.05) == (outcome == "supported")


def test_the_smallest_margin_is_that_at_which_a_claim_would_hold() -> None:
    for test, difference in (("equivalence", 0.4), ("equivalence", -0.4), ("noninferiority", -0.4)):
        found = verdict(claim(test), *runs(difference))
        assert verdict(claim(test, margin=found.smallest_margin * 1.001), *runs(difference)).outcome == "supported"
        assert verdict(claim(test, margin=found.smallest_margin * 0.999), *runs(difference)).outcome == "inconclusive"
    assert verdict(claim("noninferiority"), *runs(5)).smallest_margin == 0
    assert math.isnan(verdict(claim("superiority"), *runs(1)).smallest_margin)
    assert math.isnan(verdict(claim("noninferiority"), [1.0], [1.0]).smallest_margin)


@pytest.mark.parametrize(("untrained", "trains"), [(12.0, True), (13.4, False), (15.0, False)])
def test_norms_that_have_both_learnt_nothing_decide_nothing(untrained: float, trains: bool) -> None:
    """The means are 14 and 13.5, and 14 is not better than 13.4 by the margin of 1."""
    a, b = runs(0.5)
    found = verdict(claim("equivalence", untrained=untrained), a, b)
    assert found.outcome == ("supported" if trains else "inconclusive")
    low = [-value for value in a], [-value for value in b]
    assert verdict(claim("equivalence", untrained=-untrained), *low, mode="min").outcome == found.outcome
    assert verdict(claim("superiority", untrained=untrained), a, b).outcome == (
        "inconclusive" if untrained > 14 else "supported"
    )


def test_whether_a_norm_has_learnt_is_seen_from_all_its_runs() -> None:
    """Also from runs whose partner diverged."""
    lost = [math.nan] * 6
    nothing, chance = verdict(claim("superiority", untrained=6.0), [6.1] * 6, lost, "min"), [3.0] * 5 + [6.2]
    assert (nothing.outcome, "learnt nothing" in nothing.reason) == ("inconclusive", True)
    found = verdict(claim("superiority", untrained=6.0), chance, [*lost[:5], 6.2], "min")
    assert (found.outcome, found.p) == ("supported", 1 / 32)
    worse = verdict(claim("superiority"), lost, [1.0] * 6)
    assert (worse.outcome, "p of the reverse 0.0156" in worse.reason) == ("refuted", True)


def test_a_verdict_says_whether_a_is_better_or_worse_than_b() -> None:
    assert [verdict(claim("equivalence"), *runs(by)).against_zero for by in (-0.5, 0, 0.5)] == ["worse", "", "better"]


def test_equal_differences() -> None:
    for test, difference, outcome, p in (
        ("equivalence", 0, "supported", 0),
        ("superiority", 0, "inconclusive", 1),
        ("superiority", 1, "supported", 0),
        *(("equivalence", by, "inconclusive", 1) for by in (1, -1)),  # exactly the margin
        ("equivalence", 2, "refuted", 1),
    ):
        found = verdict(claim(test), [seed + difference for seed in (1.0, 2.0, 3.0)], [1.0, 2.0, 3.0])
        assert (found.outcome, found.p, found.low, found.high) == (outcome, p, difference, difference)


def test_fewer_than_two_pairs_are_inconclusive() -> None:
    for test in claims.TESTS:
        found = verdict(claim(test), [5.0], [5.0])
        assert (found.outcome, found.p, math.isnan(found.low)) == ("inconclusive", 1, True)
        assert verdict(claim(test), [NAN, NAN], [NAN, NAN]).outcome == "inconclusive"


def test_a_claim_with_missing_runs_is_not_tested() -> None:
    a, b = (dict(enumerate(values)) for values in runs(5))
    del a[2]
    found = decide([claim("superiority")], {"a": a, "b": b}, "max", range(8))[0]
    assert (found.outcome, found.p, found.reason[:6]) == ("inconclusive", 1, "1 of 8")
    first_two = decide([claim("superiority", seeds=2)], {"a": a, "b": b}, "max", range(8))[0]
    assert (first_two.outcome, first_two.pairs) == ("supported", 2)
    diverged = decide([claim("superiority")], {"a": a, "b": b | {5: NAN}}, "max", range(8))[0]
    assert (diverged.outcome, diverged.p) == ("inconclusive", 1)  # ranks do not decide it, either


@pytest.mark.parametrize("test", claims.TESTS)
def test_a_pair_that_diverged_on_both_sides_does_not_count(test: str) -> None:
    a, b = runs(0.5, a3=NAN, b3=NAN)
    found = verdict(claim(test), a, b)
    a, b = runs(0.5)
    rest = verdict(claim(test), a[:3] + a[4:], b[:3] + b[4:])
    assert (found.outcome, found.p, found.low, found.high) == (rest.outcome, rest.p, rest.low, rest.high)
    assert (found.pairs, found.diverged_both) == (7, 1)


@pytest.mark.parametrize("difference", [0, 5, -5])
@pytest.mark.parametrize("side", ["a3", "b3"])
def test_equivalence_is_inconclusive_if_only_one_run_of_a_pair_diverged(side: str, difference: float) -> None:
    found = verdict(claim("equivalence"), *runs(difference, **{side: NAN}))
    assert (found.outcome, found.p, found.low, found.high) == ("inconclusive", 1, -math.inf, math.inf)
    assert (found.diverged_a, found.diverged_b) == (int(side == "a3"), int(side == "b3"))


@pytest.mark.parametrize(
    ("side", "difference", "outcome"),
    [
        *(("a3", 5, "inconclusive"), ("a3", -5, "refuted")),
        *(("b3", 5, "supported"), ("b3", 0, "supported"), ("b3", -5, "inconclusive")),
    ],
)
def test_noninferiority_with_diverged_runs(side: str, difference: float, outcome: str) -> None:
    found = verdict(claim("noninferiority"), *runs(difference, **{side: NAN}))
    assert found.outcome == outcome
    assert math.isinf(found.low if side == "a3" else found.high)
    assert not math.isinf(found.high if side == "a3" else found.low)


def test_superiority_with_diverged_runs_is_decided_by_ranks() -> None:
    found = verdict(claim("superiority"), *runs(20, b3=NAN))
    assert (found.outcome, found.p, found.pairs) == ("supported", 1 / 256, 8)
    assert math.isnan(found.low)
    assert found.difference == pytest.approx(20, abs=0.1)  # of the finished pairs
    assert verdict(claim("superiority"), *runs(-20, b3=NAN)).outcome == "refuted"  # one of eight changes little
    assert verdict(claim("superiority"), *runs(-20, b1=NAN, b2=NAN, b3=NAN)).outcome == "inconclusive"
    assert verdict(claim("superiority"), *runs(-20, a3=NAN)).outcome == "refuted"
    always = verdict(claim("superiority"), runs(0)[0], [NAN] * 8)
    assert (always.outcome, always.p, math.isnan(always.difference)) == ("supported", 1 / 256, True)
    both = verdict(claim("superiority"), *runs(20, b3=NAN, a4=NAN, b4=NAN))
    assert (both.p, both.pairs, both.diverged_both) == (1 / 128, 7, 1)


def test_claims_of_a_family_are_corrected_together() -> None:
    noise = np.array(NOISE)
    scores = {
        name: dict(enumerate((noise * factor + mean).tolist()))
        for name, factor, mean in (("zero", 0, 0), ("sure", 1, 1), ("likely", 2, 0.24), ("open", 3, 0.36))
    }
    family = [claim("superiority", a=name, b="zero", family="better") for name in ("likely", "sure", "open")]
    alone = decide([claim("superiority", a="likely", b="zero")], scores, "max", range(8))[0]
    likely, sure, unsure = decide(family, scores, "max", range(8))
    assert 0.05 / 3 < alone.p < 0.05
    assert (alone.outcome, sure.outcome) == ("supported", "supported")
    assert [likely.outcome, unsure.outcome] == ["inconclusive", "inconclusive"]
    for found in (likely, sure, unsure):
        assert found.level == pytest.approx(1 - 2 * 0.05 / 3)  # one level, so that their intervals can be compared
        assert found.adjusted_p == pytest.approx(min(1, 3 * found.p))
        assert (found.low > 0) == (found.outcome == "supported") == (found.adjusted_p < 0.05)
    assert likely.alone == pytest.approx((alone.low, alone.high))


def test_outcome_and_interval_agree_in_random_families() -> None:
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        scores = {name: dict(enumerate(generator.normal(generator.choice([0, 1, 2]), 0.8, 6))) for name in "abcd"}
        tests = generator.choice(claims.TESTS, 3)
        family = [claim(test, b=b, family="one") for test, b in zip(tests, "bcd", strict=True)]
        for found in decide(family, scores, "max", range(6)):
            lower, upper = found.claim.bounds
            inside = found.low > lower and found.high < upper
            outside = found.low > upper or found.high < lower
            assert found.outcome == ("supported" if inside else "refuted" if outside else "inconclusive")
            assert inside == (found.adjusted_p < 0.05)
            assert found.level == pytest.approx(1 - 0.1 / 3)
            seen.add((found.claim.test, found.outcome))
    assert len(seen) == 9


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("test", {"test": "equivalent"}),
        ("itself", {"b": "a"}),
        ("margin", {"margin": None}),
        ("margin|finite", {"margin": 0.0}),
        ("margin", {"test": "superiority"}),
        ("at least 2", {"seeds": 1}),
    ],
)
def test_a_claim_that_does_not_fit_is_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        claim(**{"test": "equivalence", "margin": 1.0} | changes)
