"""Seconds per step of the norms of a campaign, from an interleaved timing record of its task and scale."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rmsexp.compare.records.campaigns import State
from rmsexp.compare.records.load import Records

FEWEST = 2  # norms that a timing record must share with the campaign


class Timed(NamedTuple):
    """Seconds per step by norm of a campaign, and the record that they come from: machine, implementation, setting."""

    seconds: dict[str, float]
    source: str


def timed(state: State, records: Records, timings: pd.DataFrame) -> Timed | None:
    """Return the times of the norms of a campaign, or None if no timing record has at least two of them.

    The record is of whole training steps, and of the task and scale of the campaign's final runs. Of several, it is one
    with the implementation of these runs, with the most of the norms, and the newest. Its times are those of one
    implementation.
    """
    series = {job.norm: _plain(job.folder.split("/")[2]) for job in state.campaign.jobs if job.stage == "final"}
    folders = [str(state.campaign.root / job.folder) for job in state.campaign.jobs if job.stage == "final"]
    runs = records.runs[records.runs["folder"].isin(folders)]
    candidates = timings[
        (timings["kind"] == "steps")
        & (timings["task"] == state.campaign.task)
        & timings["scale"].isin(runs["scale"])
        & timings["series"].map(_plain).isin(list(series.values()))
    ]
    choices = [rows for _, rows in candidates.groupby(["folder", "impl"], sort=True) if len(rows) >= FEWEST]
    if not choices:
        return None
    impls = set(runs["impl"])
    rows = max(choices, key=lambda rows: (rows["impl"].iloc[0] in impls, len(rows), str(rows["started"].iloc[0])))
    by_series = dict(zip(rows["series"].map(_plain), rows["median_seconds_per_1k_steps"] / 1000, strict=True))
    seconds = {norm: by_series[name] for norm, name in series.items() if name in by_series}
    first = rows.iloc[0]
    threads = f"threads {first['threads']:.0f}" if pd.notna(first["threads"]) else "threads unknown"
    parts = (first["device"], threads, f"impl {first['impl']}", first["setting"], str(first["started"])[:10])
    return Timed(seconds, "; ".join(map(str, parts)))


def _plain(series: str) -> str:
    """Return a series without its implementation."""
    return "+".join(part for part in series.split("+") if not part.startswith("impl="))
