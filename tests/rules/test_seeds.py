"""Power against scipy and simulation, and the number of seeds that it asks for."""

import math

import numpy as np
import pytest
from scipy import stats

from rmsexp.rules import claims, seeds, significance
from rmsexp.rules.claims import Claim

EQUIVALENT = Claim("a equals b", "equivalence", "a", "b", margin=1.0)
NOT_WORSE = Claim("a is not worse than b", "noninferiority", "a", "b", margin=1.0)
BETTER = Claim("a is better than b", "superiority", "a", "b")


@pytest.mark.parametrize(("sd", "count", "difference"), [(0.55, 8, 0), (1.2, 16, -0.3), (3, 2, 0)])
def test_power_of_one_sided_tests_agrees_with_the_noncentral_t(sd: float, count: int, difference: float) -> None:
    shift = (1 + difference) * math.sqrt(count) / sd
    expected = stats.nct.sf(stats.t.ppf(0.95, count - 1), count - 1, shift)
    assert seeds.power(NOT_WORSE, sd, count, difference=difference) == pytest.approx(expected, abs=1e-6)
    shift = 0.5 * math.sqrt(count) / sd
    expected = stats.nct.sf(stats.t.ppf(0.99, count - 1), count - 1, shift)
    assert seeds.power(BETTER, sd, count, alpha=0.01, difference=0.5) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("sd", "count", "difference", "rates"), [(0.55, 8, 0, 0), (1.1, 16, 0.5, 0), (0.6, 3, 0, 0), (0.9, 8, 0, 0.3)]
)
def test_power_of_equivalence_agrees_with_simulation(sd: float, count: int, difference: float, rates: float) -> None:
    differences = np.random.default_rng(1).normal(difference, sd, (1000, count))
    supported = np.mean([significance.p_between(row, -1, 1, rates) < 0.05 for row in differences])
    found = seeds.power(EQUIVALENT, sd, count, difference=difference, rates=rates)
    assert found == pytest.approx(supported, abs=0.03)


def test_power_without_spread_and_with_the_uncertainty_of_rates() -> None:
    assert seeds.power(EQUIVALENT, 0, 8) == 1
    assert seeds.power(EQUIVALENT, 0, 8, difference=1) == 0
    assert seeds.power(EQUIVALENT, 0.9, 8, rates=0.61) == 0  # 1.645 * 0.61 is more than the margin
    assert seeds.power(EQUIVALENT, 0, 8, rates=0.6) == 1


def test_the_level_of_a_test_at_the_margin_is_at_most_alpha() -> None:
    assert seeds.power(EQUIVALENT, 0.2, 8, difference=1) == pytest.approx(0.05, abs=1e-6)
    assert seeds.power(EQUIVALENT, 2, 8, difference=1) < 0.05


def scores(sd: float, shift: float = 0) -> dict[str, dict[int, float]]:
    """Return eight seeds of which the differences a - b have this mean and exactly this standard deviation."""
    pattern = np.array([1, -1] * 4) / np.std([1, -1] * 4, ddof=1)
    return {"a": dict(enumerate(shift + sd * pattern)), "b": dict.fromkeys(range(8), 0.0)}


def test_the_spread_decides_and_not_the_difference() -> None:
    found = [seeds.needed([EQUIVALENT], scores(sd), "max", range(8), 16) for sd in (0, 0.55, 0.8, 0.9, 3)]
    assert found == sorted(found)
    assert (found[0], found[1], found[-1]) == (8, 8, 16)
    assert 8 < found[2] < found[3] <= 16
    for sd, count in ((0.8, found[2]), (0.9, found[3])):
        assert seeds.power(EQUIVALENT, sd, count) >= 0.9 > seeds.power(EQUIVALENT, sd, count - 1)
        assert seeds.needed([EQUIVALENT], scores(sd, shift=7), "min", range(8), 16) == count


def test_only_claims_with_a_margin_and_without_a_number_of_seeds_count() -> None:
    fixed = Claim("a equals b", "equivalence", "a", "b", margin=1.0, seeds=8)
    assert seeds.needed([BETTER, fixed], scores(0.9), "max", range(8), 16) == 8
    alone = seeds.needed([NOT_WORSE], scores(0.9), "max", range(8), 16)
    family = Claim("a is not worse than b", "noninferiority", "a", "b", margin=1.0, family="one")
    both = seeds.needed([family, family], scores(0.9), "max", range(8), 16)
    assert 8 <= alone < both
    better = Claim("a is better than b", "superiority", "a", "b", family="one")  # makes the level stricter, too
    assert seeds.needed([better, family], scores(0.9), "max", range(8), 16) == both


def test_pairs_that_diverged_are_replaced() -> None:
    values = scores(0.8)
    complete = seeds.needed([EQUIVALENT], values, "max", range(8), 16)
    for norm in "ab":
        values[norm] |= {0: math.nan, 1: math.nan}  # the spread of the others is slightly larger
    assert seeds.needed([EQUIVALENT], values, "max", range(8), 16) >= complete + 2


def test_claims_that_diverged_runs_rule_out_do_not_count() -> None:
    values = scores(0.9)
    values["a"][0] = math.nan
    assert seeds.needed([EQUIVALENT, NOT_WORSE], values, "max", range(8), 16) == 8
    values = scores(0.9)
    values["b"][0] = math.nan
    assert seeds.needed([EQUIVALENT], values, "max", range(8), 16) == 8
    assert seeds.needed([NOT_WORSE], values, "max", range(8), 16) > 8
    values["b"] |= dict.fromkeys(range(1, 7), math.nan)
    assert seeds.needed([NOT_WORSE], values, "max", range(8), 16) == 8  # a single pair has no spread


def test_the_uncertainty_of_rates_asks_for_more_seeds_unless_it_rules_the_claim_out() -> None:
    few, more, most = (
        seeds.needed([EQUIVALENT], scores(0.7), "max", range(8), 16, {"a": rates, "b": 0.0}) for rates in (0, 0.5, 1.3)
    )
    assert (8 <= few < more <= 16, most) == (True, 8)


@pytest.mark.parametrize("rates", [0.0, 0.2])
def test_the_smallest_difference_that_is_seen_by_simulation(rates: float) -> None:
    uncertainty = {"a": 2 * rates, "b": 0.0} if rates else {}
    (verdict,) = claims.decide([EQUIVALENT], scores(1.0), "max", range(8), uncertainty)
    (_, seen), generator = seeds.sensitivity(verdict), np.random.default_rng(0)
    differences = generator.normal(seen, 1, (4000, 8)) + generator.normal(0, rates, (4000, 1))
    found = np.mean([significance.interval(row, 0.05, rates)[0] > 0 for row in differences])
    assert found == pytest.approx(seeds.POWER, abs=0.02)
