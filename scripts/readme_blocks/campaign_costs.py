"""How many runs the committed campaigns planned and did, how long these took, and what ``--plan`` estimated."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from readme_blocks.checks import commit_of, not_recorded
from readme_blocks.evidence import Evidence
from readme_blocks.text import counted, paragraphs, processor, table
from readme_blocks.verdicts import NONE
from rmsexp.campaign import progress
from rmsexp.campaign.campaign_file import Job, Stage
from rmsexp.campaign.results import Campaign
from rmsexp.records import record
from rmsexp.records.frames.time_states import run_state, time_state
from rmsexp.report.tables import formats

STAGES = get_args(Stage)
MOST_EVALUATION = 0.15  # of the time of an RNNSearch run with twenty evaluations; the aim
ACCURACY = "git checkout before-house; python scripts/plan_accuracy.py quality_cifar10 quality_rnnsearch"


@dataclass(frozen=True)
class Spent:
    """What a run took: its uncontended ``seconds``, the share of ``evaluation`` in them, and where it was done."""

    job: Job
    finished: bool
    seconds: float
    evaluation: float
    machine: str
    time_state: str


def runs_and_seconds(evidence: Evidence) -> str:
    """Two tables of the campaigns: their numbers of runs, and the uncontended seconds of these on each machine."""
    if not evidence.campaigns:
        return NONE
    answers = sorted(evidence.campaigns, key=lambda answer: answer.name)
    spent = {answer.name: _spent(answer) for answer in answers}
    return paragraphs(
        table([_numbers(answer, spent[answer.name]) for answer in answers]),
        "Runs are those of pilot + tuning + final. Planned at least: without an extension of the grid, and with the "
        "seeds of the first look.",
        table([row for name, runs in spent.items() for row in _by_machine(name, runs)]),
        "Seconds are means over the finished runs of a stage, without the time for which their threads waited for a "
        "core, so those of contended runs are estimates. The share of evaluations is the largest mean of a norm. "
        + _long_evaluations([run for runs in spent.values() for run in runs]),
    )


def _long_evaluations(runs: Sequence[Spent]) -> str:
    """Return a sentence on the runs of RNNSearch that spent more than ``MOST_EVALUATION`` on evaluations."""
    ended = [run for run in runs if run.finished and run.job.folder.startswith("rnnsearch/")]
    longer = [
        f"{100 * run.evaluation:.0f} % ({run.job.stage}, {run.time_state})"
        for run in ended
        if run.evaluation > MOST_EVALUATION
    ]
    limit = f"{100 * MOST_EVALUATION:.0f} %"
    shares = f": {', '.join(longer)}" if longer else ""
    return f"Of {len(ended)} runs of `rnnsearch`, {len(longer)} spent more than {limit} on evaluations{shares}."


def accuracy(evidence: Evidence) -> str:
    """What ``--plan`` estimates for the runs of campaigns, beside what they took: the newest record of each command on
    each kind of machine, the newest first.
    """
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for content in evidence.all_checks("plan_accuracy").values():
        newest.setdefault((content["command"], content["session"]["machine"]["id"]), content)
    return paragraphs(*map(_accuracy, newest.values())) if newest else not_recorded(ACCURACY)


def _accuracy(content: Mapping[str, Any]) -> str:
    rows = content["results"]["rows"]
    stages = dict.fromkeys((row["campaign"], row["stage"]) for row in rows)
    session = content["session"]
    day = session["started"][:10]
    return paragraphs(
        table([_stage(*stage, [row for row in rows if (row["campaign"], row["stage"]) == stage]) for stage in stages]),
        f"Runs were done on machines of the kind {session['device']} ({session['machine']['id']}). Trials were done on "
        f"such a machine on {day} by commit {commit_of(content)}, time state {time_state(session)}.",
    )


def _stage(campaign: str, stage: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    planned, took = (sum(row["runs"] * row[key] for row in rows) for key in ("planned", "took"))
    differences = [100 * (row["took"] / row["planned"] - 1) for row in rows]
    runs = sum(row["runs"] for row in rows)
    return {
        "campaign": f"`{campaign}`",
        "stage": stage,
        "runs": str(runs),
        "planned, per run": f"{planned / runs:.0f} s",
        "took, per run": f"{took / runs:.0f} s",
        "took more than planned": f"{100 * (took / planned - 1):+.0f} %",
        "of each norm": f"{min(differences):+z.0f} to {max(differences):+z.0f} %",
    }


def _spent(answer: Campaign) -> list[Spent]:
    found = []
    for job, result in answer.results.items():
        if not result.ended:
            continue
        files = record.RunFolder(answer.root / job.folder)
        sessions = files.read_run()["sessions"]
        rows = files.read_metrics()[0] if files.metrics_path.exists() else []
        clock = rows[-1]["seconds"] if rows else {}
        found.append(
            Spent(
                job,
                result.status == "finished",
                progress.cost(files.path),
                clock["eval"] / sum(clock.values()) if clock else 0.0,
                "; ".join(sorted({processor(session, session["threads"]) for session in sessions})),
                run_state(sessions),
            )
        )
    return found


def _numbers(campaign: Campaign, spent: Sequence[Spent]) -> dict[str, str]:
    done = Counter(run.job.stage for run in spent)
    return {
        "campaign": f"`{campaign.name}`",
        "runs planned at least": _sum(_least(campaign)),
        "runs done": _sum([done[stage] for stage in STAGES]),
        "hours of all": f"{sum(run.seconds for run in spent) / 3600:.1f}",
    }


def _by_machine(campaign: str, spent: Sequence[Spent]) -> Iterable[dict[str, str]]:
    """Yield the row of a campaign for each machine that finished tuning or final runs."""
    judged = [run for run in spent if run.finished and run.job.stage != "pilot"]
    for place in sorted({run.machine for run in judged}):
        here = [run for run in judged if run.machine == place]
        row = {"campaign": f"`{campaign}`", "machine": place}
        for stage, name in (("tune", "tuning"), ("final", "final")):
            runs = [run for run in here if run.job.stage == stage]
            row[f"{name} runs"] = str(len(runs))
            row[f"a {name} run"] = (
                f"{statistics.fmean(run.seconds for run in runs):.0f} s" if runs else formats.NO_VALUE
            )
            row[f"evaluations of a {name} run"] = f"{100 * _share(runs):.0f} %" if runs else formats.NO_VALUE
        yield row | {"time state": counted(run.time_state for run in here)}


def _share(runs: Sequence[Spent]) -> float:
    """Return the share of evaluations, of the norm that has the largest mean."""
    shares: dict[str, list[float]] = {}
    for run in runs:
        shares.setdefault(run.job.norm, []).append(run.evaluation)
    return max(map(statistics.fmean, shares.values()))


def _least(campaign: Campaign) -> list[int]:
    """Return the least number of runs of each stage."""
    pilot = tuple(job for job in campaign.jobs if job.stage == "pilot")
    coming = replace(campaign, jobs=pilot).coming()
    runs = Counter(job.stage for job in (*pilot, *coming))
    return [runs[stage] for stage in STAGES]


def _sum(numbers: Sequence[int]) -> str:
    return f"{' + '.join(map(str, numbers))} = {sum(numbers)}"
