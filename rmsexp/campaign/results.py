"""What the records of a campaign's runs say: their scores, the chosen rates, and the verdicts.

A campaign writes ``<results>/campaigns/<name>/campaign.json`` (:mod:`rmsexp.campaign.campaign_file`). All else
is computed here from the records of its runs, by the rules in :mod:`rmsexp.rules`. Scores and differences are in the
displayed unit, in which campaigns state margins: percent or percentage points for metrics that are stored as fractions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rmsexp.campaign.campaign_file import NO_GIT, CampaignFile, Metric, find, read
from rmsexp.campaign.campaign_file import Job as Job
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.records.frames.load import DAMAGE, number
from rmsexp.rules import claims, measures, pairs, seeds, selection
from rmsexp.system import clock

# The paper's claim about pRMSNorm: (claim, a, b). Campaigns before 28 November 2026 do not make it. It is decided from
# their runs, and marked as not registered.
PAPERS_CLAIM = ("pRMSNorm equals LayerNorm", "prms", "ln")


class Result(NamedTuple):
    """The result of a run, as far as its record has one.

    Attributes:
        status: "finished" for a run that counts, because it finished and has the evaluations of its scores; "diverged";
            "incomplete" for a run that finished without these evaluations; "missing" without a record; or another
            status of a record, such as "running".
        validation: the score by which rates are chosen; NaN without its evaluations.
        test: the score that claims are about; NaN unless the run counts and is a final run.
        gain: by how much the metric of the score, on the first validation examples, improved in the last fifth of the
            steps, in the displayed unit; NaN unless the run counts and is a final run.
        code: the commit of each of its sessions, with "+" if there were uncommitted changes; without git, a digest of
            the code.
        data: the digest of its data.
        own: for each of its sessions, the digest of the user's own modules, or "".
        began: when its first session began, in seconds since 1970; None if its record does not say.
    """

    status: str
    validation: float = math.nan
    test: float = math.nan
    gain: float = math.nan
    code: frozenset[str] = frozenset()
    data: str = ""
    own: frozenset[str] = frozenset()
    began: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the run counts or diverged."""
        return self.status in record.ENDED


Results = Mapping[Job, Result]


@dataclass(frozen=True, kw_only=True)
class Campaign(CampaignFile):
    """A campaign, and what is computed from the results of its runs. ``path``: its file."""

    path: Path

    @property
    def root(self) -> Path:
        """The results folder in which the campaign's file lies."""
        return self.path.parents[2]

    def results(self, problems: list[str] | None = None) -> dict[Job, Result]:
        """Return the result of every job, from the records below :attr:`root`.

        A damaged record counts as missing; if ``problems`` is given, a line for each is added to it.
        """
        return {job: self._result(job, [] if problems is None else problems) for job in self.jobs}

    def _result(self, job: Job, problems: list[str]) -> Result:
        files = record.RunFolder(self.root / job.folder)
        try:
            if not files.run_path.exists():
                if files.status_path.exists() and files.read_status()["status"] in record.ENDED:
                    problems.append(f"{files.path} has ended, but {record.RUN} is missing")
                return Result("missing")
            return self._read(files, job)
        except DAMAGE as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
            problems.append(reason if str(files.path) in reason else f"{files.path}: {reason}")
            return Result("missing")

    def _read(self, files: record.RunFolder, job: Job) -> Result:
        run, status = files.read_run(), str(files.read_status()["status"])
        if (name := "/".join([run["task"], run["setting"], run["series"], f"seed{run['seed']}"])) != job.folder:
            raise ValueError(f"{files.run_path} describes the run {name}, so it does not count")
        code = frozenset(_code(session) for session in run["sessions"])
        own = frozenset(session.get(record.OWN_CODE, "") for session in run["sessions"])
        data, begun = run["dataset"]["digest"], [moment(session.get("started")) for session in run["sessions"]]
        result = Result(status, code=code, data=data, own=own, began=next(iter(begun), None))
        if status != "finished" or job.stage == "pilot":
            return result
        rows, problem = files.read_metrics()
        if problem:
            raise ValueError(problem)
        steps = score.steps(int(number(run["recipe_steps"])))[-score.SCORED :]
        of_validation, of_test = _values(rows, steps, self.tuned_by), _values(rows, steps, self.score)
        needed = of_test if job.stage == "final" else of_validation
        if len(needed) < len(steps):
            return result._replace(status="incomplete")
        if not all(map(math.isfinite, needed)):  # the loss or a metric became NaN or infinite
            return result._replace(status="diverged")
        result = result._replace(validation=_score(of_validation, self.tuned_by))
        if job.stage != "final":
            return result
        return result._replace(test=_score(of_test, self.score), gain=_gain(rows, self.score.metric, self.mode))

    def undecided(self, results: Results) -> str:
        """Return why the claims are not decided yet, such as "12 of 24 final runs"; "" if they are."""
        final = [results[job] for job in self.jobs if job.stage == "final"]
        ended = sum(result.ended for result in final)
        if ended < len(final):
            others = Counter(result.status for result in final if not result.ended and result.status != "missing")
            return ", ".join([f"{ended} of {len(final)} final runs", *(f"{n} {name}" for name, n in others.items())])
        if not final:
            choices = self.choice(results).values()
            if choices and all(choice.rate is None for choice in choices):
                return ""  # every norm diverged at every rate
            tune = [results[job] for job in self.jobs if job.stage == "tune"]
            return (
                f"no final runs, {sum(result.ended for result in tune)} of the {len(tune)} tuning runs planned so far"
            )
        return "" if self.seeds.needed is not None else f"{ended} final runs, but the number of seeds is not chosen"

    def tuning(self, results: Results) -> selection.Plan:
        """Return the rates of the grid as extended, and the tuning runs that are to be made now, if there are any."""
        if not self.is_tuned:
            return selection.Plan(self.grid, ())
        return selection.next_runs(self.grid, self.validation(results), self.mode, self.seeds.tune, self.tuning_rule)

    def choice(self, results: Results) -> dict[str, selection.Choice]:
        """Return the chosen rate of each arm; none before the tuning is finished, and none for stable ranges."""
        if self.tolerance is not None:
            return {}
        if not self.is_tuned:
            return dict.fromkeys(self.every_arm, selection.Choice(self.grid[0], math.nan, 0, None, 0.0))
        if not self.seeds.tune or self.tuning(results).runs:
            return {}
        tuned = selection.choose(self.grid, self.validation(results), self.mode, self.seeds.tune, self.tuning_rule)
        between = {arm: choice for of_norm in self.arms.values() for arm, choice in self._between(of_norm, tuned)}
        return {arm: (tuned | between)[arm] for arm in self.every_arm}

    def _between(
        self, arms: Sequence[str], tuned: Mapping[str, selection.Choice]
    ) -> list[tuple[str, selection.Choice]]:
        """Return the choices of a norm between the ends of its ladder: no rate if an end has none."""
        first, last = tuned[arms[0]].rate, tuned[arms[-1]].rate
        rates: Sequence[float | None] = [None] * len(arms[1:-1])
        if first is not None and last is not None and len(arms) > 2:
            rates = measures.rates_between(self.sizes, first, last)
        choices = [selection.Choice(rate, math.nan, 0, None, math.nan) for rate in rates]
        return list(zip(arms[1:-1], choices, strict=True))

    @property
    def sizes(self) -> tuple[float, ...]:
        """The values of the first key of the ladder; empty without one."""
        return next(iter(self.ladder.values()), ())

    @property
    def every_arm(self) -> list[str]:
        """The arms of all norms."""
        return [arm for arms in self.arms.values() for arm in arms]

    @property
    def tuned_arms(self) -> list[str]:
        """The arms whose rates are tuned: with a ladder, those with its first and its last values."""
        return [arm for arms in self.arms.values() for arm in dict.fromkeys((arms[0], arms[-1]))]

    @property
    def better(self) -> str:
        """The better direction of what claims are about: "min" or "max". Stable ranges had better be wide."""
        return "max" if self.tolerance is not None else self.mode

    def uncertainty(self, results: Results) -> dict[str, float]:
        """Return the uncertainty of the chosen rate of each arm; NaN where it is not known.

        On a ladder also that of each slope: rates between the ends follow those at the ends, so that it is
        sqrt(R_first² + R_last²) over the number of doublings. A stable range has none.
        """
        if self.tolerance is not None:
            return dict.fromkeys(self.norms, 0.0)
        known = {norm: choice.uncertainty for norm, choice in self.choice(results).items()}
        if not self.ladder or not known:
            return known
        doublings = math.log2(self.sizes[-1] / self.sizes[0])
        return known | {
            norm: math.hypot(known[arms[0]], known[arms[-1]]) / doublings for norm, arms in self.arms.items()
        }

    def validation(self, results: Results) -> dict[str, dict[float, dict[int, float]]]:
        """Return the validation scores of the tuning runs that ended, by norm, rate and seed; NaN for diverged runs."""
        scores: dict[str, dict[float, dict[int, float]]] = {arm: {} for arm in self.tuned_arms}
        for job in self._ended(results, "tune"):
            scores[job.norm].setdefault(job.rate, {})[job.seed] = results[job].validation
        return scores

    def by_rate(self, results: Results) -> dict[str, dict[float, dict[int, float]]]:
        """Return the test scores of the final runs that ended, by norm, rate and seed; NaN for diverged runs."""
        scores: dict[str, dict[float, dict[int, float]]] = {arm: {} for arm in self.every_arm}
        for job in self._ended(results, "final"):
            scores[job.norm].setdefault(job.rate, {})[job.seed] = results[job].test
        return scores

    def scores(self, results: Results) -> dict[str, dict[int, float]]:
        """Return what claims are about, by norm and seed, from the final runs that ended; NaN for diverged runs.

        These are the test scores, and on a ladder also the slopes of the norms; or the widths of the stable ranges. A
        norm that diverged at every rate has NaN.
        """
        by_rate = self.by_rate(results)
        if self.tolerance is not None:
            seeds = range(self.seeds.min_seeds)
            return {norm: measures.widths(rates, seeds, self.mode, self.tolerance) for norm, rates in by_rate.items()}
        scores = {
            arm: {seed: value for of_rate in rates.values() for seed, value in of_rate.items()}
            for arm, rates in by_rate.items()
        }
        lost = [norm for norm, choice in self.choice(results).items() if choice.rate is None]
        scores |= {norm: dict.fromkeys(self.final_seeds, math.nan) for norm in lost}
        if not self.ladder:
            return scores
        return scores | {
            norm: measures.slopes(self.sizes, [scores[arm] for arm in arms]) for norm, arms in self.arms.items()
        }

    def ranges(self, results: Results) -> dict[str, measures.Range | None]:
        """Return the stable range of each norm; None for one that diverged at every rate. Empty for other claims."""
        if self.tolerance is None or self.undecided(results):
            return {}
        scores = self.by_rate(results)
        return {norm: measures.stable_range(scores[norm], self.mode, self.tolerance) for norm in self.norms}

    def final_runs(self, results: Results, count: int) -> list[tuple[str, float, int]]:
        """Return the final runs that the rules ask for by the results so far: norm, rate and seed.

        ``count``: the number of seeds of norms that no claim limits to fewer.
        """
        if self.tolerance is not None:
            seeds = range(self.seeds.min_seeds)
            by_rate = self.by_rate(results)
            return [
                (norm, rate, seed)
                for norm in self.norms
                for rate, seed in measures.runs_of_range(by_rate[norm], self.grid, seeds, self.mode, self.tolerance)
            ]
        choices = self.choice(results)
        return [
            (arm, rate, seed)
            for norm, arms in self.arms.items()
            for arm in arms
            if arm in choices and (rate := choices[arm].rate) is not None
            for seed in range(self.final_count(norm, count))
        ]

    @property
    def final_seeds(self) -> list[int]:
        """The seeds of the final runs; those of the first look if there are none."""
        return sorted({job.seed for job in self.jobs if job.stage == "final"}) or list(range(self.seeds.min_seeds))

    def final_count(self, norm: str, count: int) -> int:
        """Return the number of final seeds of a norm: the most that a claim about it needs. ``count``: for most."""
        needed = (min(claim.seeds or count, count) for claim in self.claims if norm in (claim.a, claim.b))
        return max(needed, default=0)

    def needed_seeds(self, results: Results) -> int | None:
        """Return the number of seeds that the claims need; None before all runs of the first look have ended."""
        look = range(self.seeds.min_seeds)
        if self.tolerance is not None:
            asked = {(job.norm, job.rate, job.seed) for job in self._ended(results, "final")}
            return len(look) if asked.issuperset(self.final_runs(results, len(look))) else None
        final = [job for job in self.jobs if job.stage == "final" and job.seed in look]
        if not final or not all(results[job].ended for job in final):
            return None
        scores = {
            norm: {seed: values[seed] for seed in look if seed in values}
            for norm, values in self.scores(results).items()
        }
        uncertainty = self.uncertainty(results)
        return seeds.needed(self.claims, scores, self.mode, look, self.seeds.max_seeds, uncertainty)

    def coming(self, results: Results, extensions: int, seeds: int) -> list[Job]:
        """Return the runs that will be needed beside those planned so far, as far as that is known now.

        Their rates and folders are not known yet: they have the lowest rate and no folder. None is needed if all norms
        diverged at every rate. ``extensions``: how often the grid is extended, by a rate each time. ``seeds``: the
        number of final seeds.
        """
        choice = self.choice(results)
        if choice and all(chosen.rate is None for chosen in choice.values()):
            return []
        runs: list[Job] = []
        planned = Counter((job.stage, job.norm) for job in self.jobs)
        tuned = any(stage == "final" for stage, _ in planned)
        for norm, arm in ((norm, arm) for norm, arms in self.arms.items() for arm in arms):
            if not tuned:
                rates = max(len(self.tuning(results).grid), len(self.grid) + extensions)
                number = rates + self.tuning_rule.runs if self.is_tuned and arm in self.tuned_arms else 0
                runs += [Job("tune", arm, self.grid[0], 0, "")] * max(0, number - planned["tune", arm])
            elif not planned["final", arm]:  # it diverged at every rate
                continue
            count = self.final_count(norm, seeds)
            if self.tolerance is not None:  # the best rate and two beside each end of the range have all seeds
                count = len(self.grid) + 5 * (count - 1)
            runs += [Job("final", arm, self.grid[0], seed, "") for seed in range(planned["final", arm], count)]
        return runs

    def _ended(self, results: Results, stage: str) -> list[Job]:
        return [job for job in self.jobs if job.stage == stage and results[job].ended]

    def verdicts(self, results: Results) -> list[claims.Verdict]:
        """Return the verdict on each claim, in their order, and on those that are not registered.

        There is none while they are undecided, as they are tested once.
        """
        if self.undecided(results):
            return []
        uncertainty = self.uncertainty(results)
        every, scores = (*self.claims, *self.unregistered()), self.scores(results)
        open_ranges = {norm for norm, found in self.ranges(results).items() if found is not None and found.at_least}
        return claims.decide(every, scores, self.better, self.final_seeds, uncertainty, open_ranges)

    def unregistered(self) -> list[claims.Claim]:
        """Return the paper's claim about pRMSNorm, if the campaign has its norms and a margin and does not make it."""
        text, a, b = PAPERS_CLAIM
        margins = [claim.margin for claim in self.claims if claim.margin is not None]
        made = any((claim.a, claim.b) == (a, b) for claim in self.claims)
        if made or not margins or not {a, b} <= {*self.norms} or self.measure != measures.SCORE:
            return []
        numbers = [len({job.seed for job in self.jobs if (job.stage, job.norm) == ("final", norm)}) for norm in (a, b)]
        return [claims.Claim(text, claims.EQUIVALENCE, a, b, min(margins), seeds=max(min(numbers), claims.MIN_PAIRS))]


def of_stage(results: Results, stage: str, norm: str) -> list[tuple[Job, Result]]:
    """Return the jobs of a stage and norm, with their results."""
    return [(job, result) for job, result in results.items() if (job.stage, job.norm) == (stage, norm)]


def load(path: Path) -> Campaign:
    """Return the campaign in a ``campaign.json``.

    Raises: OSError if it cannot be opened; ValueError, with a message that names the file, if it is damaged.
    """
    return Campaign(path=path, **vars(read(path)))


def load_all(root: Path, problems: list[str]) -> list[Campaign]:
    """Return the campaigns below ``root``; a line for each damaged file, and each copy, is added to ``problems``.

    Of several campaigns of one name in the same results, the one in the folder of this name is no copy.
    """
    loaded = []
    for path in find(root):
        try:
            loaded.append(load(path))
        except (OSError, ValueError) as error:
            problems.append(f"campaign left out: {error}")
    originals: dict[tuple[Path, str], Campaign] = {}
    for campaign in sorted(loaded, key=lambda campaign: campaign.path.parent.name != campaign.name):
        if campaign is not originals.setdefault((campaign.root, campaign.name), campaign):
            problems.append(f"{campaign.path} describes the campaign {campaign.name}, so this copy is left out")
    return list(originals.values())


def _values(rows: Sequence[record.Row], steps: Sequence[int], target: Metric) -> list[float]:
    """Return the metric at those of the steps that have it; NaN where it is not finite."""
    of_split = [row for row in rows if row["split"] == target.split and target.metric in row]
    values = {row["step"]: number(row[target.metric]) for row in of_split}
    return [values[step] for step in steps if step in values]


def _gain(rows: Sequence[record.Row], metric: str, mode: str) -> float:
    """Return by how much a metric on the first validation examples improved from evaluation 16 to evaluation 20."""
    values = [number(row[metric]) for row in rows if row["split"] == score.INTERIM and metric in row]
    if len(values) < score.EVALUATIONS:
        return math.nan
    gained = values[-1] - values[-1 - score.EVALUATIONS // 5]
    return pairs.sign(mode) * names.scale_and_unit(metric)[0] * gained


def _score(values: Sequence[float], target: Metric) -> float:
    """Return the score in the displayed unit; NaN if there are too few values."""
    if len(values) < score.SCORED:
        return math.nan
    return names.scale_and_unit(target.metric)[0] * score.score(values)


def moment(text: object) -> float | None:
    """Return the date and time in a record as seconds since 1970; None if it has none."""
    with suppress(ValueError):
        return clock.timestamp(str(text))
    return None


def _code(session: Mapping[str, Any]) -> str:
    git = session.get("git") or {}
    if not git.get("commit"):
        return f"{NO_GIT}{session.get('code')}"
    return f"{git['commit']}{'+' if git.get('dirty', False) is not False else ''}"
