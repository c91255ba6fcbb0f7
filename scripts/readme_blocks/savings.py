"""Time saved per training step, from interleaved timings at scale=small, and on GPUs in any setting.

A group is what may stand in one table: one machine and one number of threads. Of several records of a task it has
those that reports use, too (:mod:`rmsexp.records.frames.comparable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pandas as pd

from readme_blocks.evidence import TASKS, Evidence
from readme_blocks.text import listed, paragraphs, plural, sentences, table, tasks
from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.comparable import FEWEST_OF_A_PROCESS
from rmsexp.report import paper
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import FEWEST_ROUNDS, Interval

RMS_FUSED_AND_EAGER = ("rms+impl=fused", "rms")
FUSED = "with [fused norms](docs/performance.md#eager-and-fused)"
TIMING = "docs/timing.md"
CLEAR = "The time state of all records is clear."


class Group(NamedTuple):
    """The chosen records of one machine and number of threads, in the order of ``TASKS``.

    Attributes:
        place: the folder of the machine.
        machine: its name for people, with its identity if the records have it.
        threads: the number of threads.
        torch: the versions of torch.
        records: the rows of each task's records, which are pooled.
        processes, rounds: for each task, their number.
        least: for each task, the smallest number of rounds of a process.
    """

    place: str
    machine: str
    threads: int
    torch: str
    records: dict[str, pd.DataFrame]
    processes: dict[str, int]
    rounds: dict[str, int]
    least: dict[str, int]

    @property
    def started(self) -> str:
        return max(str(rows["started"].max()) for rows in self.records.values())


def groups(evidence: Evidence, kind: str = "steps", needed: str = "rms") -> list[Group]:
    """Return the groups at scale=small: those of most processes first, then of most tasks, one thread, and the newest.

    ``needed``: a series that the records must have, beside LayerNorm of its implementation.
    """
    return _grouped(evidence.timings[evidence.timings["setting"] == "small"], kind, needed)


def _grouped(timings: pd.DataFrame, kind: str, needed: str) -> list[Group]:
    suited = timings[timings["folder"].isin(timings.loc[timings["series"] == needed, "folder"])]
    found = []
    for (place, _, threads), rows in suited.groupby(["place", "machine", "threads"], sort=True):
        own = rows[rows["impl"] == rows.loc[rows["series"] == needed, "impl"].iloc[0]]
        best = {
            task: chosen[0] for task in TASKS if (chosen := comparable.comparisons(own[own["task"] == task], kind=kind))
        }
        if not best:
            continue
        records = {task: rows[rows["folder"].isin(chosen.pooled["folder"])] for task, chosen in best.items()}
        name = comparable.machine(rows.iloc[0].to_dict())
        torch = listed(sorted({str(chosen["torch"].iloc[0]) for chosen in records.values()}))
        processes, rounds, least = (
            {task: int(chosen.compared[column].min()) for task, chosen in best.items()}
            for column in ("processes", "rounds", "least")
        )
        found.append(Group(place, name, int(threads), torch, records, processes, rounds, least))
    found.sort(key=_order, reverse=True)
    return found


def _order(group: Group) -> tuple[int, int, int, str]:
    return min(group.processes.values()), len(group.records), -group.threads, group.started


def _saving(found: Interval | None) -> str:
    return formats.NO_VALUE if found is None else formats.saved(found)


def _paper(task: str, norm: str) -> str:
    published = paper.savings(task)
    values = published.loc[published["norm"] == norm, "saving"]
    return f"{', '.join(f'{100 * value:.1f}' for value in values)} %" if len(values) else formats.NO_VALUE


def readme(evidence: Evidence) -> str:
    """A table of the time that RMSNorm saves with eager and, if they were timed, fused norms: the first group."""
    group = groups(evidence)[0]
    fused_group = _fused_group(evidence, group)
    fused_records = fused_group.records if fused_group else {}
    fused = {task: _saving(_fused_ratio(record)) for task, record in fused_records.items()}
    every = replicated(groups(evidence))
    rows = [
        {
            "task": f"`{task}`",
            "RMSNorm saves": _saving(ratio(record, "rms")),
            "on all machines": range_of(ratios_of(every, task, "rms")),
            "in the paper": _paper(task, "rms"),
            **({FUSED: fused.get(task, formats.NO_VALUE)} if fused else {}),
        }
        for task, record in group.records.items()
    ]
    states = listed(sorted({state for record in group.records.values() for state in _states(record, ["eager"])}))
    heading = (
        f"Time saved per training step against LayerNorm (95 % intervals), unfused, `scale=small`, "
        f"{plural(group.threads, 'thread')} of {group.machine}, "
        f"[interleaved]({TIMING}#how-interleaved-timing-works), time state [{states}]({TIMING}#what-contended-means)."
    )
    known = [one for one in (group, fused_group) if one]
    single = [replication(one) for one in known if min(one.processes.values()) == 1]
    doubts = [_time_state(fused_group, ["fused"])] if fused_group else []
    machines = plural(len({(one.place, one.machine) for one in every}), "machine")
    over = (
        f"On all machines: [lowest to highest]({TIMING}#results) of {plural(len(every), 'measurement')} on {machines}."
    )
    lines = [
        over,
        *single,
        *(f"Fused: {doubt[0].lower()}{doubt[1:]}" for doubt in doubts if doubt != CLEAR),
        *_cost(evidence),
    ]
    return paragraphs(heading, table(rows), " ".join(lines))


def ratios_of(found: Sequence[Group], task: str, norm: str) -> list[Interval]:
    """Return the ratio of an eager norm to LayerNorm in each group that timed it on a task."""
    known = [ratio(group.records[task], norm) for group in found if task in group.records]
    return [interval for interval in known if interval]


def range_of(intervals: Sequence[Interval]) -> str:
    """Return the lowest and the highest saving, such as "3.1 to 5.0 %"."""
    saved = [100 * (1 - interval.ratio) for interval in intervals]
    return f"{min(saved):.1f} to {max(saved):.1f} %"


def _cost(evidence: Evidence) -> list[str]:
    """Return what LayerNorm costs and which share of that RMSNorm saves, for eager and fused norms, as sentences."""
    lines = []
    for name, suffix in (("Unfused", ""), ("Fused", "+impl=fused")):
        records = [
            record for group in replicated(groups(evidence, needed=f"rms{suffix}")) for record in group.records.values()
        ]
        known = [found for record in records if (found := _cost_and_share(record, suffix))]
        if known:
            costs, shares = zip(*known, strict=True)
            lines.append(
                f"{name}, LayerNorm takes {_range_of_shares(costs)} % of a step, of which RMSNorm saves "
                f"{_range_of_shares(shares)} % (median {100 * median(shares):.0f} %)."
            )
    return lines


def _range_of_shares(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f}"


def _cost_and_share(record: pd.DataFrame, suffix: str = "") -> tuple[float, float] | None:
    """Return which share of a step LayerNorm takes, and which share of that RMSNorm saves, as fractions.

    None if one is not known, or LayerNorm may cost nothing. ``suffix``: the implementation, such as "+impl=fused".
    """
    rms, none = (ratio(record, f"{norm}{suffix}", f"ln{suffix}") for norm in ("rms", "none"))
    if rms is None or none is None or none.high >= 1:
        return None
    return 1 - none.ratio, (1 - rms.ratio) / (1 - none.ratio)


def _fused_group(evidence: Evidence, group: Group) -> Group | None:
    """Return the group of fused norms that were timed on the machine and with the threads of a group.

    Its records may be others: each group has the records in which its own norms were timed best.
    """
    clock = (group.place, group.machine, group.threads)
    found = groups(evidence, needed=RMS_FUSED_AND_EAGER[0])
    return next((other for other in found if (other.place, other.machine, other.threads) == clock), None)


def replication(group: Group) -> str:
    """Return how the intervals of a group come about."""
    several = {task: count for task, count in group.processes.items() if count > 1}
    least, most = min(several.values(), default=1), max(several.values(), default=1)
    means = f"{plural(least, 'process') if least == most else f'{least} to {most} processes'} (t-intervals)"
    single = f"from {timing_records.replication(1)}: another process may differ by more than the interval."
    if not several:
        return f"Each value is {single}"
    if len(several) == len(group.processes):
        return f"Each value is the mean of {means}."
    return f"The values of {tasks(list(several))} are means of {means}. Each other value is {single}"


def _fused_ratio(record: pd.DataFrame) -> Interval | None:
    return ratio(record, "rms+impl=fused", "ln+impl=fused")


def _known(found: dict[str, Interval | None]) -> dict[str, Interval]:
    return {task: interval for task, interval in found.items() if interval is not None}


def replicated(found: list[Group]) -> list[Group]:
    """Return the groups whose tasks were all timed in several processes; all groups if there are none."""
    return [group for group in found if min(group.processes.values()) > 1] or found


def timing_page(evidence: Evidence) -> str:
    """A table for each group, and what they have in common."""
    found = replicated(groups(evidence))
    parts = [part for group in found for part in (_heading(group), _group_table(evidence, group), _shares(group))]
    return paragraphs(*parts, _common(found))


def gpu_page(evidence: Evidence) -> str:
    """A table for each GPU and number of threads; further ones if a task was timed in several settings."""
    timings = evidence.timings
    timings = timings[timings["sessions"].map(lambda sessions: sessions[0].get("device_type") == "cuda")]
    number = timings.groupby("task")["setting"].transform(lambda settings: pd.factorize(settings, sort=True)[0])
    found = [group for _, rows in timings.groupby(number) for group in _grouped(rows, "steps", "rms")]
    return paragraphs(*(part for group in found for part in (_heading(group), _group_table(evidence, group))))


def _heading(group: Group, impls: Sequence[str] = ("eager",)) -> str:
    """Return the heading of a table of norms of these implementations, and how they were timed."""
    clock = ", ".join([plural(group.threads, "thread"), *(["`impl=eager`"] if impls == ("eager",) else [])])
    return sentences(
        f"**{group.machine}, {clock}, torch {group.torch}** (`{group.place}`).",
        replication(group),
        _method(group),
        _time_state(group, impls),
        *_doubts(group),
    )


def _doubts(group: Group) -> list[str]:
    """Return a sentence on the intervals of one process from few rounds, and one on processes with few rounds."""
    single = [task for task, rounds in group.rounds.items() if group.processes[task] == 1 and rounds < FEWEST_ROUNDS]
    several = [task for task, least in group.least.items() if group.processes[task] > 1 and least < FEWEST_OF_A_PROCESS]
    few = f"The intervals of {tasks(single)} are from fewer than {FEWEST_ROUNDS} rounds, so they are less reliable."
    rare = f"A process of {tasks(several)} has fewer than {FEWEST_OF_A_PROCESS} rounds, the fewest that were simulated."
    return [*([few] if single else []), *([rare] if several else [])]


def _method(group: Group) -> str:
    """Return how many counted steps a block had, how many series a process timed, and how old the records are."""
    rows = pd.concat(group.records.values())
    timed = [
        max(sum(seconds is not None for seconds in of_process) for of_process in zip(*record["seconds"], strict=True))
        for _, record in rows.groupby("folder")
    ]
    steps, series = _range(rows["steps_per_block"]), _range(pd.Series(timed))
    dates = listed(sorted({str(started)[:10] for started in rows["started"]}))
    return (
        f"Timed interleaved: a block has {steps} counted step{'s' if steps != '1' else ''}, a process times {series} "
        f"series. The records are of {plural(rows['code'].nunique(), 'version')} of the code, {dates}."
    )


def _states(record: pd.DataFrame, impls: Sequence[str]) -> list[str]:
    """Return the time states of the processes of a record that timed norms of these implementations."""
    own, kind = record[record["impl"].isin(impls)], record["kind"].iloc[0]
    return sorted({state for found in comparable.comparisons(own, kind=kind) for state in found.rows["time_state"]})


def _time_state(group: Group, impls: Sequence[str]) -> str:
    """Return the time state of what was timed with these implementations, and what follows where it is not clear."""
    all_states = {task: _states(record, impls) for task, record in group.records.items()}
    doubtful: dict[str, list[str]] = {}
    for task, found in all_states.items():
        if states := " and ".join(state for state in found if state != "clear"):
            doubtful.setdefault(states, []).append(task)
    if not doubtful:
        return CLEAR
    each = listed(f"{states} on {tasks(names)}" for states, names in doubtful.items())
    return f"The time state is {each}, where other work may have slowed the steps."


def _range(counts: pd.Series) -> str:
    least, most = int(counts.min()), int(counts.max())
    return f"{least}" if least == most else f"{least} to {most}"


def _group_table(evidence: Evidence, group: Group) -> str:
    rows = []
    for task, record in group.records.items():
        rows.append(
            {
                "task": f"`{task}`",
                "RMSNorm saves": _saving(ratio(record, "rms")),
                "RMSNorm in the paper": _paper(task, "rms"),
                "pRMSNorm saves": _saving(ratio(record, "prms")),
                "pRMSNorm in the paper": _paper(task, "prms"),
                "a model without norm saves": _saving(ratio(record, "none")),
                "record": _links(evidence, _rounds(group, task), record),
            }
        )
    return table(rows)


def _rounds(group: Group, task: str) -> str:
    text = plural(group.rounds[task], "round")
    if group.processes[task] == 1:
        return text
    return f"{text} in {group.processes[task]} processes, at least {group.least[task]} in each"


def _links(evidence: Evidence, text: str, records: pd.DataFrame) -> str:
    """Return a text that links to a record, or a text followed by links to several records."""
    folders = list(records["folder"].unique())
    if len(folders) == 1:
        return evidence.link(text, folders[0])
    return f"{text}: {', '.join(evidence.link(Path(folder).name, folder) for folder in folders)}"


def _shares(group: Group) -> str:
    """Return which share of LayerNorm's cost RMSNorm saves, and where pRMSNorm is faster or slower than RMSNorm."""
    shares = {task: found[1] for task, record in group.records.items() if (found := _cost_and_share(record))}
    against = _known({task: ratio(record, "prms", "rms") for task, record in group.records.items()})
    faster = [task for task, interval in against.items() if interval.high < 1]
    slower = [task for task, interval in against.items() if interval.low > 1]
    lines = []
    if shares:
        each = listed(f"{100 * share:.0f} % (`{task}`)" for task, share in shares.items())
        lines.append(f"Of the time that LayerNorm adds to a step, RMSNorm saves {each}.")
    if against:
        words = [f"{word} on {tasks(names)}" for word, names in (("less", faster), ("more", slower)) if names]
        verb = f"takes {listed(words)}" if words else "is not separated from RMSNorm on any task"
        lines.append(f"Against RMSNorm, a step with pRMSNorm {verb} (95 % intervals that exclude equality).")
    return sentences(*lines)


def _frameworks() -> list[str]:
    """Return, for each task for which the paper has several numbers, what these are of."""
    several = {task: list(paper.savings(task).query("norm == 'rms'")["framework"]) for task in TASKS}
    return [
        f"The paper's numbers for `{task}`: {', '.join(frameworks)}."
        for task, frameworks in several.items()
        if len(frameworks) > 1
    ]


def _common(found: list[Group]) -> str:
    """Return the range of RMSNorm's savings over all groups, beside the paper's."""
    intervals = [ratio(record, "rms") for group in found for record in group.records.values()]
    saved = [100 * (1 - interval.ratio) for interval in intervals if interval]
    published = [100 * value for task in TASKS for value in paper.savings(task).query("norm == 'rms'")["saving"]]
    clear = sum(interval.high < 1 for interval in intervals if interval)
    machines = plural(len({(group.place, group.machine) for group in found}), "machine")
    timed = [task for task in TASKS if ratios_of(found, task, "rms")]
    each = [f"{range_of(ratios_of(found, task, 'rms'))} (`{task}`)" for task in timed]
    return sentences(
        *_frameworks(),
        f"In these {len(intervals)} comparisons, on {machines}, RMSNorm saves {min(saved):.1f} to {max(saved):.1f} % "
        f"of LayerNorm's step time, and the interval lies above 0 in {clear} of them; in the paper it saves "
        f"{min(published):.1f} to {max(published):.1f} %.",
        f"An interval is of one machine. Over all of them RMSNorm saves {listed(each)}.",
    )


def layers(evidence: Evidence) -> str:
    """The times of norm layers alone."""
    parts = []
    for group in replicated(groups(evidence, "layers")):
        rows = [
            {
                "task": f"`{task}`",
                "RMSNorm saves": _saving(ratio(record, "rms")),
                "pRMSNorm saves": _saving(ratio(record, "prms")),
                "record": _links(evidence, _rounds(group, task), record),
            }
            for task, record in group.records.items()
        ]
        parts += [_heading(group), table(rows)]
    return paragraphs(*parts)


def fused(evidence: Evidence) -> str:
    """Fused and eager steps, relative to eager LayerNorm; fused norms relative to each other."""
    found = replicated(groups(evidence, needed="rms+impl=fused"))
    notes = [sentences(_quotients(group), _of_more(group)) for group in found]
    shared = {note for note in notes if note}  # a note that is the same for all tables that need one stands once
    parts = []
    for group, note in zip(found, notes, strict=True):
        rows = [_fused_row(task, record) for task, record in group.records.items()]
        parts += [_heading(group, ("eager", "fused")), table(rows), note if len(shared) > 1 else ""]
    return paragraphs(*parts, *(shared if len(shared) == 1 else ()), sentences(*_cost(evidence)))


def _of_more(group: Group) -> str:
    """Return a sentence on the column that is the mean of more processes than the table's heading says, if it is."""
    found = {task: processes(record, "ln+impl=fused", "ln") for task, record in group.records.items()}
    more = {task: count for task, count in found.items() if count > group.processes[task]}
    counts = plural(min(more.values()), "process") if len(set(more.values())) == 1 else "more processes"
    return f"Fused over eager LayerNorm is the mean of {counts} on {_of_all(list(more), group)}." if more else ""


def _of_all(found: list[str], group: Group) -> str:
    """Return the names of tasks of a group, or "all tasks"."""
    return "all tasks" if len(found) == len(group.records) > 1 else tasks(found)


def _quotients(group: Group) -> str:
    """Return a sentence on the column whose norms were not timed by the same processes, if there are any."""
    found = [task for task, record in group.records.items() if is_quotient(record, *RMS_FUSED_AND_EAGER)]
    if not found:
        return ""
    return (
        f"On {_of_all(found, group)}, fused and eager RMSNorm were timed in different processes, each beside eager "
        "LayerNorm; their ratio is the quotient of their ratios to it."
    )


def _fused_row(task: str, record: pd.DataFrame) -> dict[str, str]:
    def text(series: str, reference: str) -> str:
        found = ratio(record, series, reference)
        return formats.NO_VALUE if found is None else formats.ratio(found)

    known = _cost_and_share(record, "+impl=fused")
    return {
        "task": f"`{task}`",
        "RMSNorm fused / eager": text(*RMS_FUSED_AND_EAGER),
        "LayerNorm fused / eager": text("ln+impl=fused", "ln"),
        "RMSNorm / LayerNorm, both fused": text("rms+impl=fused", "ln+impl=fused"),
        "RMSNorm / no norm, both fused": text("rms+impl=fused", "none+impl=fused"),
        "of LayerNorm's cost RMSNorm saves, fused": f"{100 * known[1]:.0f} %" if known else formats.NO_VALUE,
    }


def ratio(records: pd.DataFrame, series: str, baseline: str = "ln") -> Interval | None:
    """Return the ratio of the times of two series, over all processes; None if no record has both.

    ``records``: the rows of records that are pooled, all series of each.
    """
    pairs = _pairs(records, series, baseline)
    return timing_records.over(pairs) if pairs else None


def processes(records: pd.DataFrame, series: str, baseline: str) -> int:
    """Return of how many processes :func:`ratio` is the mean."""
    return len(_pairs(records, series, baseline))


def is_quotient(records: pd.DataFrame, series: str, baseline: str) -> bool:
    """Return whether :func:`ratio` of two series is a quotient of their ratios to the reference, in some record."""
    return any(not comparable.together_in(*rows) for rows in _both(records, series, baseline))


def _pairs(records: pd.DataFrame, series: str, baseline: str) -> list[Interval]:
    return [pair for rows in _both(records, series, baseline) for pair in comparable.pairs(*rows)]


def _both(records: pd.DataFrame, series: str, baseline: str) -> list[tuple[comparable.Row, comparable.Row]]:
    """Return the rows of both series in each record that has them."""
    by_record = [dict(zip(own["series"], own.to_dict("records"), strict=True)) for _, own in records.groupby("folder")]
    return [(rows[series], rows[baseline]) for rows in by_record if {series, baseline} <= set(rows)]
