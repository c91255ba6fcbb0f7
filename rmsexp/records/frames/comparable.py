"""Which times may stand in one table, and which of several timing records of the same norms it shows.

All tables and figures of times ask this module, so they follow the same rules:

- Times in one table share a *clock*: the task and setting, what was timed, the machine, the number of threads, the
  precision, the version of torch, and the implementation of the norms.
- Of the records of one clock, those are best that have several processes, then enough rounds, then those undisturbed.
  The newest of the best is shown, pooled with those of the best that have the same code, data, configs and sources of
  the user's own norms. The others are listed beside the table.
- A norm is compared with LayerNorm of the same implementation. Fused norms are compared with eager ones only in a table
  of their own.
- Only the processes count that timed a norm and its baseline together. Where none did, because a record's groups of
  series share only its reference, the ratio is the quotient of their ratios to the reference.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from rmsexp.records.frames import names, time_states, timing_records
from rmsexp.rules.ratios import FEWEST_ROUNDS, Interval, paired_ratio

# rounds per process: the fewest at which scripts/timing_coverage.py measured what the interval over processes covers
FEWEST_OF_A_PROCESS = 5
MOST_AT_ONCE = 4  # series that a process times; with more, each finds less of its data in the caches
CLOCK = ("task", "setting", "kind", "machine", "threads", "precision", "torch")
OTHER_CODE = "made by other code"
OTHER_WORK = "with another config, own norm or data"

Row = dict[Any, Any]


class Comparison(NamedTuple):
    """Times under the same conditions (one *clock*), each relative to a baseline that was timed in the same rounds.

    Attributes:
        rows: one row per series, over all records that are pooled: the columns of
            :func:`rmsexp.records.frames.timing_records.load`, and ``baseline``, the series to which ``ratio``, ``low``,
            ``high`` and ``estimates`` are relative; ``least``, the smallest number of rounds of a process; and
            ``quotient``: whether a pooled record has no process that timed the series together with its baseline.
        records: one row per timing record of the clock, the newest first: ``folder``, ``started``, ``code``,
            ``commit``, ``dirty``, ``time_state``, ``disturbed``; ``measured``, the number of its processes that are
            compared; ``processes`` and ``rounds``, the least of its series; ``ratios``, by series, relative to the
            baseline, with their intervals; ``left_out``, the reason why the record is not in ``rows``, or ""; and
            ``quality``, ``data``, ``workloads``, from which the reason follows.
    """

    rows: pd.DataFrame
    records: pd.DataFrame

    @property
    def compared(self) -> pd.DataFrame:
        """The rows without the baselines themselves."""
        return self.rows[self.rows["series"] != self.rows["baseline"]]

    @property
    def pooled(self) -> pd.DataFrame:
        """The timing records that are pooled in ``rows``: those whose ``left_out`` is empty."""
        return self.records[self.records["left_out"] == ""]


def comparisons(timings: pd.DataFrame, baseline: str = "ln", kind: str = "steps") -> list[Comparison]:
    """Return the comparisons with a baseline of the same implementation, one for each ``CLOCK`` and implementation.

    They are sorted by task, setting and implementation (eager first), and then by rank. Records without this baseline
    are left out. ``baseline``: a series without its implementation. ``kind``: what was timed, a key of
    :data:`rmsexp.records.frames.timing_records.KINDS`.
    """
    found: list[Comparison] = []
    for impl in sorted(timings["impl"].unique(), key=lambda impl: (impl != "eager", impl)):
        found += _comparisons(timings[(timings["kind"] == kind) & (timings["impl"] == impl)], lambda _: baseline)
    return sorted(found, key=lambda comparison: tuple(comparison.rows.iloc[0][["task", "setting"]]))


def fused_against_eager(timings: pd.DataFrame) -> list[Comparison]:
    """Return the comparisons of norms with their own eager form, as ln+impl=fused with ln, one for each ``CLOCK``."""
    return _comparisons(timings[timings["kind"] == "steps"], names.without_impl)


def _comparisons(timings: pd.DataFrame, baseline_of: Callable[[str], str]) -> list[Comparison]:
    """Return a comparison for each ``CLOCK`` with a series that was timed with its baseline, the best rank first.

    ``baseline_of``: gives the baseline of a series, without its implementation.
    """
    by_clock: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in timings.to_dict("records"):
        by_clock.setdefault(tuple(row[key] for key in CLOCK), {}).setdefault(row["folder"], []).append(row)
    found = []
    for _, by_folder in sorted(by_clock.items()):
        records = [_against_baselines(record, baseline_of) for _, record in sorted(by_folder.items())]
        if measured := [record for record in records if record]:
            found.append(_comparison(measured))
    return sorted(found, key=lambda comparison: rank(comparison.pooled), reverse=True)


def _against_baselines(record: list[Row], baseline_of: Callable[[str], str]) -> list[Row]:
    """Return those rows of a record whose baselines are in it, and add ``baseline``, ``pairs`` and ``quotient``.

    A baseline to which no other series is relative has no row. Of a norm timed eager and fused, the eager series is the
    baseline.

    ``pairs``: the ratios to the baseline in each process that timed both; if ``quotient``, the quotients of the ratios
    to the record's reference, without intervals. Times, states and counts are of the processes that timed any series
    together with its baseline; of all processes if a series has a quotient.
    """
    by_norm: dict[str, Row] = {}
    for row in sorted(record, key=lambda row: row["impl"] != "eager"):
        by_norm.setdefault(names.without_impl(row["series"]), row)
    of_rows = [(row, base) for row in record if (base := by_norm.get(baseline_of(row["series"])))]
    together = {row["series"]: _together(row, base) for row, base in of_rows if row is not base}
    shown = {*together, *(base["series"] for row, base in of_rows if row is not base)}
    used = set(range(len(record[0]["seconds"])))
    if all(together.values()):
        used = {number for numbers in together.values() for number in numbers}
    found = []
    for row, base in of_rows:
        if row["series"] in shown:
            seconds = tuple(own if number in used else None for number, own in enumerate(row["seconds"]))
            sessions = [session for number, session in enumerate(row["sessions"]) if number in used]
            both = [number for number in _together(row, base) if number in used]
            ratios = [paired_ratio(row["seconds"][number], base["seconds"][number]) for number in both]
            through_reference = zip(row["estimates"], base["estimates"], strict=False)
            found.append(
                row
                | {"seconds": seconds, "rounds": sum(len(own) for own in seconds if own is not None)}
                | {"measured": len(used), "time_state": time_states.timing_state(sessions)}
                | {"disturbed": time_states.disturbed(sessions), "baseline": base["series"], "quotient": not ratios}
                | {"pairs": ratios or [Interval(own / other, math.nan, math.nan) for own, other in through_reference]}
            )
    return found


def _together(row: Row, base: Row) -> list[int]:
    """Return the numbers of the processes of a record that timed both series."""
    both = enumerate(zip(row["seconds"], base["seconds"], strict=True))
    return [number for number, (own, other) in both if own is not None and other is not None]


def _comparison(measured: list[list[Row]]) -> Comparison:
    """Return the comparison of one clock. ``measured``: the rows of each record, see :func:`_against_baselines`."""
    records = list(map(_record, measured))
    best = max(record["quality"] for record in records)
    newest = max((each for each in records if each["quality"] == best), key=lambda record: str(record["started"]))
    for record in records:
        record["left_out"] = _reason(record, newest)
    pooled = {record["folder"] for record in records if not record["left_out"]}
    rows = [row for rows in measured for row in rows if row["folder"] in pooled]
    series = names.in_order(row["series"] for row in rows)
    by_series = pd.DataFrame([_pooled([row for row in rows if row["series"] == name]) for name in series])
    return Comparison(by_series, pd.DataFrame(records).sort_values("started", ascending=False, ignore_index=True))


def _record(rows: list[Row]) -> Row:
    """Return the row of a record. ``quality``: what makes it better than another, the most important first."""
    first, compared = rows[0], [row for row in rows if row["series"] != row["baseline"]]
    keys = ("folder", "started", "code", "commit", "dirty", "data", "time_state", "disturbed", "measured")
    processes, rounds = min(len(row["pairs"]) for row in compared), min(row["rounds"] for row in compared)
    return {key: first[key] for key in keys} | {
        "processes": processes,
        "rounds": rounds,
        "quality": (processes > 1, rounds >= FEWEST_ROUNDS, first["time_state"] == "undisturbed"),
        "ratios": {row["series"]: timing_records.over(row["pairs"]) for row in rows},
        "workloads": {row["series"]: row["workload"] for row in rows if isinstance(row["workload"], str)},
    }


def _reason(record: Row, newest: Row) -> str:
    """Return why a record is not pooled with the ``newest`` of the best; "" if it is."""
    if record["code"] != newest["code"]:
        return OTHER_CODE
    words = timing_records.replication(1), f"fewer than {FEWEST_ROUNDS} rounds", str(record["time_state"])
    for word, own, best in zip(words, record["quality"], newest["quality"], strict=True):
        if own < best:
            return word
    ours, theirs = record["workloads"], newest["workloads"]
    same_work = all(ours[series] == theirs[series] for series in ours.keys() & theirs.keys())
    return "" if record["data"] == newest["data"] and same_work else OTHER_WORK


def rank(records: pd.DataFrame) -> tuple[object, ...]:
    """Return a key to sort sets of pooled records by quality, then date; the best set has the greatest key."""
    return *records["quality"].iloc[0], str(records["started"].max())


def _pooled(rows: list[Row]) -> Row:
    """Return one row for a series, from its rows in all records that are pooled."""
    seconds = [own for row in rows for own in row["seconds"] if own is not None]
    states = [row["time_state"] for row in rows]
    return {
        **{key: value for key, value in rows[0].items() if key != "pairs"},
        **timing_records.pooled(seconds, [pair for row in rows for pair in row["pairs"]]),
        "seconds": tuple(own for row in rows for own in row["seconds"]),
        "least": min(map(len, seconds)),
        "quotient": any(row["quotient"] for row in rows),
        "started": max(row["started"] for row in rows),
        "time_state": next((state for state in states if state != "undisturbed"), "undisturbed"),
    }


def machine(row: Row) -> str:
    """Return the name of a row's processor, with the machine's id in parentheses if the records have it.

    On a GPU the processor is the GPU, whose name is cut from the end of the id.
    """
    processor, identity = str(row["processor"]), str(row["machine"])
    return processor if identity == processor else f"{processor} ({identity.removesuffix(f', {processor}')})"


def clock(comparison: Comparison) -> str:
    """Return a comparison's conditions, as in "interleaved, eager, 1 thread, AMD EPYC, torch 2.9.0, 6 processes"."""
    row = comparison.rows.iloc[0].to_dict()
    impls = " and ".join(comparison.rows["impl"].unique())
    software = f"{threads(row['threads'])}, {machine(row)}, torch {row['torch']}"
    return f"interleaved, {impls}{precision(row['precision'])}, {software}, {replication(comparison)}"


def precision(name: object) -> str:
    """Return the precision to be added to a heading, such as ", bfloat16"; "" for float32."""
    return "" if name == names.FLOAT32 else f", {name}"


def threads(number: float) -> str:
    """Return the number of threads for headings."""
    return "1 thread" if number == 1 else f"{number:.0f} threads"


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
    """Return the short commit of a timing record, followed by "with uncommitted changes" if there were any."""
    return f"{str(record['commit'])[:7]}{' with uncommitted changes' * (record['dirty'] is True)}"


def notes(comparison: Comparison) -> list[str]:
    """Return the caption of a comparison: lines on conditions, on data, code and date, and on disturbed processes."""
    row, records = comparison.rows.iloc[0], comparison.pooled.to_dict("records")
    commits = sorted({commit(record) for record in records})
    dates = sorted({str(record["started"])[:10] for record in records})
    return [
        clock(comparison),
        f"{timing_records.data(row)}; {', '.join(commits)}; {' and '.join(dates)}",
        *caution(comparison),
    ]


def caution(comparison: Comparison) -> list[str]:
    """Return a line that counts the disturbed processes; none if all are known to be undisturbed."""
    states, records = sorted(set(comparison.rows["time_state"]) - {"undisturbed"}), comparison.pooled
    disturbed = int(records["disturbed"].sum())
    if not states and not disturbed:
        return []
    share = timing_records.disturbance(states, disturbed, int(records["measured"].sum()))
    return [f"{share}{f': {timing_records.SLOWED}' * bool(states)}"]


def grouped(impls: Mapping[str, str], reference: str) -> list[list[str]]:
    """Return the series that each process times: groups of at most ``MOST_AT_ONCE``, each with the reference.

    With more than ``MOST_AT_ONCE`` series, all series of a group but the reference have the same implementation. If the
    reference's norm also has a series of this implementation, every such group contains that series, so that it is
    timed in one process with each norm. ``impls``: the implementation by series, also of the reference.
    """
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
