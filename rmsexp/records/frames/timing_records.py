"""Records of ``python -m rmsexp.timing``: interleaved step times of several norms, and their ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. It holds, for each process that measured
and each series, the seconds per step in each round (one block of steps); quantiles and ratios paired by round are
computed here. A series is a norm with the options that were changed.
"""

import itertools
import json
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmsexp import config
from rmsexp.records import record
from rmsexp.records.frames.names import FLOAT32, label, norm_of, without_impl
from rmsexp.records.frames.time_states import disturbed, timing_state
from rmsexp.records.record import DatasetContent, Session
from rmsexp.rules.ratios import Interval, over_processes, paired_ratio
from rmsexp.system import atomic
from rmsexp.system.command_line import recorded
from rmsexp.system.machine import of_session
from rmsexp.system.readers import Count, read_typed

FOLDER, FILE = "timing", "timing.json"
KINDS = {"steps": "whole training steps", "layers": "the calls of norm layers that training steps make"}
PARTS = ("forward", "backward", "update")
LONGEST = 1e9  # seconds of a step: longer times are damage
SLOWED = "other work may have slowed the steps"
COLUMNS = (
    *("folder", "task", "setting", "scale", "kind", "impl", "series", "norm", "reference"),
    *("median_seconds_per_1k_steps", "q25", "q75", "ratio", "low", "high", "processes", "estimates", "seconds"),
    *(*PARTS, "peak_bytes", "data_seconds_per_1k_steps", "rounds", "steps_per_block"),
    *("device", "machine", "processor", "threads", "precision", "torch", "code", "commit", "dirty"),
    *("time_state", "disturbed", "sessions", "stopped", "started", "builtin", "data", "workload"),
)


class TimedSeries(TypedDict):
    """A series of a timing record. ``seconds``: only in the oldest records, in which one process timed all series."""

    series: str
    impl: str
    parts: dict[str, float]
    peak_bytes: Count | None
    workload: NotRequired[str | None]
    seconds: NotRequired[list[float]]


class TimingProcess(TypedDict):
    """A process of a timing record. ``seconds``: per step, by series, in each round."""

    session: Session
    seconds: dict[str, list[float]]
    data_seconds: float
    steps_per_block: Count


class TimingContent(TypedDict):
    """The content of ``timing.json``."""

    task: str
    setting: str
    scale: str
    kind: Literal["steps", "layers"]
    reference: str
    stopped: str
    dataset: DatasetContent
    series: list[TimedSeries]
    precision: NotRequired[str | None]
    processes: NotRequired[list[TimingProcess]]


def new_folder(parent: Path, kind: str) -> Path:
    """Make the folder ``<parent>/<kind><number>``, with the lowest number, from 0, that is not taken, and return it."""
    for number in itertools.count():
        with suppress(FileExistsError):  # another process may make it at the same time
            folder = parent / f"{kind}{number}"
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def write(content: dict[str, Any], setting: Path, typed: Sequence[str]) -> Path:
    """Write a record to a new folder in the folder of its setting, and return the new folder.

    ``typed``: the words of the command line; :func:`rmsexp.system.command_line.recorded` says which of them are kept.
    """
    folder = new_folder(setting / FOLDER, content["kind"])
    atomic.write_json(folder / FILE, content | {"command": recorded(typed)})
    return folder


def load(*roots: str | Path, problems: list[str] | None = None) -> pd.DataFrame:
    """Load every timing record below ``roots``, as one row per record and series with the columns ``COLUMNS``.

    Times are in seconds per 1k steps, over the rounds of all processes. ``q25``, ``q75``: the quartiles. ``PARTS``: the
    times of the parts of a step, which were measured separately; NaN for a part that was not measured.

    ``seconds``: for each process of the record, the seconds per step in each round; None if it did not measure the
    series. ``sessions``: the session of each process. ``ratio`` and what belongs to it: see :func:`pooled`; relative to
    ``reference``, the series that every process times. ``steps_per_block``: the fewest counted steps of a block.

    ``machine``: what identifies the machine; in older records the processor's name. ``processor``: its name.
    ``commit``: that of the first process. ``dirty``: whether the tree of any process had uncommitted changes.
    ``time_state``, ``disturbed``: see :mod:`rmsexp.records.frames.time_states`. ``data``: the digest of the data set.
    ``workload``: :func:`rmsexp.train.provenance.workload`; None in older records.

    Copies of a record, and records that cannot be read, are left out; ``problems``, if given, gets a line for each.
    """
    left_out = [] if problems is None else problems
    loaded: list[dict[str, Any]] = []
    originals: dict[str, Path] = {}  # by the content of a record; counted twice, it would narrow the intervals
    for path in dict.fromkeys(path for root in roots for path in record.find(Path(root), f"timing/*/{FILE}")):
        try:
            stored = read_typed(path, TimingContent)
            if (original := originals.setdefault(json.dumps(stored), path)) != path:
                raise ValueError(f"it is a copy of {original}")
            loaded += rows(stored, str(path.parent))
        except (OSError, ValueError, KeyError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).removeprefix(f"{path}: ")
            left_out.append(f"{path}: timing record ignored: {reason}")
    return pd.DataFrame(loaded, columns=list(COLUMNS))


def rows(stored: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    """Return one row per series of a record; the keys of a row are those of ``COLUMNS`` that the record has.

    A series that no process has measured together with the reference has no row. ``stored``: the content of
    ``timing.json`` in ``folder``. Raises: ValueError for impossible times, or no process; KeyError for a missing key.
    """
    processes, reference = stored.get("processes"), stored["reference"]
    if processes is None:  # of format 1, with one process, whose keys are the record's
        processes = [{**stored, "seconds": {series["series"]: series["seconds"] for series in stored["series"]}}]
    if not processes:
        raise ValueError("no process has measured")
    sessions = [process["session"] for process in processes]
    session = sessions[0]
    trees = [each.get("git", {}).get("dirty") for each in sessions]
    machine_id, processor = of_session(session)
    shared = {key: stored[key] for key in ("task", "setting", "scale", "kind", "reference", "stopped")} | {
        "folder": folder,
        "data_seconds_per_1k_steps": 1000 * statistics.median(process["data_seconds"] for process in processes),
        "steps_per_block": min(process["steps_per_block"] for process in processes),
        "device": session["device"],
        "machine": machine_id,
        "processor": processor,
        "threads": session["threads"],
        "precision": stored.get("precision") or FLOAT32,
        "torch": session["versions"]["torch"],
        "code": session["code"],
        "commit": session.get("git", {}).get("commit"),
        "dirty": next((state for state in (True, None) if state in trees), False),
        "time_state": timing_state(sessions),
        "disturbed": disturbed(sessions),
        "started": session["started"],
        "builtin": stored["dataset"]["builtin"],
        "data": stored["dataset"]["digest"],
        "sessions": sessions,
    }
    found = []
    for entry in stored["series"]:
        series = entry["series"]
        seconds, others = ([process["seconds"].get(name) for process in processes] for name in (series, reference))
        by_process = tuple(None if own is None else np.array(own, float) for own in seconds)
        if not all(np.all((own > 0) & (own < LONGEST)) for own in by_process if own is not None):
            raise ValueError(f"the times of {series} are not all between 0 and {LONGEST:g} seconds")
        both = zip(by_process, others, strict=True)
        together = [(own, other) for own, other in both if own is not None and other is not None]
        if together:
            row: dict[str, Any] = {key: entry.get(key) for key in ("series", "impl", "peak_bytes", "workload")}
            row |= {"norm": norm_of(series), "seconds": by_process}
            row |= {part: 1000 * value for part, value in entry["parts"].items()}
            ratios = [paired_ratio(own, other) for own, other in together]
            found.append(shared | row | pooled([own for own, _ in together], ratios))
    return found


def pooled(seconds: Sequence[NDArray[np.float64]], ratios: Sequence[Interval]) -> dict[str, Any]:
    """Return the times and the ratio of a series over several processes.

    ``seconds``: per step in each round, of each process. ``ratios``: of its time to another series' in each process.

    Keys: ``median_seconds_per_1k_steps``, ``q25``, ``q75`` and ``rounds``, over all rounds; ``processes``, the number
    of the ratios; ``estimates``, the ratios; ``ratio``, ``low``, ``high``: see :func:`over`.
    """
    low, median, high = 1000 * np.quantile(np.concatenate(seconds), [0.25, 0.5, 0.75])
    times = {"median_seconds_per_1k_steps": median, "q25": low, "q75": high, "rounds": sum(map(len, seconds))}
    estimates = tuple(ratio.ratio for ratio in ratios)
    return times | {"processes": len(ratios), "estimates": estimates} | over(ratios)._asdict()


def over(ratios: Sequence[Interval]) -> Interval:
    """Return the geometric mean of several processes' ratios with its t-interval (:func:`over_processes`).

    Of one process it is its ratio, with the interval over its rounds (:func:`rmsexp.rules.ratios.paired_ratio`).
    """
    return ratios[0] if len(ratios) == 1 else over_processes([ratio.ratio for ratio in ratios])


def estimates(timings: pd.DataFrame) -> str:
    """Return the savings that a record has found, in one line. ``timings``: its rows, as in :func:`load`."""
    named = zip(labels(timings), timings.to_dict("records"), strict=True)
    savings = [(name, *saving(row)) for name, row in named if row["series"] != row["reference"]]
    listed = [f"{name} {100 * at:z.1f} % ({100 * low:z.1f} to {100 * high:z.1f})" for name, at, low, high in savings]
    count = timings["processes"].min()
    return f"saved vs {label(timings['reference'].iloc[0])}, {replication(count)}: {', '.join(listed)}"


def replication(processes: int) -> str:
    """Describe how often a timing was repeated, such as "6 processes"."""
    return "one process, not replicated" if processes == 1 else f"{processes} processes"


def saving(row: Mapping[Hashable, Any]) -> tuple[float, float, float]:
    """Return (saving, low, high): the fraction of the reference's time that a row's norm saves, and its interval."""
    return 1 - row["ratio"], 1 - row["high"], 1 - row["low"]


def labels(timings: pd.DataFrame) -> list[str]:
    """Return the name of each row's series; the implementation is part of it only if the rows have several."""
    mixed = timings["impl"].nunique() > 1
    plain = timings["series"].map(without_impl).map(label)
    return [f"{name} ({impl})" if mixed else name for name, impl in zip(plain, timings["impl"], strict=True)]


def data(row: "pd.Series[Any]") -> str:
    """Return what a timing trained on: the user's own data, built-in data or real data."""
    if row["impl"].startswith("own"):
        return "own data"
    return f"built-in data{config.papers_scale(row['task'])}" if row["builtin"] else "real data"


def notes(timings: pd.DataFrame) -> list[str]:
    """Return the caption of one record's table and figure, as lines on method, machine, data and caveats."""
    row = timings.iloc[0]
    processes, rounds = timings["processes"].min(), timings["rounds"].min()
    own = row["impl"].startswith("own")  # training steps of one's own, which load their batches
    loading = f"excludes {row['data_seconds_per_1k_steps']:.3g} ms of data loading per step, identical for all norms"
    lines = [
        f"{KINDS[row['kind']]}, interleaved: {replication(processes)}, {rounds} rounds with the norms in random order, "
        f"steps per block: {row['steps_per_block']}; stopped: {row['stopped']}",
        f"impl {', '.join(sorted(set(timings['impl'])))}; "
        f"{'' if row['precision'] == FLOAT32 else 'precision ' + row['precision'] + '; '}"
        f"{row['device']}; threads {row['threads']:.0f}; "
        f"torch {row['torch']}; {data(row)}; {row['started'][:10]}",
        *([] if own else [loading]),
    ]
    if row["time_state"] == "undisturbed" and not row["disturbed"]:
        return lines
    effect = "" if row["time_state"] == "undisturbed" else f": {SLOWED}; paired ratios are less affected"
    return [*lines, f"{disturbance([row['time_state']], row['disturbed'], len(row['seconds']))}{effect}"]


def disturbance(states: Collection[str], disturbed: int, processes: int) -> str:
    """Return text such as "1 of 6 processes disturbed", and that others are not known if a state is "unknown"."""
    unknown = ", of others it is not known" if "unknown" in states else ""
    return f"{disturbed} of {processes} processes disturbed{unknown}"
