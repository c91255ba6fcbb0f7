"""Records of ``python -m rmsexp.timing``: step times of norms that took turns in one process, as paired ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. Everything that is said of it is computed
here from the seconds of its blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rmsexp import record
from rmsexp.compare.records import ratios
from rmsexp.compare.records.load import DAMAGE
from rmsexp.compare.records.names import label, norm_of

FILE = "timing.json"
KINDS = {"steps": "whole training steps", "layers": "the norm layers alone, as steps call them"}
PARTS = ("forward", "backward", "update")
COLUMNS = (
    *("folder", "task", "setting", "scale", "kind", "impl", "series", "norm", "reference"),
    *("median_seconds_per_1k_steps", "q25", "q75", "ratio", "low", "high"),
    *(*PARTS, "peak_bytes", "data_seconds_per_1k_steps", "rounds", "steps_per_block"),
    *("device", "threads", "torch", "time_state", "stopped", "started", "builtin"),
)


def new_folder(parent: Path, kind: str) -> Path:
    """The next free ``<kind><number>`` in a folder; records are never replaced."""
    folders = (parent / f"{kind}{number}" for number in itertools.count())
    return next(folder for folder in folders if not folder.exists())


def load(root: str | Path, problems: list[str] | None = None) -> pd.DataFrame:
    """Every timing record below ``root``, one row a series (``COLUMNS``); of one that cannot be read a problem is told.

    Times are seconds per 1k steps: of a step, and of its parts in blocks of their own. ``ratio low high``: see
    :func:`paired_ratio`; of the reference they are 1.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(Path(root).rglob(f"timing/*/{FILE}")):
        try:
            found += rows(record.read_json(path), str(path.parent))
        except DAMAGE as error:
            if problems is not None:
                problems.append(f"{path}: {error!r} in a timing record, which is left out")
    return pd.DataFrame(found, columns=list(COLUMNS))


def newest(timings: pd.DataFrame, kind: str = "steps", *, each: Sequence[str] = ("task", "setting")) -> pd.DataFrame:
    """Of each task and setting, or each combination of other columns, the rows of the record that was made last."""
    of_kind = timings[timings["kind"] == kind]
    last = of_kind.groupby(list(each))["started"].transform("max")
    return of_kind[of_kind["started"] == last].reset_index(drop=True)


def rows(stored: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """The rows of one record."""
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
    seconds = {one["series"]: np.array(one["seconds"], float) for one in stored["series"]}
    return [shared | _row(one, seconds, stored["reference"]) for one in stored["series"]]


def _row(one: dict[str, Any], seconds: dict[str, np.ndarray], reference: str) -> dict[str, Any]:
    own = seconds[one["series"]]
    low, median, high = 1000 * np.quantile(own, [0.25, 0.5, 0.75])
    times = {"median_seconds_per_1k_steps": median, "q25": low, "q75": high, "rounds": len(own)}
    parts = {name: 1000 * value for name, value in one["parts"].items()}
    named = {key: one[key] for key in ("series", "impl", "peak_bytes")} | {"norm": norm_of(one["series"])}
    return named | times | parts | ratios.paired_ratio(own, seconds[reference])._asdict()


def saving(row: Mapping[Hashable, Any]) -> tuple[float, float, float]:
    """The share of the reference's time that a row's norm saves, and its interval, as fractions."""
    return 1 - row["ratio"], 1 - row["high"], 1 - row["low"]


def labels(timings: pd.DataFrame) -> list[str]:
    """The name of each row's norm; where there are several implementations, each row says which it has."""
    mixed = timings["impl"].nunique() > 1
    plain = [
        label("+".join(part for part in one.split("+") if not part.startswith("impl="))) for one in timings["series"]
    ]
    return [f"{name} ({impl})" if mixed else name for name, impl in zip(plain, timings["impl"], strict=True)]


def notes(timings: pd.DataFrame) -> list[str]:
    """What must be said beside a record's table and figure."""
    row = timings.iloc[0]
    data = "built-in data; the paper's setting: scale=paper" if row["builtin"] else "real data"
    lines = [
        f"{KINDS[row['kind']]}, in blocks of {row['steps_per_block']}, the norms in random order in each of "
        f"{row['rounds']} rounds; stopped: {row['stopped']}",
        f"impl {', '.join(sorted(set(timings['impl'])))}; {row['device']}; threads {row['threads']:.0f}; "
        f"torch {row['torch']}; {data}; {row['started'][:10]}",
        f"{row['data_seconds_per_1k_steps']:.3g} ms a step for its batch, the same for all, are not in it",
        "" if row["time_state"] == "clear" else f"the machine was {row['time_state']} meanwhile; ratios are paired",
    ]
    return [line for line in lines if line]


def like_reference(timings: pd.DataFrame) -> pd.Series:
    """Whether each row has the implementation of its record's reference: only then is what it saves the norm's saving.

    The paper compares norms of one implementation.
    """
    of_reference = timings[timings["series"] == timings["reference"]].set_index("folder")["impl"]
    return timings["folder"].map(of_reference) == timings["impl"]
