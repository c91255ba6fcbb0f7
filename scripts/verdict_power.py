"""Test the rules of campaigns (rmsexp.rules) on simulated campaigns with known answers: intervals and verdicts.

Tuned campaigns compare two norms of a committed campaign, with its grid of rates. How often does the 90 % interval
contain the difference of the norms at their best rates, and how often is a verdict wrong? A norm's score falls beside
its best rate as its measured validation score does (:func:`curve`). The best rate is moved by up to half an octave to
either side, at random and for each norm by itself. Tuning runs and final runs scatter as much as those of the campaign
did, and there are as many seeds. What is not simulated: rates that are chosen in shorter runs than the final ones.

Campaigns with known rates compare the norms a, b and c, of which b and c are equally good: wrong verdicts and power.
The claims: a equals b; a is not worse than b; with known rates also that b and c are better than a, a family of two.
The unit is the margin. With --results the numbers are written to a record, too.

    python scripts/verdict_power.py                    # 3,000 campaigns per cell: some ten minutes
    python scripts/verdict_power.py --campaigns 200
"""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from check_record import Check, add_option, run
from scipy.interpolate import PchipInterpolator

from rmsexp.campaign import campaign_file
from rmsexp.campaign import results as campaign_results
from rmsexp.records.frames import names
from rmsexp.report.tables import markup, verdicts
from rmsexp.rules import claims, seeds, selection
from rmsexp.rules.claims import Claim, Verdict
from rmsexp.rules.pairs import pair, sign

QUALITY = Path(__file__).parents[1] / "results/reference/quality"
DIFFERENCES = {0.0: "0", 0.5: "½", 1.0: "1", 2.0: "2"}  # by which a is worse, with known rates
SIDES = {0.0: "0", 1.0: "1", -1.0: "-1"}  # the same, tuned
RULES = {"octaves": selection.OCTAVES, "quarters": selection.QUARTERS, "scatter": selection.SCATTER}
TUNING = (1000, 1001, 1002)
LOOK, MOST = 8, 16  # numbers of seeds, with known rates
SEED_EFFECT = 1.0  # standard deviation of what the runs of a seed have in common
EQUAL = Claim("a equals b", claims.EQUIVALENCE, "a", "b", margin=1.0)
NOT_WORSE = Claim("a is not worse than b", claims.NONINFERIORITY, "a", "b", margin=1.0)
TESTS = {"equivalence": (0,), "non-inferiority": (1,), "superiority": (2, 3)}  # places of the claims with known rates


@dataclass(frozen=True)
class Compared:
    """Two norms of a campaign.

    Attributes:
        campaign, task: the names of the campaign and of its task.
        a, b: the names of the norms.
        rules: the rules by which campaigns are simulated, keys of ``RULES``.
        margin, unit: the margin of the campaign's claim about them, and its unit.
        grid: the rates with which tuning starts.
        seeds: the least and the greatest number of seeds.
        sd: standard deviation of the difference between the norms at the same seed, in margins.
        scatter: standard deviation of a tuning run, in margins (:func:`rmsexp.rules.selection.scatter`).
        curves: the score of "a" and of "b" as a function of the binary logarithm of the rate (:func:`curve`).
    """

    campaign: str
    task: str
    a: str
    b: str
    rules: tuple[str, ...]
    margin: float
    unit: str
    grid: tuple[float, ...]
    seeds: tuple[int, int]
    sd: float
    scatter: float
    curves: Mapping[str, Callable[[float], float]]


def compared(root: Path = QUALITY) -> list[Compared]:
    """Return each two norms of a claim with a margin, in campaigns below ``root`` that tried rates an octave apart.

    These are simulated by all rules. Campaigns of later rules that are decided and compare the same norms on the same
    task follow; they are simulated by all rules but ``octaves``. Ladders, whose scores are slopes, are not simulated.
    """
    loaded = campaign_results.load_all(root, problems=[])
    decided = [each for each in loaded if each.is_tuned and not each.undecided and not each.ladder]
    found: dict[tuple[str, ...], Compared] = {}
    for campaign in sorted(decided, key=lambda each: each.rules):
        old = campaign.rules == campaign_file.OCTAVE_RULES
        rules, earlier = tuple(RULES)[0 if old else 1 :], {key[1:] for key in found}
        values, unit = campaign.validation, verdicts.unit(campaign)
        for claim in campaign.claims:
            norms = campaign.task, claim.a, claim.b
            if (margin := claim.margin) is not None and (old or norms in earlier):
                scores = (campaign.scores[norm] for norm in norms[1:])
                pairs = pair(*scores, campaign.final_seeds[: claim.seeds], campaign.mode)
                sd = float(np.std(pairs.differences, ddof=1)) / margin
                curves = {key: curve(values[getattr(claim, key)], campaign.mode, margin) for key in "ab"}
                of_tuning = selection.scatter(campaign.with_all_seeds[norm] for norm in norms[1:]) / margin
                counts = campaign.seeds.min_seeds, campaign.seeds.max_seeds
                key = campaign.name, *norms
                found[key] = Compared(*key, rules, margin, unit, campaign.grid, counts, sd, of_tuning, curves)
    return list(found.values())


def curve(values: selection.Rates, mode: str, margin: float) -> Callable[[float], float]:
    """Return the score of a norm as a function of the binary logarithm of the rate, in margins, 0 at the best rate.

    The means over seeds at the measured rates are interpolated by monotone cubics. Beyond these rates the score falls
    as steeply as it changes at the last one.
    """
    places = np.log2(sorted(values))
    means = np.array([sign(mode) * np.mean(list(values[rate].values())) / margin for rate in sorted(values)])
    cubics = PchipInterpolator(places, means - means.max())

    def score(place: float) -> float:
        inside = min(max(place, places[0]), places[-1])
        return float(cubics(inside) - abs(cubics(inside, 1)) * abs(place - inside))

    return score


class Tuned(NamedTuple):
    """The result of a tuned campaign.

    ``covered``: whether the interval contains the true difference. ``half``: half its width. ``wrong``: whether a
    verdict is wrong, for each of ``SIDES``. ``runs``: the number of tuning runs per norm.
    """

    covered: bool
    half: float
    wrong: list[bool]
    runs: float


def tuned(norms: Compared, rule: selection.Rule, generator: np.random.Generator) -> Tuned:
    """Return the result of a simulated campaign that chooses rates by ``rule``.

    It is decided for each of ``SIDES``: a shift of the scores of a changes neither tuning nor the width of intervals.
    """
    moved = {norm: generator.uniform(-0.5, 0.5) for norm in "ab"}

    def score(norm: str, rate: float, sd: float) -> float:
        return norms.curves[norm](math.log2(rate) - moved[norm]) + generator.normal(0, sd)

    values: dict[str, dict[float, dict[int, float]]] = {"a": {}, "b": {}}
    while (plan := selection.tune(norms.grid, values, "max", TUNING, rule)).runs:
        for norm, rate, seed in plan.runs:
            values[norm].setdefault(rate, {})[seed] = score(norm, rate, norms.scatter)
    uncertainty = {norm: choice.uncertainty for norm, choice in plan.choices.items()}
    rates = {norm: choice.rate for norm, choice in plan.choices.items() if choice.rate is not None}
    (look, most), sd, tested = norms.seeds, norms.sd / math.sqrt(2), [EQUAL, NOT_WORSE]
    scores = {norm: {seed: score(norm, rate, sd) for seed in range(most)} for norm, rate in rates.items()}
    used = range(seeds.needed(tested, scores, "max", range(look), most, uncertainty))
    wrong = []
    for by in SIDES:
        shifted = scores | {"a": {seed: value - by for seed, value in scores["a"].items()}}
        found = claims.decide(tested, shifted, "max", used, uncertainty)
        wrong.append(any(is_wrong(verdict, by) for verdict in found))
    low, high = found[0].low + by, found[0].high + by  # of the difference minus the true one, the same for all sides
    runs = sum(len(tried) for of_norm in values.values() for tried in of_norm.values()) / len(values)
    return Tuned(low <= 0 <= high, (high - low) / 2, wrong, runs)


@dataclass(frozen=True)
class Case:
    """A kind of campaign with known rates.

    Attributes:
        title: the case in words.
        sd: standard deviation of the difference between two norms at the same seed.
        few: number of seeds of the claims of superiority.
        lost: the number of seeds at which runs diverged, drawn from the first ``few``.
        lost_norms: the norms of these runs; one of the texts is drawn for each seed.
    """

    title: str
    sd: float = 0.65
    few: int = 5
    lost: int = 0
    lost_norms: tuple[str, ...] = ("a", "bc")

    @property
    def claims(self) -> list[Claim]:
        better = [Claim(f"{a} is better than a", "superiority", a, "a", family="better", seeds=self.few) for a in "bc"]
        return [EQUAL, NOT_WORSE, *better]


CASES = [
    Case("little spread"),
    Case("more spread", sd=0.85),
    Case("as spread as quality_cifar10", sd=1.45, few=6),  # RMSNorm minus LayerNorm there, and its seeds
    Case("a run diverged", lost=1),
    Case("a run diverged, 8 seeds for superiority", lost=1, few=8),
    Case("runs of two seeds diverged", lost=2),
    Case("runs of two seeds diverged, 8 seeds for superiority", lost=2, few=8),
    Case("all runs of a seed diverged", lost=1, lost_norms=("abc",)),
    Case("all runs of two seeds diverged", lost=2, lost_norms=("abc",)),
]


def known(case: Case, difference: float, generator: np.random.Generator) -> tuple[list[Verdict], int]:
    """Return verdicts and number of seeds of a simulated campaign in which a is worse by ``difference``."""
    common, scores = generator.normal(0, SEED_EFFECT, MOST), {}
    for norm in "abc":
        level = -difference if norm == "a" else 0.0
        scores[norm] = dict(enumerate(level + common + generator.normal(0, case.sd / math.sqrt(2), MOST)))
    for seed in generator.choice(case.few, case.lost, replace=False):
        for norm in str(generator.choice(case.lost_norms)):
            scores[norm][int(seed)] = math.nan
    count = seeds.needed(case.claims, scores, "max", range(LOOK), MOST)
    return claims.decide(case.claims, scores, "max", range(count)), count


def is_wrong(found: Verdict, difference: float) -> bool:
    """Return whether a claim is supported although false, or refuted although true, if a is worse by ``difference``."""
    low, high = found.claim.bounds
    true = low < (difference if found.claim.test == claims.SUPERIORITY else -difference) < high
    return found.outcome == (claims.REFUTED if true else claims.SUPPORTED)


def of_tuned(norms: Compared, rule: str, found: Sequence[Tuned]) -> dict[str, Any]:
    """Return a row of the record. ``half``: median and 90 % quantile of half the width, in the unit of the score."""
    kept = ("campaign", "task", "a", "b", "margin", "unit", "seeds", "sd", "scatter")
    row: dict[str, Any] = {key: getattr(norms, key) for key in kept}
    row |= {"rule": rule, "coverage": _mean(each.covered for each in found)}
    row |= {"wrong": [_mean(each.wrong[place] for each in found) for place in range(len(SIDES))]}
    row |= {"half": (norms.margin * np.quantile([each.half for each in found], [0.5, 0.9])).tolist()}
    return row | {"runs": _mean(each.runs for each in found)}


def of_known(case: Case, found: Mapping[float, Sequence[tuple[list[Verdict], int]]]) -> dict[str, Any]:
    """Return a row of the record, whose shares of campaigns are in the order of ``DIFFERENCES``.

    ``wrong``, ``supported``: by test, the shares with any wrong verdict, and with its first claim supported.
    """
    wrong, supported = {}, {}
    for test, places in TESTS.items():
        first = places[0]
        wrong[test] = [_mean(any(is_wrong(got[i], by) for i in places) for got, _ in found[by]) for by in DIFFERENCES]
        supported[test] = [_mean(got[first].outcome == claims.SUPPORTED for got, _ in found[by]) for by in DIFFERENCES]
    mean = _mean(count for _, count in found[0.0])
    return {"case": case.title, "seeds": mean, "wrong": wrong, "supported": supported}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def simulate(number: int, seed: int) -> dict[str, Any]:
    """Return the results of the record, with ``number`` campaigns for each row (tuned) or cell (known rates)."""
    rows: dict[str, list[dict[str, Any]]] = {"tuned": [], "known": []}
    for place, norms in enumerate(compared()):
        for name in norms.rules:
            generator = np.random.default_rng([seed, 0, place])
            rows["tuned"].append(of_tuned(norms, name, [tuned(norms, RULES[name], generator) for _ in range(number)]))
    for place, case in enumerate(CASES):
        generator = np.random.default_rng([seed, 1, place])
        found = {by: [known(case, by, generator) for _ in range(number)] for by in DIFFERENCES}
        rows["known"].append(of_known(case, found))
    return {"campaigns": number, "seed": seed} | rows


def tables(results: Mapping[str, Any]) -> list[str]:
    """Return two Markdown tables: tuned campaigns, and campaigns with known rates."""
    rows: dict[str, list[dict[str, str]]] = {"tuned": [], "known": []}
    for row in results["tuned"]:
        cells = {"campaign": f"`{row['campaign']}`", "a and b": f"{names.label(row['a'])}, {names.label(row['b'])}"}
        cells |= {"margin": f"{row['margin']:g} {row['unit']}", "rates tuned by": row["rule"]}
        cells |= {"coverage (%)": _percent(row["coverage"])}
        cells |= {f"wrong verdicts (%), a worse by {' / '.join(SIDES.values())}": _percent(*row["wrong"])}
        cells |= {"half width: median, 90 % quantile": ", ".join(f"{half:.2g}" for half in row["half"])}
        rows["tuned"].append(cells | {"tuning runs per norm": f"{row['runs']:.1f}"})
    by = list(DIFFERENCES.values())
    for row in results["known"]:
        cells = {"rates known": row["case"], "mean number of seeds": f"{row['seeds']:.1f}"}
        for test in TESTS:
            cells[f"{test}: wrong (%), a worse by {' / '.join(by)}"] = _percent(*row["wrong"][test])
        for test, part in zip(TESTS, (slice(2), slice(2), slice(1, 4)), strict=True):  # where the claims are true
            cells[f"{test}: supported (%), {' / '.join(by[part])}"] = _percent(*row["supported"][test][part])
        rows["known"].append(cells)
    return [markup.markdown(pd.DataFrame(part)) for part in rows.values()]


def _percent(*shares: float) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=3000, help="number of campaigns per row or cell (3000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulation (0)")
    add_option(parser, None)
    arguments = parser.parse_args()
    check = Check("verdict_power", arguments.results)
    results = simulate(arguments.campaigns, arguments.seed)
    print("\n\n".join(tables(results)))
    check.write(results)


if __name__ == "__main__":
    run(main)
