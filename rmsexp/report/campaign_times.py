"""Seconds per step of the norms of a campaign, from interleaved timing records of its task and scale."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rmsexp.campaign.results import Campaign
from rmsexp.records.frames import comparable, names
from rmsexp.records.frames.comparable import Comparison
from rmsexp.records.frames.load import Records

BASELINE = "ln"  # times of other norms are computed from their ratio to this norm's, if the campaign has it
NOT_OF_A_STEP = ("evaluation=", "optim.lr=", "schedule.")  # options of runs that do not change the time of a step


class Timed(NamedTuple):
    """Seconds per step by norm of a campaign; ``source``: which timing records they are from, and why not exact."""

    seconds: dict[str, float]
    source: str


def timed(campaign: Campaign, records: Records, timings: pd.DataFrame) -> Timed | None:
    """Return the times of the norms of a campaign, or None if no timing record has at least two of them.

    The records are of whole training steps, and of the task and scale of the campaign's final runs. Of several
    comparisons (:mod:`rmsexp.records.frames.comparable`), it is one of a setting with the options of these runs that
    change a step and no others, then one with their implementation, machine and threads, in this order, then the one
    with the highest rank and most of the norms.

    A norm with an option of the model, such as ``rms+model.qk_norm=true``, has no times: the timing records of its
    series are of the model without this option.
    """
    final = [job for job in campaign.jobs if job.stage == "final"]
    series = {job.norm: names.without_impl(job.folder.split("/")[2]) for job in final if "+model." not in job.norm}
    runs = records.runs[records.runs["folder"].isin([str(campaign.root / job.folder) for job in final])]
    wanted = timings["series"].map(names.without_impl).isin(list(series.values()))
    own = timings[wanted & (timings["task"] == campaign.task) & timings["scale"].isin(runs["scale"])]
    baseline = BASELINE if BASELINE in series.values() else next(iter(series.values()), BASELINE)
    choices = comparable.comparisons(own, baseline)
    if not choices:
        return None
    options = set(map(_of_a_step, runs["setting"]))

    def of_runs(choice: Comparison) -> dict[str, bool]:
        """Return whether what changes the time of a step is that of the runs, by its name."""
        first = choice.rows.iloc[0]
        columns = {"implementation": "impl", "machine": "machine", "number of threads": "threads"}
        same = {name: first[column] in set(runs[column]) for name, column in columns.items()}
        return {"setting": _of_a_step(first["setting"]) in options} | same

    def preference(choice: Comparison) -> tuple[object, ...]:
        *quality, started = comparable.rank(choice.pooled)
        return *of_runs(choice).values(), *quality, len(choice.rows), started

    best = max(choices, key=preference)
    ratios = dict(zip(best.rows["series"].map(names.without_impl), best.rows["ratio"], strict=True))
    of_baseline = best.rows["series"] == best.rows["baseline"]
    step = float(best.rows.loc[of_baseline, "median_seconds_per_1k_steps"].iloc[0]) / 1000
    seconds = {norm: step * ratios[name] for norm, name in series.items() if name in ratios}
    first = best.rows.iloc[0]
    remarks = [f"not the {name} of the runs" for name, is_theirs in of_runs(best).items() if not is_theirs]
    is_clear = (best.rows["time_state"] == "clear").all()
    effect = "" if is_clear else ", so only the ratios of these times are reliable"
    remarks += [f"{line}{effect}" for line in comparable.caution(best)]
    return Timed(seconds, "; ".join([comparable.clock(best), first["setting"], str(first["started"])[:10], *remarks]))


def _of_a_step(setting: str) -> frozenset[str]:
    """Return the options of a setting that change the time of a step, and its scale."""
    return frozenset(option for option in setting.split("+") if not option.startswith(NOT_OF_A_STEP))
