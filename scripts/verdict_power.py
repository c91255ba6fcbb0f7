"""Test the rules of campaigns (rmsexp.rules) on simulated campaigns with known answers: wrong verdicts and power.

The unit of all differences is the margin. A campaign compares the norms a, b and c. b and c are equally good, and a is
worse by 0, 1/2, 1 or 2 margins. Its claims: a equals b; a is not worse than b; b is better than a, and c is better than
a, a family of two. A run's quality falls by the square of the distance, in octaves, of its rate from the norm's best
one, so an octave costs a margin. Each run has noise, and the runs of a seed have an effect in common. Tuning is done on
runs and noise of its own.

    python scripts/verdict_power.py                    # 4,000 campaigns per cell: some eight minutes
    python scripts/verdict_power.py --campaigns 200

With --results the numbers are written to a record, too.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from check_record import Check, add_option, run

from rmsexp.rules import claims, seeds, selection
from rmsexp.rules.claims import Claim, Verdict

DIFFERENCES = {0.0: "0", 0.5: "½", 1.0: "1", 2.0: "2"}  # by which a is worse, in margins
SLASHED = f"{' / '.join(DIFFERENCES.values())} margins"
GRID = (1.0, 2.0, 4.0, 8.0)
TUNING = (1000, 1001, 1002)
LOOK = 8  # seeds at the first look
ONE_SIDE = ("a", "bc")  # norms that can diverge at a seed, if the other runs of the seed do not
SEED_EFFECT = 1.0  # standard deviation of what the runs of a seed have in common
EQUAL = Claim("a equals b", "equivalence", "a", "b", margin=1.0)
NOT_WORSE = Claim("a is not worse than b", "noninferiority", "a", "b", margin=1.0)


@dataclass(frozen=True)
class Case:
    """A kind of campaign.

    Attributes:
        title: the case in words.
        sd: standard deviation of the difference between two norms at the same seed.
        best: the best rate of each norm, as its binary logarithm. The grid is 0, 1, 2, 3.
        tuning: the tuning seeds; without any, the best rates are known.
        few: number of seeds of the claims of superiority.
        lost: the number of seeds at which runs diverged, drawn from the first ``few``.
        lost_norms: the norms of these runs; one of the texts is drawn for each seed.
        most: the largest number of seeds.
    """

    title: str
    sd: float = 0.65
    best: tuple[float, float, float] = (1.0, 1.0, 1.0)
    tuning: tuple[int, ...] = ()
    few: int = 5
    lost: int = 0
    lost_norms: tuple[str, ...] = ONE_SIDE
    most: int = 16

    @property
    def better(self) -> list[Claim]:
        return [Claim(f"{a} is better than a", "superiority", a, "a", family="better", seeds=self.few) for a in "bc"]


class Outcome(NamedTuple):
    """The result of a campaign.

    ``count``: its number of seeds. ``change``: by how much the difference a - b is too high because the chosen rates
    are not the best of the grid. ``bounded``: whether this is within the rate luck of both norms, that is, whether an
    interval that is widened by it (``claims.with_luck``) is wide enough.
    """

    verdicts: list[Verdict]
    count: int
    change: float
    bounded: bool


Results = Mapping[tuple[Case, float], Sequence[Outcome]]
TUNED = {"one seed per rate": TUNING[:1], "tuned by the rule": TUNING}
BEST = {
    "equal": (1.0, 1.0, 1.0),
    "two octaves apart": (1.0, 3.0, 3.0),
    "beyond the grid for b and c": (1.0, 4.0, 4.0),
    "half an octave off the grid for b and c": (1.0, 1.5, 1.5),
}
CIFAR10 = "as spread as quality_cifar10"  # RMSNorm minus LayerNorm there, and its seeds for superiority
CASES = [
    Case("rates known"),
    Case("rates known, more spread", sd=0.85),
    *(
        Case(f"best rates {where}, {name}", best=best, tuning=tuning)
        for where, best in BEST.items()
        for name, tuning in TUNED.items()
    ),
    Case("best rates equal, tuned by the rule, more spread", sd=0.85, tuning=TUNING),
    Case("rates known, a run diverged", lost=1),
    Case("rates known, a run diverged, 8 seeds for superiority", lost=1, few=8),
    Case("rates known, runs of two seeds diverged", lost=2),
    Case("rates known, runs of two seeds diverged, 8 seeds for superiority", lost=2, few=8),
    Case("rates known, all runs of a seed diverged", lost=1, lost_norms=("abc",)),
    Case("rates known, all runs of two seeds diverged", lost=2, lost_norms=("abc",)),
    Case("rates known, always 8 seeds", most=8),
    Case("rates known, always 8 seeds, more spread", sd=0.85, most=8),
    Case(f"rates known, {CIFAR10}", sd=1.45, few=6),
    Case(f"best rates equal, tuned by the rule, {CIFAR10}", sd=1.45, few=6, tuning=TUNING),
]


class Laboratory:
    """Makes the runs of a campaign: numbers instead of trained models. Higher is better."""

    def __init__(self, case: Case, difference: float, generator: np.random.Generator) -> None:
        self._case, self._generator = case, generator
        self._peaks = {"a": -difference, "b": 0.0, "c": 0.0}
        self._best = dict(zip("abc", case.best, strict=True))
        self._effects: dict[int, float] = {}

    def quality(self, norm: str, rate: float) -> float:
        return self._peaks[norm] - (math.log2(rate) - self._best[norm]) ** 2

    def run(self, norm: str, rate: float, seed: int) -> float:
        if seed not in self._effects:
            self._effects[seed] = self._generator.normal(0, SEED_EFFECT)
        return self.quality(norm, rate) + self._effects[seed] + self._generator.normal(0, self._case.sd / math.sqrt(2))

    def tune(self) -> tuple[dict[str, float], float, bool]:
        """Return the rate of each norm, and ``change`` and ``bounded`` of the result."""
        if not self._case.tuning:
            return {norm: 2.0**best for norm, best in self._best.items()}, 0.0, True
        values: dict[str, dict[float, dict[int, float]]] = {norm: {} for norm in "abc"}
        while (plan := selection.next_runs(GRID, values, "max", self._case.tuning)).runs:
            for planned in plan.runs:
                values[planned.norm].setdefault(planned.rate, {})[planned.seed] = self.run(*planned)
        choices = selection.choose(GRID, values, "max", self._case.tuning)
        rates = {norm: choice.rate for norm, choice in choices.items() if choice.rate is not None}
        lost = {
            norm: max(self.quality(norm, rate) for rate in plan.grid) - self.quality(norm, rates[norm]) for norm in "ab"
        }
        change = lost["b"] - lost["a"]
        return rates, change, -choices["a"].luck - 1e-9 <= change <= choices["b"].luck + 1e-9

    def diverged(self) -> list[tuple[str, int]]:
        """Return the norms and seeds of the final runs that diverge."""
        drawn = self._generator.choice(self._case.few, self._case.lost, replace=False)
        sides = [str(self._generator.choice(self._case.lost_norms)) for _ in drawn]
        return [(norm, int(seed)) for seed, side in zip(drawn, sides, strict=True) for norm in side]


def campaign(case: Case, difference: float, generator: np.random.Generator) -> Outcome:
    """Return the result of a simulated campaign in which a is worse by ``difference``."""
    laboratory = Laboratory(case, difference, generator)
    rates, change, bounded = laboratory.tune()
    scores = {norm: {seed: laboratory.run(norm, rate, seed) for seed in range(LOOK)} for norm, rate in rates.items()}
    for norm, seed in laboratory.diverged():
        scores[norm][seed] = math.nan
    tested = [EQUAL, NOT_WORSE, *case.better]
    count = seeds.needed(tested, scores, "max", range(LOOK), case.most)
    for norm, rate in rates.items():
        scores[norm] |= {seed: laboratory.run(norm, rate, seed) for seed in range(LOOK, count)}
    return Outcome(claims.decide(tested, scores, "max", range(count)), count, change, bounded)


def share_wrong(outcomes: Sequence[Outcome], tested: Sequence[Claim], difference: float) -> float:
    """Return the share of campaigns in which a claim is supported although false, or refuted although true."""
    return float(np.mean([any(_wrong(found, difference) for found in _of(outcome, tested)) for outcome in outcomes]))


def _wrong(found: Verdict, difference: float) -> bool:
    true = difference > 0 if found.claim.test == claims.SUPERIORITY else difference < 1
    return found.outcome == (claims.REFUTED if true else claims.SUPPORTED)


def share_supported(outcomes: Sequence[Outcome], claim: Claim) -> float:
    return float(
        np.mean([found.outcome == claims.SUPPORTED for outcome in outcomes for found in _of(outcome, [claim])])
    )


def _of(outcome: Outcome, tested: Sequence[Claim]) -> list[Verdict]:
    return [found for found in outcome.verdicts if found.claim in tested]


def computed_power(case: Case, outcomes: Sequence[Outcome], claim: Claim, difference: float) -> float:
    """Return the power that seeds.py computes from the true spread, for the numbers of pairs that were tested."""
    pairs = Counter(found.pairs for outcome in outcomes for found in _of(outcome, [claim]))
    powers = {count: seeds.power(claim, case.sd, count, difference=-difference) for count in pairs}
    return sum(number * powers[count] for count, number in pairs.items()) / len(outcomes)


def summary(results: Results) -> list[dict[str, Any]]:
    """Return the numbers of the tables, a row per case. Shares are between 0 and 1, in the order of ``DIFFERENCES``."""
    return [_numbers(case, {by: results[case, by] for by in DIFFERENCES}) for case in CASES]


def _numbers(case: Case, outcomes: Mapping[float, Sequence[Outcome]]) -> dict[str, Any]:
    """Return the numbers of a case: shares of wrong verdicts, and power, as found and as computed from the spread."""
    tests = {"equivalence": [EQUAL], "noninferiority": [NOT_WORSE], "superiority": case.better}
    power = {}
    for name, claim, by in (("equivalence", EQUAL, 0.0), ("half", EQUAL, 0.5), ("noninferiority", NOT_WORSE, 0.0)):
        one_sided = case.lost and case.lost_norms == ONE_SIDE
        computed = None if one_sided else computed_power(case, outcomes[by], claim, by)
        power[name] = {"found": share_supported(outcomes[by], claim), "computed": computed}
    everything = [outcome for by in DIFFERENCES for outcome in outcomes[by]]
    return {
        "case": case.title,
        "wrong": {
            name: [share_wrong(outcomes[by], tested, by) for by in DIFFERENCES] for name, tested in tests.items()
        },
        "seeds": float(np.mean([outcome.count for outcome in outcomes[0.0]])),
        "power": power,
        "superiority": [share_supported(outcomes[by], case.better[0]) for by in (0.5, 1.0, 2.0)],
        "change": float(np.mean([abs(outcome.change) for outcome in everything])) if case.tuning else None,
        "bounded": float(np.mean([outcome.bounded for outcome in everything])) if len(case.tuning) > 1 else None,
    }


def tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of two Markdown tables of the rows of :func:`summary`: wrong verdicts, and power, in percent."""
    yield f"| wrong verdicts (%), a worse by {SLASHED} | equivalence | non-inferiority | superiority, family of two |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        yield f"| {row['case']} | {' | '.join(_percent(shares) for shares in row['wrong'].values())} |"
    columns = (
        *("power (%), found (computed)", "mean number of seeds", "equivalence, a worse by 0", "equivalence, ½"),
        *(
            "non-inferiority, 0",
            "superiority, ½ / 1 / 2",
            "mean change of a - b by the chosen rates (margins)",
            "within rate luck",
        ),
    )
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {row['case']} | {' | '.join(_power_cells(row))} |"


def _percent(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def _power_cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{row['seeds']:.1f}"
    for power in row["power"].values():
        computed = "" if power["computed"] is None else f" ({100 * power['computed']:.1f})"
        yield f"{100 * power['found']:.1f}{computed}"
    yield _percent(row["superiority"])
    yield "" if row["change"] is None else f"{row['change']:.2f}"
    yield "" if row["bounded"] is None else f"{100 * row['bounded']:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--campaigns", type=int, default=4000, help="number of campaigns per case and difference (4000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulation (0)")
    add_option(parser, None)
    arguments = parser.parse_args()
    check = Check("verdict_power", arguments.results)
    results = {}
    for number, case in enumerate(CASES):
        for difference in DIFFERENCES:
            generator = np.random.default_rng([arguments.seed, number, int(2 * difference)])
            results[case, difference] = [campaign(case, difference, generator) for _ in range(arguments.campaigns)]
    rows = summary(results)
    print("\n".join(tables(rows)))
    check.write({"campaigns": arguments.campaigns, "seed": arguments.seed, "cases": rows})


if __name__ == "__main__":
    run(main)
