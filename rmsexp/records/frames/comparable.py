"""Which times may stand in one table, and which of several timing records of one thing comes first in it.

All tables and figures of times ask this module, so they follow the same rules:

- Times in one table share a *clock*: the task and setting, what was timed, the machine, the number of threads, the
  precision, the version of torch, and the implementation of the norms.
- Records of one clock that were made by the same code are pooled. Of these, records with fewer than ``FEWEST_ROUNDS``
  rounds, or whose time is not clear, are used only if there are no others. A record is left out if
  its data, its config or the source of the user's own norm differ from the newest's. Records whose probes found
  different speeds of the machine (:func:`rmsexp.system.machine.same`) are not pooled: those of one speed are used,
  chosen in the order of the next point, where more rounds come before the newest.
- Of the records of several codes, those of several processes come before one process, then enough rounds before too
  few, then clear before contended, then at most ``MOST_AT_ONCE`` series in a process before more, and then the newest.
  The other records are listed beside the table.
- A norm is compared with LayerNorm of the same implementation. Fused norms are compared with eager ones only in a table
  of their own.
- If the series of a record were timed in groups that share its reference, times and time states of a comparison are
  those of the processes that timed a norm and its baseline. Where no process timed both, the ratio is the quotient of
  their ratios to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp import config
from rmsexp.records.frames import names, time_states, timing_records
from rmsexp.rules.ratios import FEWEST_ROUNDS, Interval, over_processes, paired_ratio
from rmsexp.system import machine as machine_identity

# rounds per process: the fewest at which scripts/timing_coverage.py measured what the interval over processes covers
FEWEST_OF_A_PROCESS = 5
MOST_AT_ONCE = 4  # series that a process times; with more, each finds less of its data in the caches
CLOCK = ("task", "setting", "kind", "machine", "threads", "precision", "torch")
OTHER_CODE = "made by other code"
OTHER_SPEED = "at another speed of the machine"
OTHER_WORK = "with another config, own norm or data"

Row = dict[Any, Any]


class Comparison(NamedTuple):
    """Times of one clock, each relative to a baseline that was timed in the same rounds.

    Attributes:
        rows: one row per series, pooled over the records of one code: the columns of
            :func:`rmsexp.records.frames.timing_records.load`, and ``baseline``, the series to which ``ratio``,
            ``low``, ``high`` and ``estimates`` are relative. ``processes`` and ``rounds`` are sums over the records;
            ``seconds`` has the processes of all of them; ``least`` is the smallest number of rounds of a process;
            ``quotient``: whether no process timed the series together with its baseline, so that the ratio is the
            quotient of two ratios to the reference.
        records: one row per timing record of the clock, the newest first: ``folder``, ``started``, ``code``,
            ``commit``, ``dirty``, ``time_state``, ``disturbed``, ``at_once``; ``measured``, the number of its
            processes that are compared; ``processes`` and ``rounds``, the least of its series; ``ratios``, by series,
            relative to the baseline, with their intervals; and ``left_out``, the reason why the record is not in
            ``rows``, or "".
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
        timings: the rows of :func:`rmsexp.records.frames.timing_records.load`.
        baseline: a series without its implementation.
        kind: what was timed, a key of :data:`rmsexp.records.frames.timing_records.KINDS`.
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
        paired = [_paired(record, baseline_of) for record in _by_record(rows)]
        if records := [record for record in paired if record]:
            found.append(_comparison(records))
    return sorted(found, key=lambda comparison: rank(comparison.pooled), reverse=True)


def _by_record(rows: pd.DataFrame) -> list[list[Row]]:
    """Return the rows of each record, sorted by folder. One conversion of all rows is faster than one for each."""
    found: dict[str, list[Row]] = {}
    for row in rows.to_dict("records"):
        found.setdefault(row["folder"], []).append(row)
    return [found[folder] for folder in sorted(found)]


def _paired(record: list[Row], baseline_of: Callable[[str], str]) -> list[Row]:
    """Return the rows of a record that has their baselines, with ``baseline``, ``pairs`` and ``quotient``.

    A baseline to which no other series is relative has no row.

    ``pairs``: the ratios to the baseline, see :func:`_pairs`. If the baseline was timed eager and fused, it is the
    eager one. Times, time states and numbers are those of the processes that timed a series and its baseline, or of
    all if ``pairs`` are quotients.
    """
    baselines: dict[str, Row] = {}
    for row in sorted(record, key=lambda row: row["impl"] != "eager"):
        baselines.setdefault(names.without_impl(row["series"]), row)
    of_series = [(row, baselines.get(baseline_of(row["series"]))) for row in record]
    compared = [(row, base) for row, base in of_series if base is not None and row["series"] != base["series"]]
    quotient = [row["series"] for row, base in compared if not _together(row, base)]
    together = {number for row, base in compared for number in _together(row, base)}
    used = set(range(len(record[0]["seconds"]))) if quotient else together
    shown = {series for row, base in compared for series in (row["series"], base["series"])}
    used_rows = [
        (_of_processes(row, used), _of_processes(base, used))
        for row, base in of_series
        if base is not None and row["series"] in shown
    ]
    return [
        row | {"baseline": base["series"], "pairs": _pairs(row, base), "quotient": row["series"] in quotient}
        for row, base in used_rows
    ]


def _of_processes(row: Row, used: set[int]) -> Row:
    """Return a row of a record with what belongs to these processes alone."""
    seconds = tuple(own if number in used else None for number, own in enumerate(row["seconds"]))
    sessions = [session for number, session in enumerate(row["sessions"]) if number in used]
    states = {"time_state": time_states.timing_state(sessions), "disturbed": time_states.disturbed(sessions)}
    rounds = sum(len(own) for own in seconds if own is not None)
    return row | states | {"seconds": seconds, "rounds": rounds, "measured": len(used)}


def _together(row: Row, base: Row) -> list[int]:
    """Return the numbers of the processes of a record that timed both series."""
    both = enumerate(zip(row["seconds"], base["seconds"], strict=True))
    return [number for number, (own, other) in both if own is not None and other is not None]


def _pairs(row: Row, base: Row) -> list[Interval]:
    """Return the ratio of two series of a record in each process that timed both.

    If no process did, because the record's groups of series share only its reference, these are the quotients of the
    ratios to this reference, in the order of the processes, without intervals.
    """
    pairs = [paired_ratio(row["seconds"][k], base["seconds"][k]) for k in _together(row, base)]
    through_reference = zip(row["estimates"], base["estimates"], strict=False)
    return pairs or [Interval(own / other, math.nan, math.nan) for own, other in through_reference]


def is_quotient(records: pd.DataFrame, series: str, baseline: str) -> bool:
    """Return whether :func:`ratio` of two series is a quotient of their ratios to the reference, in some record."""
    by_record = [{row["series"]: row for row in record} for record in _by_record(records)]
    both = [rows for rows in by_record if {series, baseline} <= set(rows)]
    return any(not _together(rows[series], rows[baseline]) for rows in both)


def ratio(records: pd.DataFrame, series: str, baseline: str = "ln") -> Interval | None:
    """Return the ratio of the times of two series, over all processes; None if no record has both.

    ``records``: the rows of records that are pooled (:attr:`Comparison.pooled`), all series of each.
    """
    pairs = _all_pairs(records, series, baseline)
    return _interval(pairs) if pairs else None


def processes(records: pd.DataFrame, series: str, baseline: str) -> int:
    """Return of how many processes :func:`ratio` is the mean."""
    return len(_all_pairs(records, series, baseline))


def _all_pairs(records: pd.DataFrame, series: str, baseline: str) -> list[Interval]:
    pairs = []
    for record in _by_record(records):
        rows = {row["series"]: row for row in record}
        if {series, baseline} <= set(rows):
            pairs += _pairs(rows[series], rows[baseline])
    return pairs


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
    keys = ("folder", "started", "code", "commit", "dirty", "data", "time_state", "disturbed", "speed", "at_once")
    shared = {key: rows[0][key] for key in (*keys, "measured")}
    known = [row for row in rows if isinstance(row["workload"], str)]  # older records have None, which may become NaN
    shared["workloads"] = {row["series"]: row["workload"] for row in known}
    least = {
        "processes": min(len(row["pairs"]) for row in compared),
        "rounds": min(row["rounds"] for row in compared),
    }
    return shared | least | {"ratios": {row["series"]: _interval(row["pairs"]) for row in rows}}


def _best(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of one code that are pooled, of equal work and speed: see :func:`_rank_by_rounds`."""
    for good in (records["rounds"] >= FEWEST_ROUNDS, records["time_state"] == "clear"):
        kept = records[good.loc[records.index]]
        records = records if kept.empty else kept
    newest = max(records.to_dict("records"), key=lambda record: str(record["started"]))
    rows = [record for record in records.to_dict("records") if _same_work(record, newest)]
    rows.sort(key=lambda record: (record["rounds"], str(record["started"])), reverse=True)
    alike = (_of_one_speed(one, rows) for one in rows)
    return max((records[records["folder"].isin(folders)] for folders in alike), key=_rank_by_rounds)


def _of_one_speed(one: Row, rows: list[Row]) -> list[str]:
    """Return the folders of a record and of those rows, in their order, whose speed is that of all before."""
    found = [one]
    for row in rows:
        if row is not one and all(_same_speed(row, other) for other in found):
            found.append(row)
    return [row["folder"] for row in found]


def _rank_by_rounds(records: pd.DataFrame) -> tuple[object, ...]:
    """Return a key as :func:`rank`, in which more rounds come before a later date."""
    *quality, started = rank(records)
    return *quality, records["rounds"].sum(), started


def _same_work(one: Row, other: Row) -> bool:
    """Return whether two records trained the same models on the same data. Workloads are known of both or of none."""
    ours, theirs = one["workloads"], other["workloads"]
    both = ours.keys() & theirs.keys()
    return one["data"] == other["data"] and bool(ours) == bool(theirs) and all(ours[key] == theirs[key] for key in both)


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
    if record["code"] is None or record["code"] != chosen["code"].iloc[0]:  # two of unknown code may differ
        return OTHER_CODE
    if record["rounds"] < FEWEST_ROUNDS <= chosen["rounds"].min():
        return f"fewer than {FEWEST_ROUNDS} rounds"
    if record["time_state"] != chosen["time_state"].iloc[0]:
        return str(record["time_state"])
    newest = max(chosen.to_dict("records"), key=lambda record: str(record["started"]))
    return OTHER_SPEED if _same_work(record, newest) else OTHER_WORK


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
        "seconds": tuple(own for row in rows for own in row["seconds"]),
        "processes": len(pairs),
        "rounds": sum(map(len, rounds)),
        "least": min(map(len, rounds)),
        "quotient": any(row["quotient"] for row in rows),
        "median_seconds_per_1k_steps": median,
        "q25": low,
        "q75": high,
        "started": max(row["started"] for row in rows),
        "time_state": next((state for state in states if state != "clear"), "clear"),
    }


def _interval(pairs: list[Interval]) -> Interval:
    """Return the interval over processes, or that of the only process."""
    return pairs[0] if len(pairs) == 1 else over_processes([pair.ratio for pair in pairs])


def machine(row: Row) -> str:
    """Return the name of a row's processor, with the machine's identity in parentheses if the records have it."""
    processor = str(row["processor"])
    return processor if row["machine"] == processor else f"{processor} ({identity(row['machine'], processor)})"


def identity(machine: str, processor: str) -> str:
    """Return a machine's identity without the name of its GPU, which is the processor of runs on a GPU."""
    return machine.removesuffix(f", {processor}")


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
    few, fewest = int(compared["rounds"].min()), int(compared["least"].min())
    if few < FEWEST_ROUNDS:
        return f"{text}, only {few} rounds"
    return text if fewest >= FEWEST_OF_A_PROCESS else f"{text}, one of them with only {fewest} rounds"


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


def grouped(jobs: Mapping[str, config.Job], reference: str) -> list[list[str]]:
    """Return the series that each process times: groups of at most ``MOST_AT_ONCE``, each with the reference.

    With more than ``MOST_AT_ONCE`` series, a group has one implementation, eager or fused. If the reference's norm is
    also among the series with this implementation, each of its groups contains this series too, so that every norm is
    measured in one process with it.
    """
    impls = {series: job.norm.impl for series, job in jobs.items()}
    if len(impls) <= MOST_AT_ONCE:
        return [[reference, *(name for name in impls if name != reference)]]
    groups: list[list[str]] = []
    for impl in dict.fromkeys([impls[reference], *impls.values()]):
        same = [name for name, other in impls.items() if other == impl and name != reference]
        shared = [reference, *(name for name in same if names.without_impl(name) == names.without_impl(reference))]
        others = [name for name in same if name not in shared]
        count = max(1, math.ceil(len(others) / (MOST_AT_ONCE - len(shared))))
        size = max(1, math.ceil(len(others) / count))
        groups += [[*shared, *others[start : start + size]] for start in range(0, max(1, len(others)), size)]
    return [group for group in groups if len(group) > 1]
