"""The simulation of campaigns: wrong verdicts and power of the rules, with few campaigns."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import verdict_power as simulation
from verdict_power import BEST, EQUAL, NOT_WORSE, TUNING, Case, Outcome

from rmsexp.rules.selection import Choice

KNOWN = Case("rates known")
MORE_SPREAD = Case("more spread", sd=0.85)
CAMPAIGNS = 200
MOST_WRONG = 0.1  # the true share is at most 5 to 6 %; the standard deviation of the observed one is 1.6 %


@functools.cache
def simulated(case: Case, difference: float) -> list[Outcome]:
    generator = np.random.default_rng(0)
    return [simulation.campaign(case, difference, generator) for _ in range(CAMPAIGNS)]


# wrong claims of superiority are most frequent at 0, and wrong ones of equivalence at the margin
@pytest.mark.parametrize(
    ("case", "difference"),
    [
        pytest.param(case, difference, marks=[] if case is KNOWN or difference in (0, 1) else pytest.mark.minutes)
        for case in (KNOWN, MORE_SPREAD, Case("diverged", lost=2, few=8), Case("pairs", lost=1, lost_norms=("abc",)))
        for difference in simulation.DIFFERENCES
    ],
)
def test_few_verdicts_are_wrong_if_the_rates_are_known(case: Case, difference: float) -> None:
    outcomes = simulated(case, difference)
    for tested in ([EQUAL], [NOT_WORSE], case.better):
        assert simulation.share_wrong(outcomes, tested, difference) <= MOST_WRONG


def test_power_is_as_computed() -> None:
    case = Case("always 8 seeds", sd=0.85, most=8)
    for difference in (0, 0.5):
        outcomes = simulated(case, difference)
        for claim in (EQUAL, NOT_WORSE):
            computed = simulation.computed_power(case, outcomes, claim, difference)
            assert simulation.share_supported(outcomes, claim) == pytest.approx(computed, abs=0.08)
    assert simulation.share_supported(simulated(KNOWN, 0), EQUAL) > 0.95


def test_three_seeds_for_the_best_rates_are_better_than_one_seed_per_rate() -> None:
    tuned, hasty = (Case("tuned", best=BEST["two octaves apart"], tuning=seeds) for seeds in (TUNING, TUNING[:1]))
    power = [simulation.share_supported(simulated(case, 0), EQUAL) for case in (tuned, hasty)]
    assert power[0] > 0.9 > power[1] + 0.03
    losses = [np.mean([abs(outcome.change) for outcome in simulated(case, 0)]) for case in (tuned, hasty)]
    assert losses[0] < losses[1] / 2


@pytest.mark.parametrize(("luck_of_a", "luck_of_b", "bounded"), [(1.0, 0.0, True), (0.9, 5.0, False), (5.0, 0.0, True)])
def test_the_luck_of_the_norm_with_a_bad_rate_bounds_the_change(
    luck_of_a: float, luck_of_b: float, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen rate of a is an octave too high, which makes a - b too low by a margin."""
    lucks = {"a": (4.0, luck_of_a), "b": (2.0, luck_of_b), "c": (2.0, 0.0)}
    choices = {norm: Choice(rate, 0.0, 0, None, luck) for norm, (rate, luck) in lucks.items()}
    monkeypatch.setattr(simulation.selection, "choose", lambda *_: choices)
    laboratory = simulation.Laboratory(Case("tuned", tuning=TUNING), 0.0, np.random.default_rng(0))
    assert laboratory.tune() == ({"a": 4.0, "b": 2.0, "c": 2.0}, -1.0, bounded)


def test_equivalence_is_never_supported_if_one_run_of_a_pair_diverged() -> None:
    assert simulation.share_supported(simulated(Case("diverged", lost=1), 0), EQUAL) == 0


def test_a_wrong_verdict_is_seen() -> None:
    outcomes = simulated(KNOWN, 0)
    assert simulation.share_wrong(outcomes, [EQUAL], difference=2) > 0.9
    assert simulation.share_wrong(outcomes, KNOWN.better, difference=0.5) < 0.1
    assert simulation.share_wrong(simulated(KNOWN, 2), KNOWN.better, difference=0) > 0.9


def test_the_tables_have_a_row_for_each_case() -> None:
    generator = np.random.default_rng(0)
    results = {
        (case, by): [simulation.campaign(case, by, generator)]
        for case in simulation.CASES
        for by in simulation.DIFFERENCES
    }
    lines = list(simulation.tables(simulation.summary(results)))
    for case in simulation.CASES:
        assert sum(line.startswith(f"| {case.title} |") for line in lines) == 2
    widths = {line.count("|") for line in lines if line}
    assert widths == {5, 9}
