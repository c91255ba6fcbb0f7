"""The simulation of campaigns: intervals, wrong verdicts and power of the rules, with few campaigns."""

import numpy as np
import pytest
import verdict_power as simulation
from verdict_power import Compared

CAMPAIGNS = 200
MOST_WRONG = 0.1  # the true share is at most 5 to 6 %; the standard deviation of the observed one is 1.6 %


def test_the_interval_contains_the_difference_at_the_best_rates_except_with_octaves() -> None:
    curves = {"a": lambda place: -3 * (place - 1) ** 2, "b": lambda place: -8 * (place - 2) ** 2}
    grid, spread = (1.0, 2.0, 4.0, 8.0), (0.4, 0.28)
    norms = Compared("quality", "cifar10", "rms", "ln", ("scatter",), 1.5, "points", grid, (8, 16), *spread, curves)
    generator = np.random.default_rng(0)
    octaves, quarters, scatter = (
        simulation.of_tuned(norms, name, [simulation.tuned(norms, rule, generator) for _ in range(CAMPAIGNS)])
        for name, rule in simulation.RULES.items()
    )
    assert octaves["coverage"] < 0.6 < 0.85 < quarters["coverage"] <= scatter["coverage"]
    assert max(*quarters["wrong"], *scatter["wrong"]) < MOST_WRONG < min(octaves["wrong"][1:])


def test_the_norms_come_from_the_committed_campaigns() -> None:
    found = {(norms.campaign, norms.a, norms.b): norms for norms in simulation.compared()}
    assert [norms.rules for norms in found.values()].count(("octaves", "quarters", "scatter")) == 15
    assert found["quality_transformer_2", "rms", "ln"].rules == ("quarters", "scatter")
    norms = found["quality_cifar10", "rms", "ln"]
    assert (norms.margin, norms.unit, norms.grid) == (1.5, "points", (0.0005, 0.001, 0.002, 0.004))
    assert (norms.sd, norms.scatter) == pytest.approx((1.457, 0.894), abs=0.001)
    assert (norms.seeds, found["cifar10_long", "rms", "ln"].seeds) == ((8, 16), (4, 4))
    assert [norms.curves[norm](np.log2(rate)) for norm, rate in (("a", 0.001), ("b", 0.008))] == pytest.approx([0, 0])
