"""Whether two timing records of one task that were made apart agree."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from readme_blocks.evidence import TASKS, Evidence
from readme_blocks.text import listed, not_recorded, paragraphs, table
from rmsexp.records.frames import comparable, names
from rmsexp.records.frames.comparable import Comparison
from rmsexp.report.tables import formats

APART = timedelta(hours=1)
SERIES = ("rms", "prms", "none")
COMMAND = "python -m rmsexp.timing task=rnnsearch scale=small impl=[eager,fused] threads=1"

Row = dict[Any, Any]


def of_tasks(evidence: Evidence) -> str:
    """The savings of the first and the last record of each clock and code, and whether their intervals overlap."""
    rows = [
        _row(evidence, comparison.rows.iloc[0].to_dict(), *pair)
        for task in TASKS
        for comparison in comparable.comparisons(evidence.timings[evidence.timings["task"] == task])
        for pair in _pairs(comparison)
    ]
    if not rows:
        return not_recorded(COMMAND, "two timings of one task, in several processes, an hour apart")
    agreeing = sum(row["agree"] == "yes" for row in rows)
    summary = (
        f"The first and the last record of a task on one machine, by the same code, started an hour or more apart, in "
        f"several processes each: they agree on {agreeing} of {len(rows)}. Two records agree if their 95 % intervals "
        "overlap for every norm."
    )
    return paragraphs(summary, table(rows))


def _pairs(comparison: Comparison) -> list[tuple[Row, Row]]:
    """Return, for each code and set of norms, the first and the last record of several processes, if made apart."""
    replicated = comparison.records[comparison.records["processes"] > 1]
    timed = replicated["ratios"].map(lambda ratios: " ".join(sorted(ratios)))
    pairs = []
    for _, records in replicated.groupby([replicated["code"], timed]):
        ordered = records.sort_values("started").to_dict("records")
        first, last = ordered[0], ordered[-1]
        if datetime.fromisoformat(last["started"]) - datetime.fromisoformat(first["started"]) >= APART:
            pairs.append((first, last))
    return pairs


def _row(evidence: Evidence, clock: Row, first: Row, last: Row) -> dict[str, str]:
    """Return the row of two records. ``clock``: a row of their comparison."""
    savings, apart = {}, []
    for plain in SERIES:
        series = plain if clock["impl"] == "eager" else f"{plain}+impl={clock['impl']}"
        found = [record["ratios"][series] for record in (first, last) if series in record["ratios"]]
        savings[f"{names.label(plain)} saves"] = ", ".join(map(formats.saved, found)) or formats.NO_VALUE
        if len(found) == 2 and (found[0].low > found[1].high or found[1].low > found[0].high):
            apart.append(names.label(plain))
    return {
        "task": f"`{clock['task']}`, {clock['setting']}, {clock['impl']}",
        "machine": f"{comparable.machine(clock)}, {comparable.threads(clock['threads'])}, torch {clock['torch']}",
        "records": ", ".join(_link(evidence, record) for record in (first, last)),
        **savings,
        "agree": f"no: {listed(apart)}" if apart else "yes",
    }


def _link(evidence: Evidence, record: Row) -> str:
    text = f"{record['started'][:16].replace('T', ' ')}, {record['processes']} processes, {record['time_state']}"
    return evidence.link(text, Path(record["folder"]))
