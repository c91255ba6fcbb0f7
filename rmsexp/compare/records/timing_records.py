"""Records of ``python -m rmsexp.timing``: step times of several norms, measured in turns, and their ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. It holds, for each series, the seconds per
step in each round (one block of steps); quantiles and ratios paired by round are computed here. A series is a norm with
the options that were changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rmsexp import atomic, readers
from rmsexp.compare.records.load import DAMAGE
from rmsexp.compare.records.names import label, norm_of
from rmsexp.compare.records.ratios import paired_ratio

FILE = "timing.json"
KINDS = {"steps": "whole training steps", "layers": "the calls of norm layers that training steps make"}
PARTS = ("forward", "backward", "update")
COLUMNS = (
    *("folder", "task", "setting", "scale", "kind", "impl", "series", "norm", "reference"),
    *("median_seconds_per_1k_steps", "q25", "q75", "ratio", "low", "high"),
    *(*PARTS, "peak_bytes", "data_seconds_per_1k_steps", "rounds", "steps_per_block"),
    *("device", "threads", "torch", "time_state", "stopped", "started", "builtin"),
)


def new_folder(parent: Path, kind: str) -> Path:
    """Return the path ``<parent>/<kind><number>`` with the lowest number from 0 on that does not exist yet."""
    folders = (parent / f"{kind}{number}" for number in itertools.count())
    return next(folder for folder in folders if not folder.exists())


def write(content: dict[str, Any], setting: Path) -> Path:
    """Write a record to a new folder in the folder of its setting, and return the new folder."""
    folder = new_folder(setting / "timing", content["kind"])
    folder.mkdir(parents=True)
    atomic.write_json(folder / FILE, content)
    return folder


def load(root: str | Path, problems: list[str] | None = None) -> pd.DataFrame:
    """Load every timing record below ``root``, as one row per record and series with the columns ``COLUMNS``.

    Times are in seconds per 1k steps. ``q25``, ``q75``: the quartiles. ``PARTS``: the times of the parts of a step,
    which were measured separately; NaN for a part that was not measured. ``ratio``, ``low``, ``high``: the ratio of
    times to the reference and its interval (:func:`rmsexp.compare.records.ratios.paired_ratio`); 1 for the reference.
    Records that cannot be read are left out; if ``problems`` is given, a line for each is added to it.
    """
    loaded: list[dict[str, Any]] = []
    for path in sorted(Path(root).rglob(f"timing/*/{FILE}")):
        try:
            loaded += rows(readers.read_json(path), str(path.parent))
        except DAMAGE as error:
            if problems is not None:
                problems.append(f"{path}: timing record ignored: {error!r}")
    return pd.DataFrame(loaded, columns=list(COLUMNS))


def newest(timings: pd.DataFrame, kind: str = "steps", *, per: Sequence[str] = ("task", "setting")) -> pd.DataFrame:
    """Return the rows of the record of this kind that was started last, for each combination of the columns ``per``."""
    candidates = timings[timings["kind"] == kind]
    last = candidates.groupby(list(per))["started"].transform("max")
    return candidates[candidates["started"] == last].reset_index(drop=True)


def rows(stored: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """Return one row per series of a record; the keys of a row are those of ``COLUMNS`` that the record has.

    ``stored``: the content of ``timing.json``. ``folder``: the path of the folder that contains it.
    """
    session = stored["session"]
    shared = {key: stored[key] for key in ("task", "setting", "scale", "kind", "reference", "stopped")} | {
        "folder": folder,
        "data_seconds_per_1k_steps": 1000 * stored["data_seconds"],
        "steps_per_block": stored["steps_per_block"],
        "device": session["device"],
        "threads": session["threads"],
        "torch": session["versions"]["torch"],
        "time_state": session["contention"]["state"],
        "started": session["started"],
        "builtin": stored["dataset"]["builtin"],
    }
    seconds = {series["series"]: np.array(series["seconds"], float) for series in stored["series"]}
    reference = seconds[stored["reference"]]
    return [shared | _row(series, seconds[series["series"]], reference) for series in stored["series"]]


def _row(series: dict[str, Any], seconds: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    low, median, high = 1000 * np.quantile(seconds, [0.25, 0.5, 0.75])
    times = {"median_seconds_per_1k_steps": median, "q25": low, "q75": high, "rounds": len(seconds)}
    parts = {name: 1000 * value for name, value in series["parts"].items()}
    identity = {key: series[key] for key in ("series", "impl", "peak_bytes")} | {"norm": norm_of(series["series"])}
    return identity | times | parts | paired_ratio(seconds, reference)._asdict()


def saving(row: Mapping[Hashable, Any]) -> tuple[float, float, float]:
    """Return (saving, low, high): the fraction of the reference's time that a row's norm saves, and its interval."""
    return 1 - row["ratio"], 1 - row["high"], 1 - row["low"]


def labels(timings: pd.DataFrame) -> list[str]:
    """Return the name of each row's series; the implementation is part of it only if the rows have several."""
    mixed = timings["impl"].nunique() > 1
    plain = [
        label("+".join(part for part in series.split("+") if not part.startswith("impl=")))
        for series in timings["series"]
    ]
    return [f"{name} ({impl})" if mixed else name for name, impl in zip(plain, timings["impl"], strict=True)]


def notes(timings: pd.DataFrame) -> list[str]:
    """Return the caption of one record's table and figure, as lines on method, machine, data and caveats."""
    row = timings.iloc[0]
    data = "built-in data; the paper's setting is scale=paper" if row["builtin"] else "real data"
    lines = [
        f"{KINDS[row['kind']]}, interleaved: {row['rounds']} rounds with the norms in random order, "
        f"steps per block: {row['steps_per_block']}; stopped: {row['stopped']}",
        f"impl {', '.join(sorted(set(timings['impl'])))}; {row['device']}; threads {row['threads']:.0f}; "
        f"torch {row['torch']}; {data}; {row['started'][:10]}",
        f"excludes {row['data_seconds_per_1k_steps']:.3g} ms of data loading per step, identical for all norms",
        ""
        if row["time_state"] == "clear"
        else f"time state {row['time_state']}: other work may have slowed the steps; paired ratios are less affected",
    ]
    return [line for line in lines if line]


def has_reference_impl(timings: pd.DataFrame) -> pd.Series:
    """Return, for each row, whether its implementation is that of its record's reference.

    Only then is the saving due to the norm alone, as in the paper, which compares norms of one implementation.
    """
    reference_impl = timings[timings["series"] == timings["reference"]].set_index("folder")["impl"]
    return timings["folder"].map(reference_impl) == timings["impl"]
