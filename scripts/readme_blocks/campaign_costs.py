"""How many runs the committed campaigns planned and did, and how long these took."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from readme_blocks.evidence import Evidence
from readme_blocks.text import counted, paragraphs, processor, table
from readme_blocks.verdicts import NONE
from rmsexp import record
from rmsexp.campaign import cost, plan
from rmsexp.compare.records.campaigns import Campaign, State
from rmsexp.compare.records.time_states import run_state
from rmsexp.compare.tables import formats
from rmsexp.readers import read_json

STAGES = ("pilot", "tune", "final")


def runs_and_seconds(evidence: Evidence) -> str:
    """A table of the campaigns, with their runs and the uncontended seconds of these."""
    if not evidence.campaigns:
        return NONE
    rows = [_row(state) for state in sorted(evidence.campaigns, key=lambda state: state.campaign.name)]
    return paragraphs(
        table(rows),
        "Runs are those of pilot + tuning + final. At least: without an extension of the grid, and with the seeds of "
        "the first look. Seconds are means over the finished runs of a stage, without the time for which their threads "
        "waited for a core, so those of contended runs are estimates.",
    )


def _row(state: State) -> dict[str, str]:
    campaign = state.campaign
    ended = [job for job, result in state.results.items() if result.ended]
    done = Counter(job.stage for job in ended)
    seconds = {job: cost.cost(campaign.root / job.folder).seconds for job in ended}
    row = {"campaign": f"`{campaign.name}`", "planned at least": _sum(_least(campaign))}
    row["done"] = _sum([done[stage] for stage in STAGES])
    for stage, name in (("tune", "tuning"), ("final", "final")):
        of_stage = [seconds[job] for job in ended if job.stage == stage and state.results[job].status == "finished"]
        row[f"a {name} run"] = f"{statistics.fmean(of_stage):.0f} s" if of_stage else formats.NO_VALUE
    row["all runs done"] = f"{sum(seconds.values()) / 3600:.1f} h"
    sessions = [read_json(campaign.root / job.folder / record.RUN)["sessions"] for job in ended]
    row["machine"] = "; ".join(sorted({processor(session, session["threads"]) for run in sessions for session in run}))
    return row | {"time state": counted(map(run_state, sessions))}


def _least(campaign: Campaign) -> list[int]:
    """Return the least number of runs of each stage."""
    pilot = tuple(job for job in campaign.jobs if job.stage == "pilot")
    coming = plan.coming(replace(campaign, jobs=pilot), 0, campaign.seeds.look)
    runs = Counter(job.stage for job in (*pilot, *coming))
    return [runs[stage] for stage in STAGES]


def _sum(numbers: Sequence[int]) -> str:
    return f"{' + '.join(map(str, numbers))} = {sum(numbers)}"
