"""A campaign with the results of its runs: scores, chosen rates, and verdicts.

A campaign writes ``<results>/campaigns/<name>/campaign.json`` (:mod:`rmsexp.campaign.campaign_file`). All else
is computed here from the records of its runs, by the rules in :mod:`rmsexp.rules`. Scores and differences are in the
displayed unit, in which campaigns state margins: percent or percentage points for metrics that are stored as fractions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from rmsexp.campaign import remarks
from rmsexp.campaign.campaign_file import TUNING, CampaignFile, Job, Metric, commit_of, find, moment, read
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.records.frames.load import DAMAGE
from rmsexp.records.record import number
from rmsexp.rules import claims, measures, pairs, seeds, selection

# The paper's claim about pRMSNorm: (claim, a, b). Campaigns before 28 November 2026 do not make it. It is decided from
# their runs, and marked as not registered.
PAPERS_CLAIM = ("pRMSNorm equals LayerNorm", "prms", "ln")
ByRate = dict[str, dict[float, dict[int, float]]]  # scores by norm, rate and seed


class Result(NamedTuple):
    """The result of a run, as far as its record has one.

    Attributes:
        status: "finished" for a run that counts, because it finished and has the evaluations of its score; "diverged",
            also if one of these is not finite; "incomplete" for a run that finished without them; "missing" without a
            record; or another status of a record, such as "running".
        score: of a final run the score that claims are about, of a tuning run the one by which rates are chosen; NaN
            unless the run counts, and for pilot runs.
        gain: by how much the metric of the score, on the first validation examples, improved in the last fifth of the
            steps, in the displayed unit; NaN if that is not known.
        code: the commit of each of its sessions, with "+" if there were uncommitted changes; without git, a digest of
            the code.
        own: the digests of the user's own modules in its sessions; "" for a session without any.
        data: the digest of its data.
        began: when its first session began, in seconds since 1970; None if its record does not say.
    """

    status: str
    score: float = math.nan
    gain: float = math.nan
    code: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    data: str = ""
    began: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the run counts or diverged."""
        return self.status in record.ENDED


@dataclass(frozen=True, kw_only=True)
class Campaign(CampaignFile):
    """A campaign with the results of its runs.

    ``path``: its file. ``results``: of every job. ``problems``: a line for each damaged record, whose run counts as
    missing.
    """

    path: Path
    results: Mapping[Job, Result] = field(default_factory=dict, compare=False)
    problems: tuple[str, ...] = field(default=(), compare=False)

    @property
    def root(self) -> Path:
        """The results folder in which the campaign's file lies."""
        return self.path.parents[2]

    def with_results(self) -> Campaign:
        """Return the campaign with the results of all jobs; those that it lacks are read from the records."""
        problems = list(self.problems)
        results = {job: self.results.get(job) or self._result(job, problems) for job in self.jobs}
        return replace(self, results=results, problems=tuple(problems))

    def _result(self, job: Job, problems: list[str]) -> Result:
        files = record.RunFolder(self.root / job.folder)
        try:
            return self._read(files, job) if files.run_path.exists() else Result("missing")
        except DAMAGE as error:
            problems.append(f"{files.path}: {error!r}")
            return Result("missing")

    def _read(self, files: record.RunFolder, job: Job) -> Result:
        run, stored = files.read_run(), files.read_status()
        name, status = "/".join([run["task"], run["setting"], run["series"], f"seed{run['seed']}"]), stored["status"]
        for path, described in ((files.run_path, name), (files.status_path, stored.get("run"))):
            if described not in (None, job.folder):
                raise ValueError(f"{path} describes the run {described}, so it does not count")
        code = frozenset(commit_of(session.get("git") or {}, session.get("code")) for session in run["sessions"])
        began = next((moment(session.get("started")) for session in run["sessions"]), None)
        own = frozenset(session.get(record.OWN_CODE, "") for session in run["sessions"])
        result = Result(status, code=code, own=own, data=run["dataset"]["digest"], began=began)
        if status != "finished" or job.stage == "pilot":
            return result
        rows, problem = files.read_metrics()
        if problem:
            raise ValueError(problem)
        split, metric = self.score if job.stage == "final" else self.tuned_by
        scale, _ = names.scale_and_unit(metric)
        values, steps = _values(rows, split, metric), score.steps(int(number(run["recipe_steps"])))
        scored = [values[step] for step in steps[-score.SCORED :] if step in values]
        if len(scored) < score.SCORED:
            return result._replace(status="incomplete")
        if not all(map(math.isfinite, scored)):  # the loss or a metric became NaN or infinite
            return result._replace(status="diverged")
        sample, gain = [*_values(rows, score.SAMPLE, metric).values()], math.nan
        if len(sample) >= score.EVALUATIONS:
            gain = pairs.sign(self.mode) * scale * (sample[-1] - sample[-1 - score.EVALUATIONS // 5])
        return result._replace(score=scale * score.score(scored), gain=gain)

    # --- runs

    @property
    def left(self) -> list[Job]:
        """The jobs that have not ended."""
        return [job for job in self.jobs if not self.results[job].ended]

    def of_stage(self, stage: str, norm: str) -> list[tuple[Job, Result]]:
        """Return the jobs of a stage and norm, with their results."""
        return [(job, result) for job, result in self.results.items() if (job.stage, job.norm) == (stage, norm)]

    def compares(self, job: Job) -> bool:
        """Whether a run is compared with the same seed of other norms: a final run, except for stable ranges."""
        return job.stage == "final" and self.tolerance is None

    @property
    def rated_by(self) -> Metric:
        """The metric by which rates are compared."""
        return self.tuned_by if self.tolerance is None else self.score

    def rated(self, norm: str) -> list[tuple[Job, Result]]:
        """Return the runs of a norm at several rates: of tuning or, for claims about stable ranges, the final runs."""
        return self.of_stage("tune" if self.tolerance is None else "final", norm)

    @cached_property
    def undecided(self) -> str:
        """Why the claims are not decided yet, such as "12 of 24 final runs"; "" if they are."""
        final = [self.results[job] for job in self.stages.get("final", [])]
        ended = sum(result.ended for result in final)
        if ended < len(final):
            others = Counter(result.status for result in final if not result.ended and result.status != "missing")
            return ", ".join([f"{ended} of {len(final)} final runs", *(f"{n} {name}" for name, n in others.items())])
        # without any final run it is decided if every norm diverged at every rate
        if not final and not (self.choice and all(choice.rate is None for choice in self.choice.values())):
            tune = [self.results[job].ended for job in self.stages.get("tune", [])]
            return f"no final runs, {sum(tune)} of the {len(tune)} tuning runs planned so far"
        if final and self.seeds.needed is None:
            return f"{ended} final runs, but the number of seeds is not chosen"
        return ""

    # --- rates

    @property
    def every_arm(self) -> list[str]:
        """The arms of all norms."""
        return [arm for arms in self.arms.values() for arm in arms]

    @property
    def sizes(self) -> tuple[float, ...]:
        """The values of the first key of the ladder; empty without one."""
        return next(iter(self.ladder.values()), ())

    @cached_property
    def validation(self) -> ByRate:
        """The validation scores of the tuning runs that ended, of each arm that is tuned; NaN for diverged runs."""
        return self._by_rate("tune", [arm for arms in self.arms.values() for arm in dict.fromkeys((arms[0], arms[-1]))])

    @property
    def with_all_seeds(self) -> ByRate:
        """The validation scores at the rates that were run with all tuning seeds, in the order of the seeds."""
        return {
            arm: {
                rate: {seed: values[seed] for seed in self.seeds.tune}
                for rate, values in tried.items()
                if len(values) == len(self.seeds.tune)
            }
            for arm, tried in self.validation.items()
        }

    @cached_property
    def tuning(self) -> selection.Plan:
        """The rates of the grid as extended, and the tuning runs to be made now or, without any, the choices."""
        if not self.is_tuned:
            return selection.Plan(self.grid, (), {})
        return selection.tune(self.grid, self.validation, self.mode, self.seeds.tune, TUNING[self.rules])

    @cached_property
    def choice(self) -> dict[str, selection.Choice]:
        """The choice of each arm, whose rate is None if all runs diverged; empty until tuned, and for stable ranges."""
        if self.tolerance is not None:
            return {}
        if not self.is_tuned:
            return dict.fromkeys(self.every_arm, selection.Choice(self.grid[0], uncertainty=0.0))
        if self.tuning.runs:
            return {}
        choices = dict(self.tuning.choices)
        for arms in self.arms.values():  # between the ends of a ladder; no rate if an end has none
            first, last = choices[arms[0]].rate, choices[arms[-1]].rate
            rates: Sequence[float | None] = [None] * len(arms[1:-1])
            if first is not None and last is not None and len(arms) > 2:
                rates = measures.rates_between(self.sizes, first, last)
            for arm, rate in zip(arms[1:-1], rates, strict=True):
                choices[arm] = selection.Choice(rate)
        return {arm: choices[arm] for arm in self.every_arm}

    @cached_property
    def uncertainty(self) -> dict[str, float]:
        """The uncertainty of the chosen rate of each arm; NaN where it is not known.

        On a ladder also that of each slope: rates between the ends follow those at the ends, so that it is
        sqrt(R_first² + R_last²) over the number of doublings. For stable ranges it is 0.
        """
        if self.tolerance is not None:
            return dict.fromkeys(self.norms, 0.0)
        known = {norm: choice.uncertainty for norm, choice in self.choice.items()}
        if not self.ladder or not known:
            return known
        doublings = math.log2(self.sizes[-1] / self.sizes[0])
        return known | {
            norm: math.hypot(known[arms[0]], known[arms[-1]]) / doublings for norm, arms in self.arms.items()
        }

    # --- scores

    @property
    def better(self) -> str:
        """The better direction of what claims are about, "min" or "max"; for the width of stable ranges "max"."""
        return "max" if self.tolerance is not None else self.mode

    @cached_property
    def by_rate(self) -> ByRate:
        """Scores of ended final runs by norm, rate and seed; NaN for diverged runs."""
        return self._by_rate("final", self.every_arm)

    @cached_property
    def scores(self) -> dict[str, dict[int, float]]:
        """What claims are about, by norm and seed, from the final runs that ended; NaN for diverged runs.

        These are the scores, and on a ladder also the slopes of the norms; or, for stable ranges, the pseudo-values of
        their widths (:mod:`rmsexp.rules.measures`). A norm that diverged at every rate has NaN.
        """
        if self.tolerance is not None:
            looked = range(self.seeds.min_seeds)
            return {
                norm: measures.widths(rates, looked, self.mode, self.tolerance) for norm, rates in self.by_rate.items()
            }
        scores = {
            arm: {seed: value for of_rate in rates.values() for seed, value in of_rate.items()}
            for arm, rates in self.by_rate.items()
        }
        lost = [norm for norm, choice in self.choice.items() if choice.rate is None]
        scores |= {norm: dict.fromkeys(self.final_seeds, math.nan) for norm in lost}
        if not self.ladder:
            return scores
        return scores | {
            norm: measures.slopes(self.sizes, [scores[arm] for arm in arms]) for norm, arms in self.arms.items()
        }

    @cached_property
    def ranges(self) -> dict[str, measures.Range | None]:
        """The stable range of each norm, None if it diverged at every rate; {} for other claims or while undecided."""
        if self.tolerance is None or self.undecided:
            return {}
        return {norm: measures.stable_range(self.by_rate[norm], self.mode, self.tolerance) for norm in self.norms}

    def _by_rate(self, stage: str, arms: Sequence[str]) -> ByRate:
        scores: ByRate = {arm: {} for arm in arms}
        for job, result in self.results.items():
            if job.stage == stage and result.ended:
                scores[job.norm].setdefault(job.rate, {})[job.seed] = result.score
        return scores

    # --- final runs

    def final_runs(self, count: int) -> list[tuple[str, float, int]]:
        """Return the final runs that the rules ask for by the results so far: norm, rate and seed.

        ``count``: the number of seeds of norms that no claim limits to fewer.
        """
        if self.tolerance is not None:
            rules = self.grid, range(self.seeds.min_seeds), self.mode, self.tolerance
            ranges = {norm: measures.runs_of_range(self.by_rate[norm], *rules) for norm in self.norms}
            return [(norm, rate, seed) for norm, runs in ranges.items() for rate, seed in runs]
        return [
            (arm, rate, seed)
            for norm, arms in self.arms.items()
            for arm in arms
            if arm in self.choice and (rate := self.choice[arm].rate) is not None
            for seed in range(self._final_count(norm, count))
        ]

    @property
    def final_seeds(self) -> list[int]:
        """The seeds of the planned final runs, ascending; the first ``min_seeds`` if there are none."""
        return sorted({job.seed for job in self.stages.get("final", [])}) or list(range(self.seeds.min_seeds))

    def _final_count(self, norm: str, count: int) -> int:
        """Return the number of final seeds that claims about a norm need: ``count``, or fewer if each states fewer."""
        needed = (min(claim.seeds or count, count) for claim in self.claims if norm in (claim.a, claim.b))
        return max(needed, default=0)

    def needed_seeds(self) -> int | None:
        """Return the number of seeds that claims need; None until the runs of the first ``min_seeds`` have ended."""
        look = range(self.seeds.min_seeds)
        if self.tolerance is not None:
            ended = {job[1:4] for job, result in self.results.items() if job.stage == "final" and result.ended}
            return len(look) if ended.issuperset(self.final_runs(len(look))) else None
        final = [job for job in self.stages.get("final", []) if job.seed in look]
        if not final or not all(self.results[job].ended for job in final):
            return None
        scores = {norm: {seed: values[seed] for seed in look if seed in values} for norm, values in self.scores.items()}
        return seeds.needed(self.claims, scores, self.mode, look, self.seeds.max_seeds, self.uncertainty)

    def coming(self) -> list[Job]:
        """Return the runs that will be needed beside those planned so far, as far as that is known now.

        The grid is taken not to be extended further, and the seeds to be the first ``min_seeds``. Rates and folders are
        not known yet: the runs have the lowest rate and "" as folder.
        """
        if not self.undecided:
            return []
        runs: list[Job] = []
        planned = Counter((job.stage, job.norm) for job in self.jobs)
        tuned = any(stage == "final" for stage, _ in planned)
        for norm, arm in ((norm, arm) for norm, arms in self.arms.items() for arm in arms):
            if not tuned:
                rates = max(len(self.tuning.grid), len(self.grid))
                number = rates + TUNING[self.rules].runs if self.is_tuned and arm in self.validation else 0
                runs += [Job("tune", arm, self.grid[0], 0, "")] * max(0, number - planned["tune", arm])
            elif not planned["final", arm]:  # it diverged at every rate
                continue
            count = self._final_count(norm, self.seeds.min_seeds)
            if self.tolerance is not None:  # the best rate and two beside each end of the range have all seeds
                count = len(self.grid) + 5 * (count - 1)
            runs += [Job("final", arm, self.grid[0], seed, "") for seed in range(planned["final", arm], count)]
        return runs

    # --- verdicts

    @property
    def every_claim(self) -> list[claims.Claim]:
        """The campaign's claims, and ``PAPERS_CLAIM`` if it has the norms, a margin and scores, but not this claim."""
        text, a, b = PAPERS_CLAIM
        margins = [claim.margin for claim in self.claims if claim.margin is not None]
        pairs = {(each.a, each.b) for each in self.claims}
        pairs |= {(each.b, each.a) for each in self.claims if each.test == claims.EQUIVALENCE}
        untrained = next((each.untrained for each in self.claims if each.untrained is not None), None)
        if (a, b) in pairs or not margins or not {a, b} <= {*self.norms} or self.measure != measures.SCORE:
            return [*self.claims]
        numbers = [len({job.seed for job in self.jobs if (job.stage, job.norm) == ("final", norm)}) for norm in (a, b)]
        least = max(min(numbers), claims.MIN_PAIRS)
        return [
            *self.claims,
            claims.Claim(text, claims.EQUIVALENCE, a, b, min(margins), seeds=least, untrained=untrained),
        ]

    @cached_property
    def verdicts(self) -> list[claims.Verdict]:
        """The verdicts on :attr:`every_claim`; none while they are undecided, as claims are tested once."""
        if self.undecided:
            return []
        options = self.better, self.final_seeds, self.uncertainty, self.open_ranges
        return claims.decide(self.every_claim, self.scores, *options)

    @cached_property
    def changed_by_scatter(self) -> dict[claims.Claim, str]:
        """The outcomes of the claims that would have another one if the scatter of tuning runs counted.

        Empty if the rules count it, or if the uncertainty of the chosen rates is not known.
        """
        if self.undecided or not self.is_tuned or TUNING[self.rules].counts_scatter:
            return {}
        error = selection.scatter(self.with_all_seeds.values()) / math.sqrt(len(self.seeds.tune))
        if self.ladder:  # of a slope, between two tuned ends
            error *= math.sqrt(2) / math.log2(self.sizes[-1] / self.sizes[0])
        wider = {norm: math.hypot(own, error) for norm, own in self.uncertainty.items()}
        found = claims.decide(self.every_claim, self.scores, self.better, self.final_seeds, wider)
        known = ((was, now) for was, now in zip(self.verdicts, found, strict=True) if not math.isnan(now.rates))
        return {now.claim: now.outcome for was, now in known if now.outcome != was.outcome}

    @property
    def open_ranges(self) -> set[str]:
        """The norms whose stable range reaches an end of the grid."""
        return {norm for norm, found in self.ranges.items() if found is not None and found.at_least}

    @cached_property
    def remarks(self) -> list[str]:
        """The remarks that concern all verdicts."""
        return remarks.on_campaign(self)

    def all_remarks(self) -> list[str]:
        """Return the remarks on the campaign and, if it is decided, on each of its claims, each once."""
        of_claims = [line for claim in self.every_claim for line in remarks.on_claim(self, claim) if not self.undecided]
        return list(dict.fromkeys([*self.remarks, *of_claims]))


def load(path: Path) -> Campaign:
    """Return the campaign in a ``campaign.json`` with the results of its runs.

    Raises: OSError if it cannot be opened; ValueError, with a message that names the file, if it is damaged.
    """
    return Campaign(path=path, **vars(read(path))).with_results()


def load_all(*roots: Path, problems: list[str]) -> list[Campaign]:
    """Return the campaigns below ``roots``, the decided ones first.

    A line for each file that is damaged is added to ``problems``. If several results have a campaign of one name, the
    names are followed by the folders of results.
    """
    loaded = []
    for path in dict.fromkeys(path for root in roots for path in find(root)):
        try:
            campaign = load(path)
            assert campaign.verdicts is not None  # computed now: a file may be strange in many ways
            loaded.append(campaign)
        except Exception as error:  # the other campaigns are reported
            reason = str(error) if str(path) in str(error) else f"{path}: {error!r}"
            problems.append(f"campaign left out: {reason}")
    count = Counter(campaign.name for campaign in loaded)
    for at, campaign in enumerate(loaded):
        if count[campaign.name] > 1:
            loaded[at] = replace(campaign, name=f"{campaign.name} ({campaign.root})")
        if count[older := campaign.supersedes or ""] > 1:
            loaded[at] = replace(loaded[at], supersedes=f"{older} ({campaign.root})")
    return sorted(loaded, key=lambda campaign: bool(campaign.undecided))


def _values(rows: Sequence[record.Row], split: str, metric: str) -> dict[int, float]:
    """Return a metric by step; NaN where it is not finite."""
    return {row["step"]: number(row[metric]) for row in rows if row["split"] == split and metric in row}
