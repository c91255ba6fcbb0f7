"""Which times may stand in one table, and which of several timing records of one thing comes first in it.

All tables and figures of times ask this module, so they follow the same rules:

- Times in one table share a *clock*: the task and setting, what was timed, the machine, the number of threads, the
  precision, the version of torch, and the implementation of the norms.
- Records of one clock that were made by the same code are pooled. Of these, records with fewer than ``FEWEST_ROUNDS``
  rounds, or whose time is not clear, are used only if there are no others. If their probes found different speeds of
  the machine (:func:`rmsexp.machine.same`), only those with the speeds of the newest are pooled.
- Of the records of several codes, those of several processes come before one process, then enough rounds before too
  few, then clear before contended, then at most ``MOST_AT_ONCE`` series in a process before more, and then the newest.
  The other records are listed beside the table.
- A norm is compared with LayerNorm of the same implementation. Fused norms are compared with eager ones only in a table
  of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp import config
from rmsexp import machine as machine_identity
from rmsexp.compare.records import names, ratios, timing_records
from rmsexp.compare.records.ratios import Interval

FEWEST_ROUNDS = 20  # of a process, unless its budget is spent before; intervals from fewer rounds are unreliable
MOST_AT_ONCE = 4  # series that a process times; with more, each finds less of its data in the caches
CLOCK = ("task", "setting", "kind", "machine", "threads", "precision", "torch")
OTHER_CODE = "made by other code"
OTHER_SPEED = "at another speed of the machine"

Row = dict[Any, Any]


class Comparison(NamedTuple):
    """Times of one clock, each relative to a baseline that was timed in the same rounds.

    Attributes:
        rows: one row per series, pooled over the records of one code: the columns of
            :func:`rmsexp.compare.records.timing_records.load`, and ``baseline``, the series to which ``ratio``,
            ``low``, ``high`` and ``estimates`` are relative. ``processes`` and ``rounds`` are sums over the records.
        records: one row per timing record of the clock, the newest first: ``folder``, ``started``, ``code``,
            ``commit``, ``dirty``, ``time_state``, ``disturbed``, ``at_once``; ``measured``, the number of its
            processes; ``processes`` and ``rounds``, the least of its series; ``ratios``, by series, relative to the
            baseline, with their intervals; and ``left_out``, the reason why the record is not in ``rows``, or "".
    """

    rows: pd.DataFrame
    records: pd.DataFrame

    @property
    def compared(self) -> pd.DataFrame:
        """The rows without the baselines themselves."""
        return self.rows[self.rows["series"] != self.rows["baseline"]]

    @property
    def pooled(self) -> pd.DataFrame:
        """The records from which ``rows`` are computed."""
        return self.records[self.records["left_out"] == ""]


def comparisons(timings: pd.DataFrame, baseline: str = "ln", kind: str = "steps") -> list[Comparison]:
    """Return the comparisons with a baseline of the same implementation, one for each clock and implementation.

    They are sorted by task, setting and implementation (eager first), and then by rank. Records without this baseline
    are left out.

    Args:
        timings: the rows of :func:`rmsexp.compare.records.timing_records.load`.
        baseline: a series without its implementation.
        kind: what was timed, a key of :data:`rmsexp.compare.records.timing_records.KINDS`.
    """
    found: list[Comparison] = []
    for impl in sorted(timings["impl"].unique(), key=lambda impl: (impl != "eager", impl)):
        found += _comparisons(timings[(timings["kind"] == kind) & (timings["impl"] == impl)], lambda _: baseline)
    return sorted(found, key=lambda comparison: tuple(comparison.rows.iloc[0][["task", "setting"]]))


def fused_against_eager(timings: pd.DataFrame) -> list[Comparison]:
    """Return the comparisons of norms with another implementation with the same eager norms, one for each clock."""
    return _comparisons(timings[timings["kind"] == "steps"], names.without_impl)


def _comparisons(timings: pd.DataFrame, baseline_of: Callable[[str], str]) -> list[Comparison]:
    """Return a comparison for each clock in which a series was timed together with its baseline, by rank.

    ``baseline_of``: gives the baseline of a series, without its implementation.
    """
    found = []
    for _, rows in timings.groupby(list(CLOCK), dropna=False):
        paired = [_paired(record.to_dict("records"), baseline_of) for _, record in rows.groupby("folder")]
        records = [record for record in paired if any(row["series"] != row["baseline"] for row in record)]
        if records:
            found.append(_comparison(records))
    return sorted(found, key=lambda comparison: rank(comparison.pooled), reverse=True)


def _paired(record: list[Row], baseline_of: Callable[[str], str]) -> list[Row]:
    """Return the rows of a record that has their baselines, with ``baseline`` and with ``pairs``.

    ``pairs``: the ratio to the baseline in each process that timed both. If no process did, because the record's groups
    of series share only its reference, ``pairs`` has the quotients of the ratios to this reference, in the order of the
    processes. If the baseline was timed eager and fused, it is the eager one.
    """
    baselines: dict[str, Row] = {}
    for row in sorted(record, key=lambda row: row["impl"] != "eager"):
        baselines.setdefault(names.without_impl(row["series"]), row)
    found = []
    for row in record:
        base = baselines.get(baseline_of(row["series"]))
        if base is not None:
            found.append(row | {"baseline": base["series"], "pairs": _pairs(row, base)})
    return found


def _pairs(row: Row, base: Row) -> list[Interval]:
    """Return the ratios of two series of a record, see :func:`_paired`."""
    both = zip(row["seconds"], base["seconds"], strict=True)
    pairs = [ratios.paired_ratio(own, other) for own, other in both if own is not None and other is not None]
    through_reference = zip(row["estimates"], base["estimates"], strict=False)
    return pairs or [Interval(own / other, math.nan, math.nan) for own, other in through_reference]


def ratio(records: pd.DataFrame, series: str, baseline: str = "ln") -> Interval | None:
    """Return the ratio of the times of two series, over all processes; None if no record has both.

    ``records``: the rows of records that are pooled (:attr:`Comparison.pooled`), all series of each.
    """
    pairs = []
    for _, record in records.groupby("folder"):
        rows = {row["series"]: row for row in record.to_dict("records")}
        if {series, baseline} <= set(rows):
            pairs += _pairs(rows[series], rows[baseline])
    return _interval(pairs) if pairs else None


def _comparison(measured: list[list[Row]]) -> Comparison:
    """Return the comparison of one clock. ``measured``: the rows of each of its records, see :func:`_paired`."""
    records = pd.DataFrame([_record(rows) for rows in measured])
    by_code = records["code"].fillna(records["folder"])  # records of unknown code are not pooled
    chosen = max((_best(records[by_code == code]) for code in by_code.unique()), key=rank)
    records["left_out"] = [_reason(record, chosen) for record in records.to_dict("records")]
    pooled = [row for rows in measured for row in rows if row["folder"] in set(chosen["folder"])]
    series = names.in_order(row["series"] for row in pooled)
    rows = pd.DataFrame([_pooled([row for row in pooled if row["series"] == name]) for name in series])
    return Comparison(rows, records.sort_values("started", ascending=False, ignore_index=True))


def _record(rows: list[Row]) -> Row:
    compared = [row for row in rows if row["series"] != row["baseline"]]
    keys = ("folder", "started", "code", "commit", "dirty", "time_state", "disturbed", "speed", "at_once")
    shared = {key: rows[0][key] for key in keys} | {"measured": len(rows[0]["seconds"])}
    least = {
        "processes": min(len(row["pairs"]) for row in compared),
        "rounds": min(row["rounds"] for row in compared),
    }
    return shared | least | {"ratios": {row["series"]: _interval(row["pairs"]) for row in rows}}


def _best(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of one code that are pooled."""
    for good in (records["rounds"] >= FEWEST_ROUNDS, records["time_state"] == "clear"):
        kept = records[good.loc[records.index]]
        records = records if kept.empty else kept
    newest = max(records.to_dict("records"), key=lambda record: str(record["started"]))
    return records[[_same_speed(record, newest) for record in records.to_dict("records")]]


def _same_speed(one: Row, other: Row) -> bool:
    """Return whether the probes of two records found the same speed, as far as it is known and undisturbed."""
    clear = one["time_state"] == other["time_state"] == "clear"
    return not (clear and one["speed"] and other["speed"]) or machine_identity.same(one["speed"], other["speed"])


def rank(records: pd.DataFrame) -> tuple[bool, bool, bool, bool, str]:
    """Return a key by which the best of several sets of records is the greatest. ``records``: as in a comparison."""
    enough, clear = records["rounds"].sum() >= FEWEST_ROUNDS, (records["time_state"] == "clear").all()
    few_at_once = (records["at_once"] <= MOST_AT_ONCE).all()
    several = records["processes"].sum() > 1
    return bool(several), bool(enough), bool(clear), bool(few_at_once), str(records["started"].max())


def _reason(record: Row, chosen: pd.DataFrame) -> str:
    if record["folder"] in set(chosen["folder"]):
        return ""
    if record["code"] != chosen["code"].iloc[0]:
        return OTHER_CODE
    if record["rounds"] < FEWEST_ROUNDS:
        return f"fewer than {FEWEST_ROUNDS} rounds"
    return OTHER_SPEED if record["time_state"] == chosen["time_state"].iloc[0] else str(record["time_state"])


def _pooled(rows: list[Row]) -> Row:
    """Return one row for a series, from its rows in all records that are pooled."""
    pairs = [pair for row in rows for pair in row["pairs"]]
    rounds = [own for row in rows for own in row["seconds"] if own is not None]
    low, median, high = 1000 * np.quantile(np.concatenate(rounds), [0.25, 0.5, 0.75])
    states = [row["time_state"] for row in rows]
    return {
        **{key: value for key, value in rows[0].items() if key != "pairs"},
        **_interval(pairs)._asdict(),
        "estimates": tuple(pair.ratio for pair in pairs),
        "processes": len(pairs),
        "rounds": sum(map(len, rounds)),
        "median_seconds_per_1k_steps": median,
        "q25": low,
        "q75": high,
        "started": max(row["started"] for row in rows),
        "time_state": next((state for state in states if state != "clear"), "clear"),
    }


def _interval(pairs: list[Interval]) -> Interval:
    """Return the interval over processes, or that of the only process."""
    return pairs[0] if len(pairs) == 1 else ratios.over_processes([pair.ratio for pair in pairs])


def machine(row: Row) -> str:
    """Return the name of a row's processor, with the machine's identity in parentheses if the records have it."""
    return str(row["processor"]) if row["machine"] == row["processor"] else f"{row['processor']} ({row['machine']})"


def clock(comparison: Comparison) -> str:
    """Return the clock of a comparison for headings, such as "interleaved, eager, 1 thread, AMD EPYC, 6 processes".

    The version of torch follows the machine.
    """
    row = comparison.rows.iloc[0].to_dict()
    impls = " and ".join(comparison.rows["impl"].unique())
    software = f"{threads(row['threads'])}, {machine(row)}, torch {row['torch']}"
    return f"interleaved, {impls}{precision(row['precision'])}, {software}, {replication(comparison)}"


def precision(name: object) -> str:
    """Return the precision to be added to a heading, such as ", float16"; "" for float32."""
    return "" if name == names.FLOAT32 else f", {name}"


def threads(number: float) -> str:
    """Return the number of threads for headings; NaN is an unknown number."""
    return "1 thread" if number == 1 else "unknown threads" if math.isnan(number) else f"{number:.0f} threads"


def replication(comparison: Comparison) -> str:
    """Return the number of processes of a comparison, with a warning if there is one process or too few rounds."""
    compared = comparison.compared
    least, most = int(compared["processes"].min()), int(compared["processes"].max())
    text = timing_records.replication(most) if least == most else f"{least} to {most} processes"
    few = int(compared["rounds"].min())
    return text if few >= FEWEST_ROUNDS else f"{text}, only {few} rounds"


def commit(record: Row) -> str:
    """Return the commit of a timing record, and whether there were uncommitted changes."""
    changes = " with uncommitted changes" if record["dirty"] is True else ""
    return f"{str(record['commit'])[:7] if pd.notna(record['commit']) else 'unknown commit'}{changes}"


def notes(comparison: Comparison) -> list[str]:
    """Return the caption of a figure of a comparison, as lines on the clock, the code, the data and the time."""
    row, records = comparison.rows.iloc[0], comparison.pooled.to_dict("records")
    data = f"built-in data{config.papers_scale(row['task'])}" if row["builtin"] else "real data"
    commits = sorted({commit(record) for record in records})
    dates = sorted({str(record["started"])[:10] for record in records})
    return [clock(comparison), f"{data}; {', '.join(commits)}; {' and '.join(dates)}", *caution(comparison)]


def caution(comparison: Comparison) -> list[str]:
    """Return a line that names the time states that are not clear, and counts the processes that were disturbed.

    There is none if all are clear and no process was disturbed.
    """
    states, records = sorted(set(comparison.rows["time_state"]) - {"clear"}), comparison.pooled
    disturbed = int(records["disturbed"].sum())
    if not states and not disturbed:
        return []
    share = timing_records.disturbance(disturbed, int(records["measured"].sum()))
    return [f"time state {', '.join(states) or 'clear'}, {share}{f': {timing_records.SLOWED}' * bool(states)}"]
