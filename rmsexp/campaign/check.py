"""Check a campaign that somebody else may have made: does its verdict follow from its records?

It reads files as data and runs no code of the folder. It shows that the folder is consistent, not that it is honest:
whoever invents scores can invent all files.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from rmsexp.campaign import campaign_file, remarks
from rmsexp.campaign.campaign_file import OCTAVE_KEYS, OCTAVE_RULES, TUNING_SEEDS, Job
from rmsexp.campaign.results import Campaign, load
from rmsexp.config import norm_words
from rmsexp.config.identity import identity
from rmsexp.config.schema import flatten
from rmsexp.config.words import parse
from rmsexp.records import record
from rmsexp.records.frames.load import DAMAGE
from rmsexp.system.readers import read_yaml

BASELINE = "rms"  # the norm whose scores are compared with ours
EVALUATIONS = {"tune": "validation", "final": "scored"}  # the config's evaluation of the runs of a stage
LEVEL = 0.99  # of the interval within which a baseline's mean must lie


def check(campaign: Campaign, ours: Path) -> dict[str, list[str]]:
    """Return, by the name of each check, the reasons to refuse a campaign's verdicts; an empty list if it is passed.

    ``ours``: results of our own. If a decided campaign there has the same runs, RMSNorm's scores are compared with its
    scores (key "baseline").
    """
    found = {
        "complete": list(_complete(campaign)),
        "seeds": list(_seeds(campaign)),
        "runs": list(_runs(campaign)),
        "registered": list(_registered(campaign)),
        "same recipe": list(_same_recipe(campaign)),
        "source": list(_sources(campaign)),
        "no copies": list(_copies(campaign)),
    }
    baselines = [own for own in _same_runs(campaign, ours) if not own.undecided and not campaign.undecided]
    if baselines := [own for own in baselines if BASELINE in own.scores and BASELINE in campaign.scores]:
        found["baseline"] = [line for own in baselines for line in _baseline(campaign, own)]
    return found


def _complete(campaign: Campaign) -> Iterator[str]:
    """Yield what is missing or damaged: a verdict needs all runs that the rules ask for, unchanged."""
    yield from campaign.problems
    if campaign.undecided:
        yield f"not decided: {campaign.undecided}"
    elif missing := campaign.tuning.runs:
        yield f"{len(missing)} tuning runs are missing, such as {missing[0].norm} at {missing[0].rate:g}"


def _seeds(campaign: Campaign) -> Iterator[str]:
    """Yield each final run that the rules do not ask for, and each that is missing; nothing before the decision."""
    if campaign.undecided:
        return
    needed = campaign.needed_seeds() or campaign.seeds.min_seeds
    asked, made = set(campaign.final_runs(needed)), {job[1:4] for job in campaign.stages.get("final", [])}
    for what, runs in (("is missing", asked - made), ("is not one that the rules ask for", made - asked)):
        yield from (f"{norm} at {rate:g} with seed {seed} {what}" for norm, rate, seed in sorted(runs))


def _runs(campaign: Campaign) -> Iterator[str]:
    """Yield what differs between the record of a run and its job in the campaign's file, or the campaign's mode."""
    metric, mode = campaign.score.metric, f"mode of {campaign.score.metric}"
    for job in campaign.jobs:
        norm, *options = parse(norm_words(job.norm))
        asked = {"norm.name": norm.value(), campaign.rate: job.rate, "seed": job.seed, mode: campaign.mode}
        asked |= {word.key_or_group: word.value() for word in options}
        asked |= {"evaluation": EVALUATIONS[job.stage]} if job.stage in EVALUATIONS else {}
        try:
            recorded = flatten(read_yaml(campaign.root / job.folder / record.CONFIG))
            target = record.RunFolder(campaign.root / job.folder).read_run()["target"]
            recorded[mode] = target["mode"] if metric == target["metric"] else "min"
        except DAMAGE as error:
            if campaign.results[job].ended:  # a missing run is reported elsewhere
                yield f"{job.folder}: {error!r}"
            continue
        for key, value in asked.items():
            if value != recorded.get(key) and str(value) != str(recorded.get(key)):
                yield f"{job.folder}: {key} is {recorded.get(key)}, not {value}"


def _registered(campaign: Campaign) -> Iterator[str]:
    """Yield how the campaign differs from its registration, and final runs that are earlier or of other code."""
    stored = campaign_file.registration(campaign.path.parent)
    if stored is None or stored.rules is None or campaign.registered is None:
        yield f"{campaign_file.REGISTRATION} is missing"
        return
    if len({stored.digest, campaign.registered.digest, campaign_file.digest(stored.rules)}) > 1:
        yield f"the digests in {campaign_file.REGISTRATION}, in {campaign.path.name} and of the registered rules differ"
    if (stored.date, stored.commit) != (campaign.registered.date, campaign.registered.commit):
        yield f"the dates or commits of registration in {campaign_file.REGISTRATION} and {campaign.path.name} differ"
    final, tune = stored.rules.get("final", {}), stored.rules.get("tune", {})
    final = final | {key: final.get("seeds", {}).get(old) for key, old in OCTAVE_KEYS.items() if key not in final}
    keys = ("question", "runs", "norms", "grid", "ladder", "tuned_by", "score", "claims", "supersedes")
    then = {key: stored.rules.get(key) for key in keys} | {"tuning_runs": sorted(_words(tune.get("runs") or {}))}
    then |= {key: final.get(key) for key in ("tolerance", *OCTAVE_KEYS)}
    then |= {"rules": stored.rules.get("rules") or OCTAVE_RULES, "rate": next(iter(tune.get("over") or ["optim.lr"]))}
    then |= {"seeds.tune": [tune.get("first_seed", 0) + place for place in range(len(TUNING_SEEDS))]}
    now = {key: getattr(campaign, key) for key in (*keys, "tolerance", "rules", "rate")}
    now |= {"seeds.tune": campaign.seeds.tune}
    now |= {key: getattr(campaign.seeds, key) for key in OCTAVE_KEYS}
    now |= {"runs": sorted(_words(campaign.runs)), "tuning_runs": sorted(_words(campaign.tuning_runs))}
    now["claims"] = [vars(claim) for claim in campaign.claims]
    if changed := campaign_file.changed_keys(then, now):
        yield f"{campaign.path.name} differs from the registration in {', '.join(changed)}"
    yield from remarks.on_registration(campaign)
    # a run that an earlier campaign made is of the commit at which that one was registered
    commits = set[str]()
    for folder in campaign.path.parents[1].iterdir():
        with suppress(*DAMAGE):  # of another campaign
            other = campaign_file.registration(folder)
            commits |= set() if other is None else {_commit(str(other.commit))}
    code = {name for job, result in campaign.results.items() if job.stage == "final" for name in result.code}
    if foreign := sorted(name for name in code if _commit(name) not in commits):
        yield f"final runs come from {', '.join(foreign)}, at which no campaign here was registered"


def _commit(name: str) -> str:
    """Return a commit without the mark of changes. Code without git gives one word, as its digests say too little."""
    return name.partition(" ")[0].rstrip("+")


def _same_recipe(campaign: Campaign) -> Iterator[str]:
    """Yield, for a stage, the keys in which its runs differ from each other or from what the campaign states.

    Data may differ between stages, if the campaign states other options for tuning.

    The rate, what the name of a norm states, and options of norms may differ. So may options of the model that the
    campaign does not state: remarks on the verdicts name them.
    """
    for stage, jobs in campaign.stages.items():
        stated = campaign.runs | (campaign.tuning_runs if stage == "tune" else {})
        asked = {word.key_or_group: word.value() for word in parse(_words(stated))}
        runs: list[tuple[set[str], dict[str, Any]]] = [(set(), asked)]
        for job in jobs:
            own = {campaign.rate, *(word.partition("=")[0] for word in job.norm.split("+"))}
            with suppress(*DAMAGE):  # a missing run is reported elsewhere
                recorded = read_yaml(campaign.root / job.folder / record.CONFIG)
                runs.append((own, identity(recorded) | {key: flatten(recorded).get(key) for key in asked}))
        different = []
        for key in sorted({key for _, values in runs for key in values}):
            is_free = key.startswith("norm.") or (key.startswith("model.") and key not in asked)
            compared = runs if key in asked else runs[1:]
            found = {str(values.get(key)) for own, values in compared if key not in own}
            different += [key] * (len(found) > 1 and not is_free)
        if different:
            yield f"runs of the stage {stage} differ in {', '.join(different)}"
    ended = [(job, result.data) for job, result in campaign.results.items() if result.ended]
    data = {(job.stage if campaign.tuning_runs else "", digest) for job, digest in ended}
    if len(data) > len({stage for stage, _ in data}):
        yield "runs differ in their data"


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _sources(campaign: Campaign) -> Iterator[str]:
    """Yield runs whose copies of the user's modules do not have the recorded digest, and norms with several digests."""
    of_norms: dict[str, set[str]] = {}
    for job in campaign.jobs:
        files = record.RunFolder(campaign.root / job.folder)
        try:
            digests = {session.get(record.OWN_CODE, "") for session in files.read_run()["sessions"]}
            found = record.digest_of_sources(files.read_sources())
        except DAMAGE:
            continue
        of_norms.setdefault(job.norm, set()).update(digests)
        if digests != {found}:
            yield f"{job.folder}: {record.OWN_CODE} is not the source that was trained"
    for norm, digests in of_norms.items():
        if len(digests) > 1:
            yield f"{norm} was trained with {len(digests)} different sources"


def _copies(campaign: Campaign) -> Iterator[str]:
    """Yield runs that have the same losses as another run."""
    first: dict[tuple[object, ...], Job] = {}
    for job in sorted(campaign.jobs, key=lambda job: job.folder):
        try:
            rows, _ = record.RunFolder(campaign.root / job.folder).read_metrics()
        except DAMAGE:
            continue
        losses = tuple(repr(row.get("loss")) for row in rows)
        if losses and (other := first.setdefault(losses, job)) != job:
            yield f"{job.folder} has the losses of {other.folder}: a copy, or one norm under two names"


def _same_runs(campaign: Campaign, ours: Path) -> Iterator[Campaign]:
    """Yield our campaigns with the same runs, score, ladder and tolerance; both tuned, or both with the same grid."""
    keys = ("runs", "score", "ladder", "tolerance", "is_tuned", *["grid"] * (not campaign.is_tuned))
    for path in campaign_file.find(ours):
        own = campaign_file.read(path)
        if all(getattr(own, key) == getattr(campaign, key) for key in keys):
            yield load(path)


def _baseline(campaign: Campaign, own: Campaign) -> Iterator[str]:
    """Yield a line if RMSNorm's mean scores in the two campaigns differ by more than seeds and rates explain.

    With probability ``LEVEL`` they differ by at most sqrt(t² s² (1 / n + 1 / m) + z² (R² + R_own²) / 4), where s is the
    standard deviation over our m seeds, n the number of theirs, and R the uncertainty of a rate (0 if not known).
    """
    theirs, scores = ([*each.scores[BASELINE].values()] for each in (campaign, own))
    chance = (1 + LEVEL) / 2
    seeds = float(special.stdtrit(len(scores) - 1, chance) * np.std(scores, ddof=1))
    rates = np.nan_to_num([each.uncertainty.get(BASELINE, 0.0) for each in (own, campaign)])
    of_seeds = seeds * math.sqrt(1 / len(scores) + 1 / len(theirs))
    half = math.hypot(of_seeds, float(special.ndtri(chance)) * math.hypot(*rates) / 2)
    difference = float(np.mean(theirs) - np.mean(scores))
    if not abs(difference) <= half:
        yield f"{BASELINE} scores {difference:+.3g} against {own.path}; seeds and rates explain {half:.3g}"
