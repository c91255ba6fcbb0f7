"""Time saved per training step, from interleaved timings at scale=small.

A group is what may stand in one table: one machine and one number of threads. Of several records of a task it has the
one of most processes; of these one with enough rounds and clear times, and then the newest.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from readme_blocks.evidence import TASKS, Evidence
from readme_blocks.text import listed, paragraphs, plural, sentences, table, tasks
from rmsexp.compare import paper
from rmsexp.compare.records import timing_records
from rmsexp.compare.records.ratios import Interval
from rmsexp.compare.tables import formats
from rmsexp.readers import read_json

ENOUGH = 20  # rounds, below which an interval says little
EAGER = ("rms", "prms", "none")


class Group(NamedTuple):
    """The chosen records of one machine and number of threads, in the order of ``TASKS``.

    Attributes:
        place: the folder of the machine.
        machine: its name for people.
        threads: the number of threads.
        torch: the versions of torch.
        records: the rows of each task's record.
    """

    place: str
    machine: str
    threads: int
    torch: str
    records: dict[str, pd.DataFrame]

    @property
    def processes(self) -> int:
        return min(_processes(rows) for rows in self.records.values())

    @property
    def rounds(self) -> list[int]:
        return [int(rows["rounds"].min()) for rows in self.records.values()]

    @property
    def started(self) -> str:
        return max(str(rows["started"].iloc[0]) for rows in self.records.values())


def groups(evidence: Evidence, kind: str = "steps", needed: str = "rms") -> list[Group]:
    """Return the groups: those of most processes first, then of most tasks, of one thread, and the newest.

    ``needed``: a series that the records must have.
    """
    timings = evidence.timings
    suited = timings[(timings["kind"] == kind) & (timings["setting"] == "small") & (timings["reference"] == "ln")]
    suited = suited[suited["folder"].isin(suited.loc[suited["series"] == needed, "folder"])]
    found = []
    for (place, _, threads), rows in suited.groupby(["place", "machine", "threads"], sort=True):
        records = {task: _best(rows[rows["task"] == task]) for task in TASKS if (rows["task"] == task).any()}
        name = str(rows["processor"].iloc[0])
        torch = listed(sorted({str(chosen["torch"].iloc[0]) for chosen in records.values()}))
        found.append(Group(place, name, int(threads), torch, records))
    found.sort(key=lambda group: (group.processes, len(group.records), -group.threads, group.started), reverse=True)
    return found


def _processes(rows: pd.DataFrame) -> int:
    return int(rows["processes"].min())


def _best(rows: pd.DataFrame) -> pd.DataFrame:
    def rank(record: pd.DataFrame) -> tuple[object, ...]:
        first = record.iloc[0]
        return _processes(record), first["rounds"] >= ENOUGH, first["time_state"] == "clear", str(first["started"])

    return max((record for _, record in rows.groupby("folder", sort=True)), key=rank)


def ratio(record: pd.DataFrame, series: str, reference: str = "ln") -> Interval | None:
    """Return the time of a series relative to another one of its record; None if no process measured both."""
    if not {series, reference} <= set(record["series"]):
        return None
    rows = record.to_dict("records")
    if reference != record["reference"].iloc[0]:
        folder = record["folder"].iloc[0]
        stored = _only(read_json(Path(folder, timing_records.FILE)), {series, reference})
        if stored is None:
            return _quotient(ratio(record, series), ratio(record, reference))
        rows = timing_records.rows(stored | {"reference": reference}, folder)
    row = next((row for row in rows if row["series"] == series), None)
    return Interval(row["ratio"], row["low"], row["high"]) if row else None


def _only(stored: dict[str, Any], names: set[str]) -> dict[str, Any] | None:
    """Return a timing record with these series only, from the processes that have them all; None without such ones."""
    series = [one for one in stored["series"] if one["series"] in names]
    if "processes" not in stored:  # format 1: one process has all series
        return stored | {"series": series}
    processes = [
        process | {"seconds": {name: process["seconds"][name] for name in names}}
        for process in stored["processes"]
        if names <= set(process["seconds"])
    ]
    return stored | {"series": series, "processes": processes} if processes else None


def _quotient(one: Interval | None, other: Interval | None) -> Interval | None:
    """Return the quotient of two ratios from different processes, whose errors are independent.

    The half widths of the intervals of the logarithms add in quadrature.
    """
    if one is None or other is None:
        return None
    half = math.hypot(*(math.log(interval.high / interval.low) / 2 for interval in (one, other)))
    value = one.ratio / other.ratio
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def _saving(found: Interval | None) -> str:
    return formats.NO_VALUE if found is None else formats.saving(1 - found.ratio, 1 - found.high, 1 - found.low)


def _paper(task: str, norm: str) -> str:
    published = paper.savings(task)
    values = published.loc[published["norm"] == norm, "saving"]
    return f"{', '.join(f'{100 * value:.1f}' for value in values)} %"


def readme(evidence: Evidence) -> str:
    """The time that RMSNorm saves: the first group."""
    group = groups(evidence)[0]
    rows = [
        {
            "task": f"`{task}`",
            "RMSNorm saves": _saving(ratio(record, "rms")),
            "in the paper": _paper(task, "rms"),
        }
        for task, record in group.records.items()
    ]
    heading = (
        f"Time saved per training step against LayerNorm, with 95 % intervals, at `scale=small` on "
        f"{plural(group.threads, 'thread')} of {group.machine}, with norms of elementary operations "
        "(`norm.impl=eager`)."
    )
    return paragraphs(f"{heading} {replication(group)}", table(rows), sentences(*_fused(group)))


def replication(group: Group) -> str:
    """Return how the intervals of a group come about."""
    if group.processes > 1:
        return f"Each value is the mean of {plural(group.processes, 'process')}, with a t-interval over processes."
    return (
        "Each value is from one process and not replicated: in another process it may differ by more than its interval."
    )


def _fused(group: Group) -> list[str]:
    """Return a sentence on the savings of fused RMSNorm against fused LayerNorm, if they were timed."""
    found = _known({task: _fused_ratio(record) for task, record in group.records.items()})
    if not found:
        return []
    saved = [100 * (1 - interval.ratio) for interval in found.values()]
    text = f"With [fused norms](docs/performance.md#eager-and-fused), RMSNorm saves {min(saved):.1f} to "
    text += f"{max(saved):.1f} % against LayerNorm"
    unclear = [task for task, interval in found.items() if interval.low <= 1 <= interval.high]
    return [f"{text}; the interval contains 0 on {tasks(unclear)}." if unclear else f"{text}."]


def _fused_ratio(record: pd.DataFrame) -> Interval | None:
    return ratio(record, "rms+impl=fused", "ln+impl=fused")


def _known(found: dict[str, Interval | None]) -> dict[str, Interval]:
    return {task: interval for task, interval in found.items() if interval is not None}


def timing_page(evidence: Evidence) -> str:
    """A table for each group, and what they have in common."""
    found = groups(evidence)
    parts = [part for group in found for part in (_heading(group), _group_table(evidence, group), _shares(group))]
    return paragraphs(*parts, _common(found))


def _heading(group: Group) -> str:
    threads = plural(group.threads, "thread")
    fewest = min(group.rounds)
    few = [task for task, rounds in zip(group.records, group.rounds, strict=True) if rounds < ENOUGH]
    doubt = f"The intervals of {tasks(few)} are from fewer than {ENOUGH} rounds, so they are less reliable."
    return sentences(
        f"**{group.machine}, {threads}, `impl=eager`, torch {group.torch}** (`{group.place}`).",
        replication(group),
        doubt if fewest < ENOUGH else "",
    )


def _group_table(evidence: Evidence, group: Group) -> str:
    rows = []
    for task, record in group.records.items():
        text = f"{plural(int(record['rounds'].min()), 'round')}, {plural(_processes(record), 'process')}"
        rows.append(
            {
                "task": f"`{task}`",
                "RMSNorm saves": _saving(ratio(record, "rms")),
                "RMSNorm in the paper": _paper(task, "rms"),
                "pRMSNorm saves": _saving(ratio(record, "prms")),
                "pRMSNorm in the paper": _paper(task, "prms"),
                "a model without norm saves": _saving(ratio(record, "none")),
                "record": evidence.link(text, record["folder"].iloc[0]),
            }
        )
    return table(rows)


def _shares(group: Group) -> str:
    """Return which share of LayerNorm's cost RMSNorm saves, and where pRMSNorm is faster or slower than RMSNorm."""
    shares = {}
    for task, record in group.records.items():
        rms, none = ratio(record, "rms"), ratio(record, "none")
        if rms and none and none.high < 1:
            shares[task] = 100 * (1 - rms.ratio) / (1 - none.ratio)
    against = _known({task: ratio(record, "prms", "rms") for task, record in group.records.items()})
    faster = [task for task, interval in against.items() if interval.high < 1]
    slower = [task for task, interval in against.items() if interval.low > 1]
    lines = []
    if shares:
        least, most = min(shares, key=lambda task: shares[task]), max(shares, key=lambda task: shares[task])
        lines.append(
            f"Of the time that LayerNorm adds to a step, RMSNorm saves {shares[least]:.0f} % (`{least}`) to "
            f"{shares[most]:.0f} % (`{most}`)."
        )
    if against:
        words = [f"{word} on {tasks(names)}" for word, names in (("less", faster), ("more", slower)) if names]
        verb = f"takes {listed(words)}" if words else "is not separated from RMSNorm on any task"
        lines.append(f"Against RMSNorm, a step with pRMSNorm {verb} (95 % intervals that exclude equality).")
    return sentences(*lines)


def _common(found: list[Group]) -> str:
    """Return the range of RMSNorm's savings over all groups, beside the paper's."""
    intervals = [ratio(record, "rms") for group in found for record in group.records.values()]
    saved = [100 * (1 - interval.ratio) for interval in intervals if interval]
    published = [100 * value for task in TASKS for value in paper.savings(task).query("norm == 'rms'")["saving"]]
    clear = sum(interval.high < 1 for interval in intervals if interval)
    several = {task: list(paper.savings(task).query("norm == 'rms'")["framework"]) for task in TASKS}
    return sentences(
        *(
            f"The paper's numbers for `{task}` are of its implementations in {listed(frameworks)}, in this order."
            for task, frameworks in several.items()
            if len(frameworks) > 1
        ),
        f"In these {len(intervals)} comparisons RMSNorm saves {min(saved):.1f} to {max(saved):.1f} % of LayerNorm's "
        f"step time, and the interval lies above 0 in {clear} of them; in the paper it saves {min(published):.1f} to "
        f"{max(published):.1f} %.",
        "The saving depends on how much of a step the norm takes: a norm can save at most what a model without norm "
        "saves.",
    )


def layers(evidence: Evidence) -> str:
    """The times of norm layers alone."""
    parts = []
    for group in groups(evidence, "layers"):
        rows = [
            {
                "task": f"`{task}`",
                "RMSNorm saves": _saving(ratio(record, "rms")),
                "pRMSNorm saves": _saving(ratio(record, "prms")),
                "record": evidence.link(plural(int(record["rounds"].min()), "round"), record["folder"].iloc[0]),
            }
            for task, record in group.records.items()
        ]
        parts += [_heading(group), table(rows)]
    return paragraphs(*parts)


def fused(evidence: Evidence) -> str:
    """Fused and eager steps, relative to eager LayerNorm; fused norms relative to each other."""
    parts = []
    for group in groups(evidence, needed="rms+impl=fused"):
        head = f"**{group.machine}, {plural(group.threads, 'thread')}, torch {group.torch}** (`{group.place}`)."
        rows = [_fused_row(task, record) for task, record in group.records.items()]
        parts += [sentences(head, replication(group)), table(rows)]
    return paragraphs(*parts)


def _fused_row(task: str, record: pd.DataFrame) -> dict[str, str]:
    def text(series: str, reference: str) -> str:
        found = ratio(record, series, reference)
        return formats.NO_VALUE if found is None else formats.ratio(found)

    return {
        "task": f"`{task}`",
        "RMSNorm fused / eager": text("rms+impl=fused", "rms"),
        "LayerNorm fused / eager": text("ln+impl=fused", "ln"),
        "RMSNorm / LayerNorm, both fused": text("rms+impl=fused", "ln+impl=fused"),
        "RMSNorm / no norm, both fused": text("rms+impl=fused", "none+impl=fused"),
        "RMSNorm / LayerNorm, both eager": text("rms", "ln"),
    }
