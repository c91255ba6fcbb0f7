"""A store of the metrics of runs as arrays, which are read many times faster than ``metrics.jsonl``.

Each run has a file there, which counts as long as size and times of the run's ``metrics.jsonl`` and ``status.json``,
and the code that reads them, are the same as when it was written. The metrics of runs that have not ended, or with
problems, are not stored. Files of the store are data: arrays of numbers, and text in JSON. A damaged one is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp import record
from rmsexp.command_line import report
from rmsexp.compare.records import one_run
from rmsexp.compare.records.one_run import LoadedRun, Numbers, load_run
from rmsexp.private import cache_folder

STORE = Path("~/.cache/rmsexp/records")
FORMAT = 1


class StoredRun(NamedTuple):
    """A run whose metrics can be read from the store.

    Attributes:
        run: its row in ``Records.runs``.
        problems: the lines of text that it adds to ``Records.problems``.
        has_metrics: whether it has a row with a known step.
        path: its file in the store; None if its metrics are not stored.
        key: what the file must have been written for.
        loaded: the run's metrics if they are not stored.
    """

    run: dict[str, Any]
    problems: list[str]
    has_metrics: bool
    path: Path | None
    key: str
    loaded: LoadedRun | None


def read(folder: Path) -> StoredRun:
    """Read a run; its metrics only if they are not stored. Store them if the run has ended, without problems."""
    key, path = _key(folder), _path(folder)
    last = None if key is None or path is None else _last_step(path, key)
    if last is not None:
        run, problems = one_run.description(folder)
        if not problems:
            return StoredRun(run | {"step": max(run["step"], last)}, [], last >= 0, path, str(key), None)
    loaded = load_run(folder)
    has_metrics = bool(np.isfinite(loaded.columns["step"]).any())
    if key is None or path is None or loaded.problems or loaded.run["status"] not in record.ENDED:
        return StoredRun(loaded.run, loaded.problems, has_metrics, None, "", loaded)
    try:
        _write(path, key, loaded)
    except OSError as error:  # such as a full disk
        _report_once(f"metrics are not stored for later reports ({path.parent}: {error.strerror or error})")
        return StoredRun(loaded.run, [], has_metrics, None, "", loaded)
    return StoredRun(loaded.run, [], has_metrics, path, key, None)


def metrics(runs: Sequence[StoredRun]) -> list[tuple[dict[str, Numbers], pd.Categorical]]:
    """Return the columns of each run's metrics, and the split of each of their rows."""
    return [_metrics(stored) for stored in runs]


def _metrics(stored: StoredRun) -> tuple[dict[str, Numbers], pd.Categorical]:
    if stored.loaded is not None:
        return dict(stored.loaded.columns), stored.loaded.splits
    assert stored.path is not None
    try:
        return _content(stored.path, stored.key)
    except Exception as error:  # it was removed, replaced or damaged since
        report(f"{stored.path} cannot be used ({error}), so the metrics of {stored.run['folder']} are read again")
        loaded = load_run(Path(stored.run["folder"]))
        return loaded.columns, loaded.splits


def _key(folder: Path) -> str | None:
    """Return what a file of the store depends on; None if the run lacks a file."""
    try:
        stats = [(folder / name).stat() for name in (record.METRICS, record.STATUS)]
    except OSError:
        return None
    return json.dumps([FORMAT, _code(), *((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)])


@cache
def _code() -> str:
    """Return a digest of the modules that read metrics."""
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in (record, one_run))).hexdigest()


def _path(folder: Path) -> Path | None:
    """Return the file of a run in the store; None if there can be no store."""
    place = folder.absolute()
    try:
        return _folder(place.parents[1]) / f"{place.parent.name[:80]}-{_digest(place)}.npz"
    except OSError as error:
        _report_once(f"metrics are not stored for later reports ({error})")
        return None


@cache
def _report_once(message: str) -> None:
    """Report what would be the same for many runs."""
    report(message)


@cache
def _folder(setting: Path) -> Path:
    return cache_folder(STORE, _digest(setting))


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:24]


def _last_step(path: Path, key: str) -> int | None:
    """Return the last step in a file of the store, -1 if it has no rows; None if there is no file with this key."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
        return int(header["last"]) if header["key"] == key else None
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file raises many types of exceptions
        report(f"{path} is damaged ({error}), and is written again")
        return None


def _content(path: Path, key: str) -> tuple[dict[str, Numbers], pd.Categorical]:
    """Return the columns in a file of the store, and the splits. Reading checks the CRC-32 of the arrays.

    Raises: ValueError if the file is of another key; many types of exceptions if it is damaged.
    """
    with np.load(path, allow_pickle=False) as stored:
        header, values = json.loads(stored["header"].tobytes()), stored["values"]
        if header["key"] != key:
            raise ValueError("it has changed")
        splits = pd.Categorical.from_codes(stored["splits"], header["splits"])
    return dict(zip(header["columns"], values, strict=True)), splits


def _write(path: Path, key: str, loaded: LoadedRun) -> None:
    """Write the metrics of a run to the store. A file that a loss of power leaves incomplete counts as damaged."""
    steps = loaded.columns["step"]
    last = int(max(steps[np.isfinite(steps)], default=-1))
    categories = [str(name) for name in loaded.splits.categories]
    header = {"key": key, "columns": list(loaded.columns), "splits": categories, "last": last}
    arrays: dict[str, Any] = {
        "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
        "values": np.stack(list(loaded.columns.values())),
        "splits": np.asarray(loaded.splits.codes),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
