"""Time per step and the share of LN's time that a norm saves: paired from a timing record, else from separate runs."""

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
    """One row a series that was trained or timed; savings are fractions of the time of a step with LN.

    Columns: ``COLUMNS``. ``kind`` is "reference", "paired" (with the interval ``low high``), "unpaired" (from separate
    runs, without) or "unknown" (``note`` says why). ``timings``: :func:`rmsexp.compare.timing.load` of this setting
    alone; of several records the newest counts.
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
    where = f"{row['rounds']} rounds" + ("" if row["time_state"] == "clear" else f", {row['time_state']}")
    return {
        "impl": row["impl"],
        "seconds_per_1k_steps": row["median_seconds_per_1k_steps"],
        "q25": row["q25"],
        "q75": row["q75"],
        **dict(zip(("saving", "low", "high"), timing_records.saving(row.to_dict()), strict=True)),
        "kind": "reference" if series == row["reference"] else "paired",
        "note": where,
    }


def _unpaired(own: speed.Speed, speeds: list[speed.Speed]) -> dict[str, Any]:
    saved, note = speed.saving(own, speeds)
    kind = note if note in ("reference", "unpaired") else "unknown"
    times = {"seconds_per_1k_steps": own.median, "q25": own.low, "q75": own.high}
    return {"impl": own.impl, **times, "saving": saved, "low": math.nan, "high": math.nan, "kind": kind, "note": note}


def readable(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """The same for people, with the paper's times and savings by framework."""
    rows = []
    for row in table.to_dict("records"):
        median, low, high = (row[key] for key in ("seconds_per_1k_steps", "q25", "q75"))
        known = not math.isnan(median)
        digits = [formats.four_digits(value) for value in (median, low, high)] if known else []
        rows.append(
            {
                "norm": names.label(row["series"]),
                "seconds per 1k steps, median (quartiles)": "{} ({} to {})".format(*digits)
                if known
                else formats.NO_VALUE,
                "saving vs LayerNorm": _saving(row),
                "seconds per 1k steps, paper": _of_paper(task, row["series"], "seconds_per_1k_steps", 1, ".4g"),
                "saving, paper": _of_paper(task, row["series"], "saving_vs_ln", 100, ".1f", " %"),
            }
        )
    return pd.DataFrame(rows)


def _saving(row: dict[Any, Any]) -> str:
    if row["kind"] == "unknown":
        return f"{formats.NO_VALUE} ({row['note']})"
    if row["kind"] == "reference":
        return "reference"
    spread = f" ({row['low'] * 100:.1f} to {row['high'] * 100:.1f} %)" if row["kind"] == "paired" else ""
    note = f", {row['note']}" if row["kind"] == "paired" else ""
    return f"{row['saving'] * 100:.1f} %{spread}, {row['kind']}{note}"


def _of_paper(task: str, series: str, metric: str, factor: float, form: str, unit: str = "") -> str:
    theirs = paper.of(task, metric)
    theirs = theirs[theirs["norm"] == series.lower()]
    values = [
        f"{value * factor:{form}}{unit} ({framework}, {table})"
        for value, framework, table in zip(theirs["value"], theirs["framework"], theirs["table"], strict=True)
    ]
    return "; ".join(values) or formats.NO_VALUE
