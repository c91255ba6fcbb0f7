"""Time per step, and the time that norms save, both measured interleaved: one table per clock.

Times of norm layers alone have tables of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rmsexp.records.frames import comparable, names, timing_records
from rmsexp.report import paper
from rmsexp.report.tables import formats
from rmsexp.report.tables.form import Setting, Table
from rmsexp.rules.ratios import Interval

COLUMNS = [
    *("series", "impl", "baseline", "seconds_per_1k_steps", "q25", "q75", "saving", "low", "high"),
    *("kind", "processes", "rounds", "note", "timed", "machine", "threads", "precision", "torch", "code"),
]
PAPER = ("seconds_per_1k_steps", "saving_vs_ln")  # the paper's metrics beside ours


def tables(setting: Setting) -> Iterator[Table]:
    """Yield the tables of a setting: against LayerNorm of the same implementation, fused against eager, layers alone.

    Last comes the list of its timing records. In the numbers, with columns ``COLUMNS``, ``saving`` is the fraction of
    the baseline's time per step, with its interval. ``kind``: "reference" for the baseline; "paired" for a saving of
    norms that were timed together; "quotient" for one from processes that timed either the series or its baseline, each
    beside the reference. ``timed``: "steps", or "layers" if the times are those of the norm layers in a step alone.
    """
    timings, task = setting.timings, setting.folder.parent.name
    step, layers = "Time per step, and savings relative to", "Time of the norm layers in a step alone, and savings"
    found = [(f"{step} LayerNorm", comparison) for comparison in comparable.comparisons(timings)]
    found += [(f"{step} the eager norm", comparison) for comparison in comparable.fused_against_eager(timings)]
    alone = comparable.comparisons(timings, kind="layers")
    found += [(f"{layers} relative to LayerNorm", comparison) for comparison in alone]
    for number, (what, comparison) in enumerate(found, 1):
        numbers = pd.DataFrame([_numbers(row) for row in comparison.rows.to_dict("records")], columns=COLUMNS)
        title = f"{what} ({comparable.clock(comparison)})"
        yield Table("saving" if number == 1 else f"saving_{number}", title, numbers, readable(numbers, task))
    listed = timing_table(timings)
    if len(listed):
        yield Table("timings", "Timing records", listed, listed)


def _numbers(row: dict[Any, Any]) -> dict[str, Any]:
    same = ("series", "impl", "baseline", "q25", "q75", "processes", "rounds", *COLUMNS[-5:])
    return {key: row[key] for key in same} | {
        "seconds_per_1k_steps": row["median_seconds_per_1k_steps"],
        **dict(zip(("saving", "low", "high"), timing_records.saving(row), strict=True)),
        "kind": "reference" if row["series"] == row["baseline"] else "quotient" if row["quotient"] else "paired",
        "note": "" if row["time_state"] == "clear" else row["time_state"],
        "timed": row["kind"],
    }


def readable(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return a table as text, with the times and savings of the paper, which are of steps with eager norms."""
    is_mixed, rows = table["impl"].nunique() > 1, []
    for row in table.to_dict("records"):
        plain = names.without_impl(row["series"])
        note = ", ".join(filter(None, (row["kind"], row["note"])))
        saving = f"{formats.saving(row['saving'], row['low'], row['high'])}, {note}"
        cells = {
            "norm": f"{names.label(plain)} ({row['impl']})" if is_mixed else names.label(plain),
            "seconds per 1k steps, median (quartiles)": formats.median_and_range(
                row["seconds_per_1k_steps"], row["q25"], row["q75"]
            ),
            f"saving vs {'the eager norm' if is_mixed else 'LayerNorm'}": (
                "reference" if row["kind"] == "reference" else saving
            ),
            "processes, rounds": _replication(row),
        }
        if _has_paper(table):
            times, savings = (_paper_numbers(task, row["series"], metric) for metric in PAPER)
            cells["seconds per 1k steps, paper"] = _listed(map(formats.without_exponent, times["value"]), times)
            cells["saving, paper"] = _listed(map(formats.saving, savings["value"]), savings)
        rows.append(cells)
    return pd.DataFrame(rows)


def _replication(row: dict[Any, Any]) -> str:
    return f"{timing_records.replication(int(row['processes']))}, {row['rounds']:.0f} rounds"


def published(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the paper's times and savings that :func:`readable` shows, as rows of its numbers."""
    series = list(map(names.without_impl, table["series"])) if _has_paper(table) else list[str]()
    found = [_paper_numbers(task, name, metric) for metric in PAPER for name in series]
    return pd.concat(found) if found else paper.numbers().iloc[:0]


def _has_paper(table: pd.DataFrame) -> bool:
    return set(table["impl"]) == {"eager"} and table["timed"].iloc[0] == "steps"


def _paper_numbers(task: str, series: str, metric: str) -> pd.DataFrame:
    numbers = paper.select(task, metric)
    return numbers[numbers["norm"] == series.lower()]


def _listed(values: Iterator[str], numbers: pd.DataFrame) -> str:
    """Return the values with their sources, such as "20.5 % (Theano (Lasagne), Table 10)"."""
    sources = zip(values, numbers["framework"], numbers["table"], strict=True)
    return "; ".join(f"{value} ({framework}, {table})" for value, framework, table in sources) or formats.NO_VALUE


def timing_table(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the timing records of a setting as text, with the savings of each and why it is not in the tables.

    Last come those without LayerNorm of the same implementation, which may be in a table of fused against eager norms.
    """
    rows, listed = [], set()
    for comparison in (found for kind in timing_records.KINDS for found in comparable.comparisons(timings, kind=kind)):
        shared = comparison.rows.iloc[0][["impl", "machine", "processor", "threads"]].to_dict()
        for record in comparison.records.to_dict("records"):
            listed.add(record["folder"])
            rows.append(_listed_record(record | shared, _savings(record["ratios"]), record["left_out"]))
    fused = comparable.fused_against_eager(timings)
    left_out = {record["folder"]: record["left_out"] for found in fused for record in found.records.to_dict("records")}
    for folder, own in timings[~timings["folder"].isin(listed)].groupby("folder", sort=False):
        shared = {"impl": " and ".join(sorted(set(own["impl"])))} | own[["processes", "rounds"]].min().to_dict()
        reason = left_out.get(str(folder), "LayerNorm, or another norm of its implementation, was not timed")
        rows.append(_listed_record(own.iloc[0].to_dict() | shared, formats.NO_VALUE, reason))
    return pd.DataFrame(rows)


def _listed_record(record: dict[Any, Any], saved: str, left_out: str) -> dict[str, str]:
    return {
        "record": Path(record["folder"]).name,
        "impl": record["impl"],
        "machine, threads": f"{comparable.machine(record)}, {comparable.threads(record['threads'])}",
        "date": str(record["started"])[:10],
        "commit": comparable.commit(record),
        "processes, rounds": _replication(record),
        "time state": record["time_state"],
        "saving vs LayerNorm (95 % interval)": saved,
        "in the tables above": f"no: {left_out}" if left_out else "yes",
    }


def _savings(ratios: dict[str, Interval]) -> str:
    plain = {names.without_impl(series): ratio for series, ratio in ratios.items()}
    return ", ".join(
        f"{names.label(series)} {formats.saved(ratio)}" for series, ratio in plain.items() if series != "ln"
    )
