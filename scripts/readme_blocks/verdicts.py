"""The verdicts of campaigns, and which campaigns are not decided yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, paragraphs, table
from rmsexp.compare.tables import formats, verdicts

NONE = "No campaign is among the committed records yet."


def readme(evidence: Evidence) -> str:
    """A table of the verdicts, claim by task, and a line for the campaigns that are not decided."""
    decided = [state for state in evidence.campaigns if not state.undecided]
    running = [f"`{state.campaign.name}` ({state.undecided})" for state in evidence.campaigns if state.undecided]
    if not evidence.campaigns:
        return NONE
    open_ = f"Not decided yet: {listed(running)}." if running else ""
    if not decided:
        return open_
    numbers = verdicts.table(decided)
    remarks = [f"\\* `{state.campaign.name}`: {'; '.join(state.remarks)}." for state in decided if state.remarks]
    return paragraphs(_matrix(numbers), " ".join([_explanation(numbers), *remarks, *([open_] if open_ else [])]))


def _matrix(numbers: pd.DataFrame) -> str:
    rows = []
    for claim in dict.fromkeys(numbers["claim"]):
        row = {"claim": str(claim)}
        for task in dict.fromkeys(numbers["task"]):
            same = numbers[(numbers["claim"] == claim) & (numbers["task"] == task)]
            row[f"`{task}`"] = "; ".join(_cell(entry) for entry in same.to_dict("records")) or formats.NO_VALUE
        rows.append(row)
    return table(rows)


def _cell(row: Mapping[Any, Any]) -> str:
    """Return an outcome with its difference and interval, such as "supported, +0.11 (-0.03 to +0.25)"."""
    outcome = f"{row['outcome']}{'*' if row['remarks'] else ''}"
    if math.isnan(row["difference"]):
        return outcome
    interval = "" if math.isnan(row["low"]) else f" ({row['low']:+.2f} to {row['high']:+.2f})"
    return f"{outcome}, {row['difference']:+.2f}{interval}"


def _explanation(numbers: pd.DataFrame) -> str:
    """Return what the numbers of the table are."""
    with_margin = numbers.dropna(subset="margin").drop_duplicates(["task", "margin"])
    margins = [f"{row['margin']:g} {row['unit']} on `{row['task']}`" for row in with_margin.to_dict("records")]
    text = "Differences of mean scores, with the intervals that decide; positive if the norm named first is better."
    return f"{text} Margins: {listed(margins)}." if margins else text
