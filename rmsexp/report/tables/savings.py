"""Time per step, and the time that norms save: one table per clock, interleaved (paired) or of separate runs.

Times of norm layers alone have tables of their own.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rmsexp.records.frames import comparable, names, speed, timing_records
from rmsexp.records.frames.comparable import Comparison
from rmsexp.records.frames.load import Records
from rmsexp.report import paper
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import Interval

COLUMNS = [
    *("series", "impl", "baseline", "seconds_per_1k_steps", "q25", "q75", "saving", "low", "high"),
    *("kind", "processes", "rounds", "note", "timed", "machine", "threads", "precision", "torch", "code"),
]
RECORDS = "Timing records"
PAPER = ("seconds_per_1k_steps", "saving_vs_ln")  # the paper's metrics beside ours


class Table(NamedTuple):
    """A table of times that share a clock.

    Attributes:
        title: its heading, which names the clock.
        numbers: one row per series, with columns ``COLUMNS``. ``saving``: the fraction of the baseline's time per step,
            and its interval. ``kind``: "reference" for the baseline; "paired" for an interleaved saving; "quotient" for
            one from processes that timed either the series or its baseline, each beside the reference; "unpaired" for
            one from separate runs, without interval. ``timed``: "steps", or "layers" if the times are those of the norm
            layers in a step alone.
        caption: the caption of its figure, as lines; empty for a table without figure.
    """

    title: str
    numbers: pd.DataFrame
    caption: list[str]


def tables(records: Records, timings: pd.DataFrame) -> list[Table]:
    """Return the tables of a setting: against LayerNorm of the same implementation, fused against eager, unpaired.

    Last come the tables of norm layers alone, against LayerNorm of the same implementation. There is no table of
    separate runs where no saving is known, for example because LayerNorm has no clear time on their clock.

    Args:
        records: the records of the setting.
        timings: the setting's rows of :func:`rmsexp.records.frames.timing_records.load`.
    """
    step, layers = "Time per step, and savings relative to", "Time of the norm layers in a step alone, and savings"
    against_ln = [_paired(found, f"{step} LayerNorm") for found in comparable.comparisons(timings)]
    fused = [_paired(found, f"{step} the eager norm") for found in comparable.fused_against_eager(timings)]
    alone = [
        _paired(found, f"{layers} relative to LayerNorm") for found in comparable.comparisons(timings, kind="layers")
    ]
    unpaired = [_unpaired(run, speeds) for run, speeds in speed.by_clock(records)]
    unpaired = [table for table in unpaired if (table.numbers["kind"] == "unpaired").any()]
    if against_ln:  # separate runs are drawn only where nothing better is known
        unpaired = [table._replace(caption=[]) for table in unpaired]
    fused, alone = ([table._replace(caption=[]) for table in without_figure] for without_figure in (fused, alone))
    return [*against_ln, *fused, *unpaired, *alone]


def _paired(comparison: Comparison, what: str) -> Table:
    rows = [_paired_row(row) for row in comparison.rows.to_dict("records")]
    title = f"{what} ({comparable.clock(comparison)})"
    return Table(title, pd.DataFrame(rows, columns=COLUMNS), comparable.notes(comparison))


def _paired_row(row: dict[Any, Any]) -> dict[str, Any]:
    state = row["time_state"]
    return {
        **{key: row[key] for key in ("series", "impl", "baseline", "q25", "q75", "processes", "rounds", *speed.CLOCK)},
        "seconds_per_1k_steps": row["median_seconds_per_1k_steps"],
        **dict(zip(("saving", "low", "high"), timing_records.saving(row), strict=True)),
        "kind": "reference" if row["series"] == row["baseline"] else "quotient" if row["quotient"] else "paired",
        "note": "" if state == "clear" else state,
        "timed": row["kind"],
    }


def _unpaired(run: pd.Series, speeds: list[speed.Speed]) -> Table:
    baseline = next((series.series for series in speeds if names.is_plain_ln(series.series)), None)
    shared = {"baseline": baseline, "timed": "steps"} | {key: run[key] for key in speed.CLOCK}
    rows = []
    for series in speeds:
        saving, kind = speed.saving(series, speeds)
        times = {"seconds_per_1k_steps": series.median, "q25": series.low, "q75": series.high}
        what = {"series": series.series, "impl": series.impl, "kind": kind, "note": ""}
        rows.append(shared | times | what | {"saving": saving})
    numbers = pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(["low", "high", "processes", "rounds"], float))
    known = run[["machine", "device"]].fillna("unknown machine")
    machine = comparable.machine({"machine": known["machine"], "processor": known["device"]})
    how = f"{run['impl']}{comparable.precision(run['precision'])}, {comparable.threads(run['threads'])}"
    clock = f"{how}, {machine}, torch {run['torch']}, code {run['code']}"
    title = f"Time per step of separate runs, and unpaired savings relative to LayerNorm ({clock})"
    caption = [clock, "separate runs, whose speed may differ by several percent for other reasons than the norm"]
    return Table(title, numbers, caption)


def readable(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return a table as text, with the times and savings of the paper, which are of steps with eager norms."""
    impls = set(table["impl"])
    rows = []
    for row in table.to_dict("records"):
        plain = names.without_impl(row["series"])
        median = formats.median_and_range(row["seconds_per_1k_steps"], row["q25"], row["q75"])
        name = f"{names.label(plain)} ({row['impl']})" if len(impls) > 1 else names.label(plain)
        cells = {"norm": name, "seconds per 1k steps, median (quartiles)": median}
        cells["saving vs LayerNorm" if len(impls) == 1 else "saving vs the eager norm"] = _saving(row)
        if not math.isnan(row["processes"]):
            cells["processes, rounds"] = _replication(row)
        if _has_paper(table):
            cells |= _paper(task, row["series"])
        rows.append(cells)
    return pd.DataFrame(rows)


def _saving(row: dict[Any, Any]) -> str:
    if row["kind"] == "reference":
        return "reference"
    note = ", ".join(filter(None, (row["kind"], row["note"])))
    return f"{formats.saving(row['saving'], row['low'], row['high'])}, {note}"


def _paper(task: str, series: str) -> dict[str, str]:
    times, savings = (_paper_numbers(task, series, metric) for metric in PAPER)
    return {
        "seconds per 1k steps, paper": _listed([formats.without_exponent(value) for value in times["value"]], times),
        "saving, paper": _listed([formats.saving(value) for value in savings["value"]], savings),
    }


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


def _listed(values: list[str], numbers: pd.DataFrame) -> str:
    """Return the values with their sources, such as "20.5 % (Theano (Lasagne), Table 10)"."""
    sources = zip(values, numbers["framework"], numbers["table"], strict=True)
    return "; ".join(f"{value} ({framework}, {table})" for value, framework, table in sources) or formats.NO_VALUE


def timing_table(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the timing records of a setting as text, with the savings of each and why it is not in the tables.

    Last come those without LayerNorm of the same implementation, which may be in a table of fused against eager norms.
    """
    rows, listed = [], set()
    for comparison in (found for kind in timing_records.KINDS for found in comparable.comparisons(timings, kind=kind)):
        first = comparison.rows.iloc[0].to_dict()
        clock = f"{comparable.machine(first)}, {comparable.threads(first['threads'])}"
        for record in comparison.records.to_dict("records"):
            listed.add(record["folder"])
            rows.append(_listed_record(record, first["impl"], clock, _savings(record["ratios"]), record["left_out"]))
    fused = comparable.fused_against_eager(timings)
    left_out = {record["folder"]: record["left_out"] for found in fused for record in found.records.to_dict("records")}
    for folder, own in timings[~timings["folder"].isin(listed)].groupby("folder", sort=False):
        record, impls = own.iloc[0].to_dict(), " and ".join(sorted(set(own["impl"])))
        clock = f"{comparable.machine(record)}, {comparable.threads(record['threads'])}"
        record |= {"processes": own["processes"].min(), "rounds": own["rounds"].min()}
        has_ln = own["series"].map(names.is_plain_ln).any()
        lacks = "no other norm of its implementation was timed" if has_ln else "LayerNorm was not timed"
        reason = left_out.get(str(folder), lacks)
        rows.append(_listed_record(record, impls, clock, formats.NO_VALUE, reason))
    return pd.DataFrame(rows)


def _listed_record(record: dict[Any, Any], impl: str, clock: str, saved: str, left_out: str) -> dict[str, str]:
    return {
        "record": Path(record["folder"]).name,
        "impl": impl,
        "machine, threads": clock,
        "date": str(record["started"])[:10],
        "commit": comparable.commit(record),
        "processes, rounds": _replication(record),
        "time state": record["time_state"],
        "saving vs LayerNorm (95 % interval)": saved,
        "in the tables above": f"no: {left_out}" if left_out else "yes",
    }


def _replication(row: dict[Any, Any]) -> str:
    return f"{timing_records.replication(int(row['processes']))}, {row['rounds']:.0f} rounds"


def _savings(ratios: dict[str, Interval]) -> str:
    plain = {names.without_impl(series): ratio for series, ratio in ratios.items()}
    return ", ".join(
        f"{names.label(series)} {formats.saved(ratio)}" for series, ratio in plain.items() if series != "ln"
    )
