"""What a reader of a campaign's verdicts must know: changed files, several commits, data or recipes, other models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import NO_GIT
from rmsexp.campaign.results import Campaign, Results, moment, of_stage
from rmsexp.config.identity import identity
from rmsexp.config.schema import flatten
from rmsexp.records import record
from rmsexp.records.frames.load import DAMAGE
from rmsexp.rules import claims
from rmsexp.system.readers import read_yaml

SHORT = 10  # characters of a commit that are shown
UNCOMMITTED = (
    "its final runs were made with uncommitted changes, so they cannot be repeated from the commit alone; "
    "the verdicts stand, marked *"
)
CLOCKS_DIFFER = 60.0  # seconds by which the clocks of machines may differ


def remarks(campaign: Campaign, results: Results) -> list[str]:
    """Return what a reader of the verdicts must know.

    For example that the file has changed, or that the runs are of several commits, data or recipes.
    """
    code = {name for job in campaign.jobs if job.stage == "final" for name in results[job].code}
    commits = {name.rstrip("+") for name in code}
    lines = []
    if campaign.registered is None and code:
        lines.append("not registered: the campaign's file has no digest of its rules")
    if campaign.registered is not None:
        began = [result.began for job, result in results.items() if job.stage == "final" and result.began is not None]
        written = moment(campaign.registered.date)
        early = 0 if written is None else sum(each < written - CLOCKS_DIFFER for each in began)
        if early:  # the results of these runs may have shaped the rules
            lines.append(f"{early} of its {len(began)} final runs began before its rules were registered")
        if campaign.registered.changed is not None:
            lines.append(f"the campaign's file has changed since it was registered: {campaign.registered.changed}")
    lines += [*_unlike_registration(campaign), *_unlike_rules(campaign, results)]
    if len(commits) > 1:
        listed = ", ".join(sorted(commit[:SHORT] for commit in commits))
        lines.append(f"its final runs come from {len(commits)} commits: {listed}")
    elif campaign.registered is not None and commits:
        registered = str(campaign.registered.commit).rstrip("+")
        # where there is no git, commits cannot be compared: the registered digest is also of the configs
        without_git = any(name.startswith(NO_GIT) for name in (registered, *commits))
        if registered not in commits and not without_git:
            own = f"its final runs come from commit {min(commits)[:SHORT]}"
            lines.append(f"{own}, but {registered[:SHORT]} is registered")
    if any(name.endswith("+") for name in code):
        lines.append(UNCOMMITTED)
    for norm in campaign.norms:
        judged = [result for stage in ("tune", "final") for _, result in of_stage(results, stage, norm)]
        if len({own for result in judged for own in result.own}) > 1:
            lines.append(f"the Python module of {norm} changed between its runs")
    if campaign.tuning_runs:
        stated = ", ".join(f"{key}={value}" for key, value in campaign.tuning_runs.items())
        lines.append(f"its rates were chosen with {stated}")
    if campaign.score.split == campaign.tuned_by.split:
        lines.append(f"its claims are about the examples by which its rates were chosen ({campaign.score.split})")
    data = {result.data for job, result in results.items() if result.ended and job.stage != "pilot"}
    if len(data) > 1:
        listed = ", ".join(sorted(digest[:SHORT] for digest in data))
        lines.append(f"its tuning and final runs used different data, with the digests {listed}")
    return [*lines, *_mixed(campaign, results)]


def _unlike_registration(campaign: Campaign) -> list[str]:
    """Return in what the campaign's file differs from the registration beside it, unless it says so itself."""
    if campaign.registered is None:
        return []
    try:
        stored = campaign_file.registration(campaign.path.parent)
    except (OSError, ValueError) as error:
        return [str(error)]
    if stored is None:
        return [f"its {campaign_file.REGISTRATION} is missing, so its rules may have changed since"]
    rules, final = stored.rules, stored.rules.get("final", {})
    numbers = final.get("seeds", final)  # the first rules have them one level deeper
    then = {key: rules.get(key) for key in ("norms", "grid", "tuned_by", "score", "question", "runs", "ladder")}
    then |= {"claims": [_stated(claim) for claim in rules.get("claims", [])]}
    then |= {"final": (*map(numbers.get, campaign_file.SEED_KEYS[campaign.rules]), final.get("tolerance"))}
    then |= {"digest": campaign_file.digest(rules), "commit": stored.commit, "date": stored.date}
    now: dict[str, Any] = {key: list(getattr(campaign, key)) for key in ("norms", "grid", "tuned_by", "score")}
    now |= {"question": campaign.question, "runs": sorted(f"{key}={value}" for key, value in campaign.runs.items())}
    now |= {"ladder": {key: list(values) for key, values in campaign.ladder.items()} or None}
    now |= {"claims": [_stated(asdict(claim)) for claim in campaign.claims]}
    now |= {"final": (campaign.seeds.min_seeds, campaign.seeds.max_seeds, campaign.tolerance)}
    now |= {key: getattr(campaign.registered, key) for key in ("digest", "commit", "date")}
    said = {re.split(r"[ .\[]", part)[0] for part in (campaign.registered.changed or "").split("; ")}
    if changed := [key for key in now if key not in said and then[key] != now[key]]:
        files = f"{campaign_file.FILE} and {campaign_file.REGISTRATION}"
        return [f"{files} differ in {', '.join(changed)}, so one was changed by hand"]
    return []


def _stated(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a claim that have a value: those of later versions are missing in older registrations."""
    return {key: value for key, value in claim.items() if value is not None}


def _unlike_rules(campaign: Campaign, results: Results) -> list[str]:
    """Return in what a decided campaign's file is not what the rules make of its records."""
    if campaign.undecided(results):
        return []
    lines = []
    needed, count = campaign.needed_seeds(results), campaign.seeds.needed or campaign.seeds.min_seeds
    if needed is not None and needed != count:
        lines.append(f"{campaign_file.FILE} has {count} as the number of seeds, and by its records it is {needed}")
    asked = {*campaign.final_runs(results, count)}
    listed = {(job.norm, job.rate, job.seed) for job in campaign.jobs if job.stage == "final"}
    if asked != listed:
        norm, rate, seed = min(asked ^ listed)
        lines.append(
            f"{campaign_file.FILE} does not list the final runs that its tuning runs and the rules ask for (such "
            f"as {norm} at {rate:g} with seed {seed}), so it was changed by hand or tuning runs were lost"
        )
    return lines


def differing_models(campaign: Campaign, claim: claims.Claim, results: Results) -> list[str]:
    """Return the options of the model that differ between the norms of a claim and are not in their names."""
    ours, theirs = _model_options(campaign, claim.a, results), _model_options(campaign, claim.b, results)
    if ours is None or theirs is None:
        return []
    keys = [key for key in sorted({*ours, *theirs}) if not any(f"{key}=" in norm for norm in (claim.a, claim.b))]
    return [
        f"{key} is {ours.get(key)} with {claim.a} and {theirs.get(key)} with {claim.b}"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def _model_options(campaign: Campaign, norm: str, results: Results) -> dict[str, Any] | None:
    """Return the options of the model in the first tuning run of a norm that can be read; None without one."""
    for job, result in of_stage(results, "tune", norm):
        if result.ended:
            with suppress(*DAMAGE):  # which is reported when the run is loaded
                values = flatten(read_yaml(campaign.root / job.folder / record.CONFIG))
                return {key: value for key, value in values.items() if key.startswith("model.")}
    return None


def _mixed(campaign: Campaign, results: Results) -> list[str]:
    """Return which values differ among the configs of the tuning and final runs, except rates and evaluations.

    The keys of a ladder and those that tuning runs have of their own may differ, too.
    Norms may have options of their own and of the model, so these are compared among the runs of a norm only.
    """
    recipes: dict[str, list[dict[str, Any]]] = {arm: [] for arm in campaign.every_arm}
    left_out = {campaign.rate, "evaluation", *campaign.ladder, *campaign.tuning_runs}
    for job in (job for job, result in results.items() if result.ended and job.stage != "pilot"):
        with suppress(*DAMAGE):  # which is reported when the run is loaded
            values = identity(read_yaml(campaign.root / job.folder / record.CONFIG))
            recipes[job.norm].append({key: values[key] for key in values.keys() - left_out})
    every = [recipe for same in recipes.values() for recipe in same]
    groups = [("all norms", every, False), *((norm, same, True) for norm, same in recipes.items())]
    return [line for name, same, own in groups if (line := _differing(name, same, own))]


def _differing(name: str, recipes: Sequence[dict[str, Any]], own: bool) -> str:
    """Return the keys whose values differ among the recipes, with the values; "" if there are none.

    ``own``: look at the options of norms and models; otherwise at all others.
    """
    keys = sorted({key for recipe in recipes for key in recipe if key.startswith(("norm.", "model.")) == own})
    parts = []
    for key in keys:
        values: list[Any] = []
        for recipe in recipes:
            values += [] if recipe.get(key) in values else [recipe.get(key)]
        if len(values) > 1:
            parts.append(f"{key} is {' or '.join(map(str, values))}")
    return f"the tuning and final runs of {name} have several recipes: {'; '.join(parts)}" if parts else ""
