"""The simulation of campaigns: intervals, wrong verdicts and power of the rules, with few campaigns."""

import numpy as np
import pytest
import verdict_power as simulation
from verdict_power import Compared

CAMPAIGNS = 200
MOST_WRONG = 0.1  # the true share is at most 5 to 6 %; the standard deviation of the observed one is 1.6 %


def test_the_interval_contains_the_difference_at_the_best_rates_with_quarters_only() -> None:
    curves = {"a": lambda place: -3 * (place - 1) ** 2, "b": lambda place: -8 * (place - 2) ** 2}
    grid, spread = (1.0, 2.0, 4.0, 8.0), (0.4, 0.28)
    norms = Compared("quality", "cifar10", "rms", "ln", ("quarters",), 1.5, "points", grid, (8, 16), *spread, curves)
    generator = np.random.default_rng(0)
    octaves, quarters = (
        simulation.of_tuned(norms, name, [simulation.tuned(norms, rule, generator) for _ in range(CAMPAIGNS)])
        for name, rule in simulation.RULES.items()
    )
    assert octaves["coverage"] < 0.6 < 0.85 < quarters["coverage"]
    assert max(quarters["wrong"]) < MOST_WRONG < min(octaves["wrong"][1:])


def test_the_norms_come_from_the_committed_campaigns() -> None:
    found = {(norms.campaign, norms.a, norms.b): norms for norms in simulation.compared()}
    by_both_rules = [norms for norms in found.values() if norms.rules == ("octaves", "quarters")]
    assert len(by_both_rules) == 15
    assert found["quality_transformer_2", "rms", "ln"].rules == ("quarters",)
    norms = found["quality_cifar10", "rms", "ln"]
    assert (norms.margin, norms.unit, norms.grid) == (1.5, "points", (0.0005, 0.001, 0.002, 0.004))
    assert (norms.sd, norms.scatter) == pytest.approx((1.457, 0.894), abs=0.001)
    assert (norms.seeds, found["cifar10_long", "rms", "ln"].seeds) == ((8, 16), (4, 4))
    assert [norms.curves[norm](np.log2(rate)) for norm, rate in (("a", 0.001), ("b", 0.008))] == pytest.approx([0, 0])


def test_the_scatter_is_what_rates_and_seeds_leave() -> None:
    of_rate = {1.0: 0.0, 2.0: 5.0, 4.0: -2.0}
    additive = {rate: {seed: value + seed for seed in simulation.TUNING} for rate, value in of_rate.items()}
    assert simulation.scatter([additive]) == pytest.approx(0)
    unequal = additive | {1.0: dict(zip(simulation.TUNING, (1003.0, 1001.0, 1002.0), strict=True))}
    unused = {8.0: {1000: 0.0}, 16.0: dict.fromkeys(simulation.TUNING, np.nan)}  # one seed, and diverged runs
    # 3 at one rate and seed leaves squares of 3² (2 / 3)² = 4, over 4 degrees of freedom
    assert simulation.scatter([unequal | unused]) == pytest.approx(1)
