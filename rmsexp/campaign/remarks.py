"""What a reader of a campaign's verdicts must know: remarks on its runs and rules, and how much a verdict says.

Differences are in the displayed unit and oriented: positive means better.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from rmsexp import config
from rmsexp.campaign.campaign_file import NO_GIT, moment
from rmsexp.config.identity import ADDED
from rmsexp.records.frames import names
from rmsexp.records.frames.load import options
from rmsexp.rules import claims, measures
from rmsexp.rules.claims import SUPERIORITY, SUPPORTED, Claim, Verdict

if TYPE_CHECKING:
    from rmsexp.campaign.results import Campaign

SHORT = 10  # characters of a commit that are shown
UNCOMMITTED = (
    "its final runs were made with uncommitted changes, so they cannot be repeated from the commit alone; "
    "the verdicts stand, marked *"
)
CLOCKS_DIFFER = 60.0  # seconds by which the clocks of machines may differ
NONE = "none"  # the name of the norm of models without normalisation
# By norm, the option on whose initial value its quality depends, and which no campaign has tuned
UNTUNED = {norm: about["untuned"] for norm, about in config.about_norms().items() if "untuned" in about}


def on_campaign(campaign: Campaign) -> list[str]:
    """Return the remarks that concern all claims of a campaign."""
    final = [result for job, result in campaign.results.items() if job.stage == "final"]
    judged = [result for job, result in campaign.results.items() if result.ended and job.stage != "pilot"]
    code = {name for result in final for name in result.code}
    lines = on_registration(campaign) if code else []
    commits = {name.rstrip("+") for name in code}
    if code and campaign.registered is not None:
        commits.add(str(campaign.registered.commit).rstrip("+"))
    if len(commits) > 1 and not any(name.startswith(NO_GIT) for name in commits):
        # without git, commits cannot be compared: the registered digest is also of the configs
        listed = ", ".join(sorted(commit[:SHORT] for commit in commits))
        lines.append(f"its final runs and its registration come from {len(commits)} commits: {listed}")
    if any(name.endswith("+") for name in code):
        lines.append(UNCOMMITTED)
    if campaign.is_tuned and campaign.tuning_runs:
        stated = ", ".join(f"{key}={value}" for key, value in campaign.tuning_runs.items())
        lines.append(f"its rates were chosen with {stated}")
    if campaign.is_tuned and campaign.score.split == campaign.tuned_by.split:
        lines.append(f"its claims are about the examples by which its rates were chosen ({campaign.score.split})")
    if len(data := {result.data for result in judged}) > 1:
        listed = ", ".join(sorted(digest[:SHORT] for digest in data))
        lines.append(f"its tuning and final runs used different data, with the digests {listed}")
    for arm in campaign.every_arm:
        own = [result.own for job, result in campaign.results.items() if job.norm == arm and result in judged]
        if (versions := len(frozenset[str]().union(*own))) > 1:
            lines.append(f"the runs of {arm} are of {versions} versions of your own code")
    if lost := campaign.problems:
        lines.append(f"the records of {len(lost)} of its runs do not count: {lost[0]}")
    return lines


def on_claim(campaign: Campaign, claim: Claim) -> list[str]:
    """Return the remarks on a claim: options of the model in which its norms differ, rates and ranges at grid edges."""
    norms = claim.a, claim.b
    ours, theirs = (_model_options(campaign, norm) for norm in norms)
    lines = [
        f"{key} is {ours.get(key)} with {claim.a} and {theirs.get(key)} with {claim.b}"
        for key in sorted({*ours, *theirs} if ours and theirs else ())
        if ours.get(key) != theirs.get(key) and not any(f"{key}=" in norm for norm in norms)
    ]
    arms = [arm for norm in norms for arm in campaign.arms[norm] if arm in campaign.choice]
    edges = {arm: campaign.choice[arm].edge for arm in arms}
    lines += [f"the chosen rate of {norm} is the {edge} of the extended grid" for norm, edge in edges.items() if edge]
    if today := campaign.changed_by_scatter.get(claim):
        lines.append(f"{claim.a} and {claim.b}: {today} by today's rules, which count the scatter of tuning runs")
    return lines + [
        f"the stable range of {norm} reaches an end of the grid, so it is at least this wide"
        for norm in norms
        if norm in campaign.open_ranges
    ]


def on_registration(campaign: Campaign) -> list[str]:
    """Return the remarks on whether the rules are those that were registered before the final runs began."""
    if campaign.registered is None:
        return ["not registered: the campaign's file has no digest of its rules"]
    lines, written = [], moment(campaign.registered.date) or 0.0
    final = (result for job, result in campaign.results.items() if job.stage == "final")
    began = [result.began for result in final if result.began is not None]
    if early := sum(each < written - CLOCKS_DIFFER for each in began):
        lines.append(f"{early} of its {len(began)} final runs began before its rules were registered")
    if (changed := campaign.registered.changed) is not None:
        lines.append(f"the campaign's file has changed since it was registered: {changed}")
    return lines


def _model_options(campaign: Campaign, norm: str) -> dict[str, Any]:
    """Return the ``model.…`` options of a norm's last ended run that can be read; {} without such a run."""
    for job, result in reversed([*campaign.results.items()]):
        if job.norm in campaign.arms[norm] and result.ended and (values := options(campaign.root / job.folder)):
            of_model = {key: value for key, value in values.items() if key.startswith("model.")}
            # older runs lack keys that were added later, and have their default
            return {key: value for key, value in of_model.items() if value != ADDED.get(key)}
    return {}


def strength(campaign: Campaign, verdict: Verdict) -> dict[str, Any]:
    """Return what stands beside a verdict of a decided campaign.

    ``gain_over_none``: by how much b is better than ``NONE``; NaN if not known, or not shown by a two-sided 95 %
    interval. ``exceeds_margin``: for a supported claim of superiority, whether the interval lies above the smallest
    margin of the campaign, too; None without a margin. ``blind``: whether the model without normalisation equals b
    within the same margin, too. ``improving``: the norms whose runs still gain more than half of the margin in the last
    fifth of their steps, with the mean gain in margins. ``untuned``: options of the norms that matter and were not
    tuned.
    """
    claim, norms = verdict.claim, (verdict.claim.a, verdict.claim.b)
    margins = [other.margin for other in campaign.claims if other.margin is not None]
    margin = claim.margin if claim.margin is not None else min(margins, default=math.nan)
    improving = []
    for norm in norms if campaign.measure == measures.SCORE else ():
        gains = [result.gain for _, result in campaign.of_stage("final", norm) if result.status == "finished"]
        gains = [gain for gain in gains if not math.isnan(gain)]
        if gains and (gain := statistics.fmean(gains)) > margin / 2:
            improving.append(f"{names.label(norm)} {gain / margin:.1f}")
    gained, blind = math.nan, False
    seeds = sorted({*campaign.scores.get(NONE, {})} & {*campaign.scores.get(claim.b, {})})
    if claim.b != NONE and seeds:
        unnormalised = Claim("no norm", SUPERIORITY, NONE, claim.b)
        (none,) = claims.decide(
            [unnormalised], campaign.scores, campaign.better, seeds, campaign.uncertainty, campaign.open_ranges
        )
        gained = -none.difference if none.against_zero == "worse" else math.nan
        blind = claim.margin is not None and claim.a != NONE and -margin < none.low and none.high < margin
    parts = {norm: norm.partition("+") for norm in norms}
    beyond = claim.test == SUPERIORITY and verdict.outcome == SUPPORTED and verdict.low > margin
    untuned = [
        f"{UNTUNED[name]} of {norm}"
        for norm, (name, _, own) in parts.items()
        if name in UNTUNED and f"{UNTUNED[name]}=" not in own
    ]
    return {
        "gain_over_none": gained,
        "exceeds_margin": None if math.isnan(margin) else beyond,
        "blind": blind,
        "improving": ", ".join(improving),
        "untuned": ", ".join(untuned),
    }
