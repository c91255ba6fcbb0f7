"""The choice of a rate for each norm: the runs that it takes, the extended grid, and the choice."""

import math
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from rmsexp.rules import selection
from rmsexp.rules.selection import OCTAVES, QUARTERS, SCATTER, Rule

GRID = (1.0, 2.0, 4.0, 8.0)
SEEDS = (1000, 1001, 1002)
NAN = math.nan
Result = Callable[[str, float, int], float]
Values = dict[str, dict[float, dict[int, float]]]


def tuned(
    result: Result, norms: str = "ab", workers: int = 1, mode: str = "max", rule: Rule = OCTAVES
) -> tuple[Values, tuple[float, ...]]:
    """Make the runs until none is left, each time a random part of those that can be made now."""
    values: Values = {norm: {} for norm in norms}
    while True:
        grid, runs, _ = selection.tune(GRID, values, mode, SEEDS, rule)
        if not runs:
            return values, grid
        for run in random.Random(workers).sample(runs, min(workers, len(runs))):
            values[run.norm].setdefault(run.rate, {})[run.seed] = result(*run)


def choose(values: Values, mode: str = "max", rule: Rule = OCTAVES) -> dict[str, selection.Choice]:
    return selection.tune(GRID, values, mode, SEEDS, rule).choices


def peak(**best: float) -> Result:
    """Return results with a peak at the best rate of each norm, and a little noise."""
    return lambda norm, rate, seed: -(math.log2(rate / best[norm]) ** 2) + 0.01 * (seed % 3)


def made(values: Mapping[float, Mapping[int, float]]) -> dict[float, int]:
    return {rate: len(values[rate]) for rate in sorted(values)}


def test_one_seed_per_rate_and_two_more_for_the_two_best() -> None:
    first = selection.tune(GRID, {"a": {}, "b": {}}, "max", SEEDS, OCTAVES)
    assert first.grid == GRID
    assert first.runs == tuple((norm, rate, 1000) for norm in "ab" for rate in GRID)
    values, grid = tuned(peak(a=2.1, b=4.1))
    assert grid == GRID
    assert [made(values[norm]) for norm in "ab"] == [{1: 1, 2: 3, 4: 3, 8: 1}, {1: 1, 2: 1, 4: 3, 8: 3}]
    choices = choose(values)
    assert [choices[norm].rate for norm in "ab"] == [2, 4]
    assert choices["a"].edge is None


def test_the_mean_over_seeds_decides() -> None:
    noise = {(2.0, 1000): 1.5, (2.0, 1001): -2.0, (2.0, 1002): -2.0}
    values, _ = tuned(lambda norm, rate, seed: peak(a=3.9)(norm, rate, seed) + noise.get((rate, seed), 0), "a")
    assert values["a"][2][1000] > values["a"][4][1000]
    assert choose(values)["a"].rate == 4


@pytest.mark.parametrize("rule", [OCTAVES, QUARTERS, SCATTER])
@pytest.mark.parametrize("workers", [1, 3, 100])
def test_the_order_of_runs_does_not_matter(workers: int, rule: Rule) -> None:
    def result(norm: str, rate: float, seed: int) -> float:
        noise = np.random.default_rng([ord(norm), int(16 * rate), seed]).normal(0, 2)
        return NAN if noise > 2 else peak(a=3.0, b=1.0, c=9.0)(norm, rate, seed) + noise

    assert tuned(result, "abc", workers, rule=rule) == tuned(result, "abc", 2, rule=rule)


@pytest.mark.parametrize(
    ("best", "extended"),
    [
        ({"a": 2, "b": 8}, (1, 2, 4, 8, 16)),
        ({"a": 2, "b": 1}, (0.5, 1, 2, 4, 8)),
        ({"a": 1, "b": 8}, (0.5, 1, 2, 4, 8, 16)),
        ({"a": 2, "b": 99}, (1, 2, 4, 8, 16, 32)),
        ({"a": 2, "b": 0.01}, (0.25, 0.5, 1, 2, 4, 8)),
        ({"a": 0.5, "b": 16}, (0.25, 0.5, 1, 2, 4, 8, 16, 32)),
    ],
)
def test_the_grid_is_extended_for_every_norm(best: dict[str, float], extended: tuple[float, ...]) -> None:
    values, grid = tuned(peak(**best))
    assert grid == extended
    assert all(set(values[norm]) == set(grid) for norm in "ab")
    choices = choose(values)
    assert choices["b"].edge == {99: "highest", 0.01: "lowest"}.get(best["b"])
    assert choices["b"].rate == min(max(best["b"], 0.25), 32)


def test_the_edge_is_checked_again_after_the_means() -> None:
    unlucky = {(8.0, 1000): -1.2}  # the best rate, at the edge, is only second best by the first seed
    values, grid = tuned(lambda norm, rate, seed: peak(a=8)(norm, rate, seed) + unlucky.get((rate, seed), 0), "a")
    assert values["a"][4][1000] > values["a"][8][1000]
    assert grid == (1, 2, 4, 8, 16)
    assert made(values["a"]) == {1: 1, 2: 1, 4: 3, 8: 3, 16: 3}  # 16 is second best by the first seed
    assert choose(values)["a"].rate == 8


def test_a_rate_at_which_a_seed_diverged_is_replaced_and_ranks_behind() -> None:
    def result(norm: str, rate: float, seed: int) -> float:
        return NAN if (rate, seed) in {(4.0, 1002), (8.0, 1000)} else peak(a=4.1)(norm, rate, seed)

    values, grid = tuned(result, "a")
    assert grid == GRID
    assert made(values["a"]) == {1: 3, 2: 3, 4: 3, 8: 1}
    assert choose(values)["a"].rate == 2


def test_a_rate_that_diverged_at_some_seeds_is_chosen_only_if_all_others_did() -> None:
    stable = {(1.0, 1000), (1.0, 1001), (2.0, 1000)}
    values, _ = tuned(lambda _, rate, seed: rate + seed if (rate, seed) in stable else NAN, "a")
    choice = choose(values)["a"]
    assert choice.rate == 1
    assert math.isnan(choice.uncertainty)


def test_a_norm_that_diverges_everywhere_has_no_rate() -> None:
    values, grid = tuned(lambda norm, rate, seed: NAN if norm == "b" else peak(a=2.1)(norm, rate, seed))
    assert grid == (0.25, 0.5, 1, 2, 4, 8)  # it counts as best at the lowest rate
    assert made(values["b"]) == dict.fromkeys(grid, 1)
    choices = choose(values)
    assert choices["a"].rate == 2
    assert choices["b"].rate is None
    assert choices["b"].edge is None


def test_half_and_quarter_octaves_follow_beside_the_best_rate_of_each_norm() -> None:
    values, grid = tuned(peak(a=2.3, b=4.7), rule=SCATTER)
    assert grid == GRID
    seeds = {1: 1, 1.414: 1, 1.682: 1, 2: 3, 2.378: 3, 2.828: 3, 4: 1, 8: 1}
    assert made(values["a"]) == seeds
    assert sum(made(values["b"]).values()) == len(GRID) + SCATTER.runs == 14
    choices = choose(values, rule=SCATTER)
    assert [choices[norm].rate for norm in "ab"] == [2.378, 4.757]
    below, above = (
        np.mean([values["a"][2.378][seed] - values["a"][rate][seed] for seed in SEEDS]) for rate in (2, 2.828)
    )
    assert choices["a"].uncertainty == pytest.approx(min((below + above) / 4, 2 * below * above / (below + above)))


def test_an_edge_extends_the_octaves_for_every_norm_before_they_are_refined() -> None:
    values, grid = tuned(peak(a=9.0, b=2.1), rule=SCATTER)
    assert grid == (1, 2, 4, 8, 16)
    assert {*GRID, 16.0} <= {*values["b"]}
    assert max(values["b"]) == 16
    assert choose(values, rule=SCATTER)["a"].rate == 9.514


def test_the_neighbours_of_the_chosen_rate_are_run() -> None:
    unlucky = {(4.0, 1000): -0.5}  # so that the first seed leads to the rates around 2
    values, _ = tuned(
        lambda norm, rate, seed: peak(a=4.0)(norm, rate, seed) / 4 + unlucky.get((rate, seed), 0), "a", rule=SCATTER
    )
    choice = choose(values, rule=SCATTER)["a"]
    assert choice.rate in (3.364, 4)
    assert not math.isnan(choice.uncertainty)


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [(1, 1, 0.5), (1, 3, 1), (0.1, 100, 0.2), (1e-9, 3, 2e-9), (1, math.inf, 2), (math.inf, math.inf, NAN)],
)
def test_the_uncertainty_of_a_choice(below: float, above: float, expected: float) -> None:
    def result(_: str, rate: float, __: int) -> float:
        drop = {2.378: below, 3.364: above}.get(rate, 200.0)
        return 0.0 if rate == 2.828 else NAN if drop == math.inf else -drop

    values = {"a": {rate: {seed: result("a", rate, seed) for seed in SEEDS} for rate in (2.378, 2.828, 3.364, *GRID)}}
    values["a"] |= {2.0: dict.fromkeys(SEEDS, -150.0), 1.414: dict.fromkeys(SEEDS, -180.0)}
    found = choose(values, rule=SCATTER)["a"]
    assert found.rate == 2.828
    assert found.uncertainty == pytest.approx(expected, rel=1e-2, nan_ok=True)


def test_a_norm_that_is_best_beyond_the_last_extension_has_no_known_uncertainty() -> None:
    values, grid = tuned(peak(a=99.0), "a", rule=SCATTER)
    choice = choose(values, rule=SCATTER)["a"]
    assert (grid[-1], choice.rate, choice.edge) == (32, 53.82, "highest")
    assert math.isnan(choice.uncertainty)
    octaves, _ = tuned(peak(a=2.1), "a")
    assert math.isnan(choose(octaves)["a"].uncertainty)  # the neighbours were not run


def test_a_rate_at_an_edge_that_is_not_clearly_worse_extends_the_grid() -> None:
    """The best rate is 4 and 8 is at the edge; runs scatter by 1."""
    noise = {1000: (-1.0, 0.0, 1.0), 1001: (1.0, -1.0, 0.0), 1002: (0.0, 1.0, -1.0)}

    def result(worse: float) -> Result:
        def score(_: str, rate: float, seed: int) -> float:
            place = round(4 * math.log2(rate))
            return -worse * abs(math.log2(rate) - 2) - noise[seed][place % 3] * math.sqrt(2 / 3)

        return score

    for worse, rule, extended in ((3.0, SCATTER, True), (3.0, QUARTERS, False), (9.0, SCATTER, False)):
        values, grid = tuned(result(worse), "a", rule=rule)
        assert (max(grid) > 8) == extended
        assert choose(values, rule=rule)["a"].rate == 4


def test_the_scatter_is_what_rates_and_seeds_leave() -> None:
    of_rate = {1.0: 0.0, 2.0: 5.0, 4.0: -2.0}
    additive = {rate: {seed: value + seed for seed in SEEDS} for rate, value in of_rate.items()}
    assert selection.scatter([additive]) == pytest.approx(0)
    unequal = additive | {1.0: dict(zip(SEEDS, (1003.0, 1001.0, 1002.0), strict=True))}
    # 3 at one rate and seed leaves squares of 3² (2 / 3)² = 4, over 4 degrees of freedom
    assert selection.scatter([unequal | {16.0: dict.fromkeys(SEEDS, NAN)}]) == pytest.approx(1)
    assert selection.scatter([unequal, additive, {}]) == pytest.approx(math.sqrt(4 / 8))
    assert math.isnan(selection.scatter([{1.0: additive[1.0]}, {}]))


def test_with_a_single_seed_the_best_run_decides() -> None:
    values = {"a": {rate: {1000: peak(a=2.1)("a", rate, 1000)} for rate in GRID}}
    grid, runs, choices = selection.tune(GRID, values, "max", SEEDS[:1], OCTAVES)
    assert (grid, runs, choices["a"].rate) == (GRID, (), 2)
    assert selection.tune(GRID, {"a": {}}, "max", SEEDS[:1]).choices == {}


def test_rates_rank_by_diverged_seeds_and_then_by_the_mean() -> None:
    tried = {1.0: {0: 5.0, 1: NAN}, 2.0: {0: 1.0}, 4.0: {0: 2.0, 1: 4.0, 2: 0.0}, 8.0: {0: NAN}, 16.0: {}}
    assert selection.ranked(tried, "max") == [4, 2, 1]
    assert selection.ranked(tried, "min") == [2, 4, 1]


@pytest.mark.parametrize("grid", [(1.0, 3.0), (2.0, 1.0), (1.0, 1.0), (0.0, 0.0), ()])
def test_rates_that_are_not_an_octave_apart_are_refused(grid: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"octave apart|at least one rate|greater than 0"):
        selection.tune(grid, {"a": {}}, "max", SEEDS)
