"""Check a campaign that somebody else may have made: does its verdict follow from its records?

It reads files as data and runs no code of the folder. It shows that the folder is consistent, not that it is honest:
whoever invents scores can invent all files.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from rmsexp import config
from rmsexp.campaign import campaign_file, remarks
from rmsexp.campaign.asked import overrides
from rmsexp.campaign.campaign_file import OCTAVE_KEYS, OCTAVE_RULES, TUNING, TUNING_SEEDS, moment
from rmsexp.campaign.results import ByRate, Campaign, load
from rmsexp.config.identity import identity, whole
from rmsexp.config.schema import flatten
from rmsexp.config.words import parse
from rmsexp.records import record
from rmsexp.records.frames.load import DAMAGE
from rmsexp.rules import selection
from rmsexp.system.readers import read_json, read_yaml

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
    """Yield each run that is missing, or that the rules do not ask for, or twice; nothing before the decision."""
    if campaign.undecided or campaign.tuning.runs:
        return
    needed = campaign.needed_seeds() or campaign.seeds.min_seeds
    asked = Counter([*campaign.final_runs(needed), *_tuning_runs(campaign)])  # tuning has seeds of its own
    made = Counter(job[1:4] for job in campaign.jobs if job.stage != "pilot")
    for what, runs in (("is missing", asked - made), ("is more than the rules ask for", made - asked)):
        yield from (f"{norm} at {rate:g} with seed {seed} {what}" for norm, rate, seed in sorted(runs))


def _tuning_runs(campaign: Campaign) -> list[tuple[str, float, int]]:
    """Return the tuning runs that the rules ask for, round by round, given the scores of those before."""
    found, known = list[tuple[str, float, int]](), campaign.validation
    scores: ByRate = {norm: {} for norm in known}
    rules = campaign.mode, campaign.seeds.tune, TUNING[campaign.rules]
    while campaign.is_tuned and (runs := selection.tune(campaign.grid, scores, *rules).runs):
        for norm, rate, seed in runs:
            scores[norm].setdefault(rate, {})[seed] = known[norm][rate][seed]
        found += runs
    return found


def _runs(campaign: Campaign) -> Iterator[str]:
    """Yield what differs between the record of a run and its job in the campaign's file, or the campaign's mode."""
    metric, mode = campaign.score.metric, f"mode of {campaign.score.metric}"
    for job in campaign.jobs:
        norm, *options = parse(config.norm_words(job.norm))
        name, of_folder = norm.value(), "the norm in the folder's name"
        asked = {"norm.name": name, of_folder: name, campaign.rate: job.rate, "seed": job.seed, mode: campaign.mode}
        if name in config.options("norm"):
            asked["norm._target_"] = config.compose([f"norm={name}"]).norm["_target_"]
        asked |= {word.key_or_group: word.value() for word in options}
        asked |= {"evaluation": EVALUATIONS[job.stage]} if job.stage in EVALUATIONS else {}
        try:
            recorded = flatten(read_yaml(campaign.root / job.folder / record.CONFIG))
            target = record.RunFolder(campaign.root / job.folder).read_run()["target"]
            recorded[mode] = target["mode"] if metric == target["metric"] else "min"
            recorded[of_folder] = job.folder.split("/")[2].partition("+")[0]
            status = read_json(campaign.root / job.folder / record.STATUS)
        except DAMAGE as error:
            if campaign.results[job].ended:  # a missing run is reported elsewhere
                yield f"{job.folder}: {error!r}"
            continue
        if campaign.results[job].ended and not (status.get("digest") and status.get("metrics")):
            yield f"{job.folder}: {record.STATUS} has no digest of itself or of the metrics, so changes would not show"
        for key, value in asked.items():
            if value != recorded.get(key) and str(value) != str(recorded.get(key)):
                yield f"{job.folder}: {key} is {recorded.get(key)}, not {value}"


def _registered(campaign: Campaign) -> Iterator[str]:
    """Yield how the campaign differs from its registration, final runs that are earlier, and runs of other code."""
    stored = campaign_file.registration(campaign.path.parent)
    if stored is None or stored.rules is None or campaign.registered is None:
        yield f"{campaign_file.REGISTRATION} is missing"
        return
    if len({stored.digest, campaign.registered.digest, record.digest_of_values(stored.rules)}) > 1:
        yield f"the digests in {campaign_file.REGISTRATION}, in {campaign.path.name} and of the registered rules differ"
    if (stored.date, stored.commit) != (campaign.registered.date, campaign.registered.commit):
        yield f"the dates or commits of registration in {campaign_file.REGISTRATION} and {campaign.path.name} differ"
    final, tune = stored.rules.get("final", {}), stored.rules.get("tune", {})
    final = final | {key: final.get("seeds", {}).get(old) for key, old in OCTAVE_KEYS.items() if key not in final}
    keys = ("question", "runs", "norms", "grid", "ladder", "tuned_by", "score", "claims", "supersedes")
    then = {key: stored.rules.get(key) for key in keys} | {"tuning_runs": sorted(overrides(tune.get("runs") or {}))}
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
    written = moment(stored.date) or 0.0
    began = {job: result.began or 0.0 for job, result in campaign.results.items() if result.ended}
    if not all([written, *began.values()]):
        yield "the date of the registration, or the start of a run, is missing or cannot be read"
    # a run that an earlier campaign made is of the commit at which that one was registered; under the first rules,
    # tuning came before the registration
    made = set[tuple[str, str]]()
    for path in campaign.path.parents[1].glob(f"*/{campaign_file.FILE}"):
        with suppress(*DAMAGE):  # of another campaign
            other = campaign_file.read(path)
            made |= {(job.folder, _commit(str(other.registered.commit))) for job in other.jobs if other.registered}
    foreign = {
        name
        for job, start in began.items()
        for name in campaign.results[job].code
        if (job.stage == "final" or start > written) and (job.folder, _commit(name)) not in made
    }
    if foreign:
        yield f"runs come from {', '.join(sorted(foreign))}; no campaign here that lists them was registered there"


def _commit(name: str) -> str:
    """Return a commit without the mark of changes. Code without git gives one word, as its digests say too little."""
    return name.partition(" ")[0].rstrip("+")


def _same_recipe(campaign: Campaign) -> Iterator[str]:
    """Yield, for a stage, the keys in which its runs differ from each other or from what the campaign states.

    Data may differ between stages, if the campaign states other options for tuning.

    The rate, what the name of a norm states, and options of norms may differ. So may options of the model that the
    campaign does not state: remarks on the verdicts name them. But runs of one norm must have the same.
    """
    of_norms: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for stage, jobs in campaign.stages.items():
        stated = campaign.runs | (campaign.tuning_runs if stage == "tune" else {})
        asked = {word.key_or_group: word.value() for word in parse(_words(stated))}
        runs: list[tuple[set[str], dict[str, Any]]] = [(set(), asked)]
        for job in jobs:
            own = {campaign.rate, *(word.partition("=")[0] for word in config.words.parts(job.norm))}
            with suppress(*DAMAGE):  # a missing run is reported elsewhere
                recorded = read_yaml(campaign.root / job.folder / record.CONFIG)
                values = identity(recorded)
                of_norms.setdefault((job.norm, stage if campaign.tuning_runs else ""), []).append(values)
                runs.append((own, values | {key: flatten(recorded).get(key) for key in asked}))
        different = []
        for key in sorted({key for _, values in runs for key in values}):
            is_free = key.startswith("norm.") or (key.startswith("model.") and key not in asked)
            compared = runs if key in asked else runs[1:]
            found = {str(whole(values.get(key))) for own, values in compared if key not in own}
            different += [key] * (len(found) > 1 and not is_free)
        if different:
            yield f"runs of the stage {stage} differ in {', '.join(different)}"
    for (norm, _), same in of_norms.items():
        keys = {key for values in same for key in values} - {campaign.rate, "evaluation"}
        if different := [key for key in sorted(keys) if len({str(values.get(key)) for values in same}) > 1]:
            yield f"runs of {norm} differ in {', '.join(different)}"
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
    """Yield runs whose losses, or the last of them, are those of another run, or the last of those."""
    seen: list[tuple[str, list[str]]] = []
    for folder in sorted({job.folder for job in campaign.jobs}):
        try:
            rows, _ = record.RunFolder(campaign.root / folder).read_metrics()
        except DAMAGE:
            continue
        losses = [repr(row["loss"]) for row in rows if row.get("loss") is not None]
        for other, theirs in seen:
            shared = min(len(losses), len(theirs))
            if shared and losses[-shared:] == theirs[-shared:]:
                yield f"{folder} has the losses of {other}: a copy, or one norm under two names"
        seen.append((folder, losses))


def _same_runs(campaign: Campaign, ours: Path) -> Iterator[Campaign]:
    """Yield our campaigns with the same runs, score, ladder and tolerance; both tuned, or both with the same grid."""
    keys = ("runs", "score", "ladder", "tolerance", "is_tuned", *["grid"] * (not campaign.is_tuned))
    for path in campaign_file.find(ours):
        with suppress(*DAMAGE):  # ours says nothing about theirs
            own = campaign_file.read(path)
            if all(getattr(own, key) == getattr(campaign, key) for key in keys):
                yield load(path)


def _baseline(campaign: Campaign, own: Campaign) -> Iterator[str]:
    """Yield a line if RMSNorm's mean scores in the two campaigns differ by more than seeds and rates explain.

    With probability ``LEVEL`` they differ by at most sqrt(t² s² (1 / n + 1 / m) + z² (R² + R_own²) / 4), where s is the
    standard deviation over our m seeds, n the number of theirs, and R the uncertainty of a rate (0 if not known). Runs
    that diverged are left out.
    """
    theirs, scores = ([x for x in each.scores[BASELINE].values() if not math.isnan(x)] for each in (campaign, own))
    if not theirs or len(scores) < 2:  # of runs that all diverged
        return
    chance = (1 + LEVEL) / 2
    seeds = float(special.stdtrit(len(scores) - 1, chance) * np.std(scores, ddof=1))
    rates = np.nan_to_num([each.uncertainty.get(BASELINE, 0.0) for each in (own, campaign)])
    of_seeds = seeds * math.sqrt(1 / len(scores) + 1 / len(theirs))
    half = math.hypot(of_seeds, float(special.ndtri(chance)) * math.hypot(*rates) / 2)
    difference = float(np.mean(theirs) - np.mean(scores))
    if not abs(difference) <= half:
        yield f"{BASELINE} scores {difference:+.3g} against {own.path}; seeds and rates explain {half:.3g}"
