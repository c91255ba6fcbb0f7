"""Time per step, and the time saved relative to LN, from a timing record (paired) or else from separate runs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.records import names, speed, timing_records
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

COLUMNS = ["series", "impl", "seconds_per_1k_steps", "q25", "q75", "saving", "low", "high", "kind", "note"]


def table(records: Records, timings: pd.DataFrame) -> pd.DataFrame:
    """Return one row per series that was trained or timed, with columns ``COLUMNS``.

    Savings are fractions of the time per step with LN. ``kind`` is "reference" for LN itself; "paired" for a saving
    from a timing record, with its 95 % interval ``low``, ``high``; "unpaired" for a saving from separate runs, without
    an interval; or "unknown" if there is no saving, with the reason in ``note``.

    Args:
        records: the records of one setting.
        timings: the setting's rows of :func:`rmsexp.compare.records.timing_records.load`. The newest record of whole
            steps is used if its reference is LN.
    """
    speeds = {series: speed.speed(records, series) for series in names.in_order(records.runs["series"])}
    steps = timing_records.newest(timings) if len(timings) else timings
    timed = {str(row["series"]): row for _, row in steps.iterrows() if names.is_plain_ln(str(row["reference"]))}
    rows = []
    for series in names.in_order([*speeds, *timed]):
        if series in timed:
            rows.append({"series": series, **_paired(timed[series], series)})
        else:
            rows.append({"series": series, **_unpaired(speeds[series], list(speeds.values()))})
    return pd.DataFrame(rows, columns=COLUMNS)


def _paired(row: pd.Series, series: str) -> dict[str, Any]:
    return {
        "impl": row["impl"],
        "seconds_per_1k_steps": row["median_seconds_per_1k_steps"],
        "q25": row["q25"],
        "q75": row["q75"],
        **dict(zip(("saving", "low", "high"), timing_records.saving(row.to_dict()), strict=True)),
        "kind": "reference" if series == row["reference"] else "paired",
        "note": f"{row['rounds']} rounds" + ("" if row["time_state"] == "clear" else f", {row['time_state']}"),
    }


def _unpaired(series: speed.Speed, speeds: list[speed.Speed]) -> dict[str, Any]:
    saving, note = speed.saving(series, speeds)
    kind = note if note in ("reference", "unpaired") else "unknown"
    times = {"seconds_per_1k_steps": series.median, "q25": series.low, "q75": series.high}
    savings = {"saving": saving, "low": math.nan, "high": math.nan}
    return {"impl": series.impl, **times, **savings, "kind": kind, "note": note}


def readable(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the table as text, with the times and savings that the paper has for the task, in each framework."""
    rows = []
    for row in table.to_dict("records"):
        times = _paper_numbers(task, row["series"], "seconds_per_1k_steps")
        savings = _paper_numbers(task, row["series"], "saving_vs_ln")
        rows.append(
            {
                "norm": names.label(row["series"]),
                "seconds per 1k steps, median (quartiles)": formats.median_and_range(
                    row["seconds_per_1k_steps"], row["q25"], row["q75"]
                ),
                "saving vs LayerNorm": _saving(row),
                "seconds per 1k steps, paper": _listed([f"{value:.4g}" for value in times["value"]], times),
                "saving, paper": _listed([formats.saving(value) for value in savings["value"]], savings),
            }
        )
    return pd.DataFrame(rows)


def _saving(row: dict[Any, Any]) -> str:
    if row["kind"] == "unknown":
        return f"{formats.NO_VALUE} ({row['note']})"
    if row["kind"] == "reference":
        return "reference"
    note = f", {row['note']}" if row["kind"] == "paired" else ""
    return f"{formats.saving(row['saving'], row['low'], row['high'])}, {row['kind']}{note}"


def _paper_numbers(task: str, series: str, metric: str) -> pd.DataFrame:
    numbers = paper.select(task, metric)
    return numbers[numbers["norm"] == series.lower()]


def _listed(values: list[str], numbers: pd.DataFrame) -> str:
    """Return the values with their sources, such as "20.5 % (Theano (Lasagne), Table 10)"."""
    sources = zip(values, numbers["framework"], numbers["table"], strict=True)
    return "; ".join(f"{value} ({framework}, {table})" for value, framework, table in sources) or formats.NO_VALUE
