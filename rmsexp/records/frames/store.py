"""A store of the metrics of runs as arrays, which are read many times faster than ``metrics.jsonl``.

Each run has a file there, which counts as long as size and times of the run's ``metrics.jsonl`` and ``status.json``,
and the code that reads them, are the same as when it was written. The metrics of runs that have not ended, or with
problems, are not stored. Files of the store are data: arrays of numbers, and text in JSON. A damaged one is replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import one_run
from rmsexp.records.frames.one_run import LoadedRun, Numbers, load_run
from rmsexp.system import atomic
from rmsexp.system.command_line import ReportedError, report
from rmsexp.system.private import cache_folder

STORE = Path("~/.cache/rmsexp/records")
FORMAT = 2


class StoredRun(NamedTuple):
    """A run whose metrics can be read from the store.

    Attributes:
        run: its row in ``Records.runs``.
        problems: the lines of text that it adds to ``Records.problems``.
        has_metrics: whether it has a row with a known step.
        rows: the number of its rows.
        path: its file in the store; None if its metrics are not stored.
        key: what the file must have been written for.
        loaded: the run's metrics if they are not stored.
    """

    run: dict[str, Any]
    problems: list[str]
    has_metrics: bool
    rows: int
    path: Path | None
    key: str
    loaded: LoadedRun | None


def read(folder: Path) -> StoredRun:
    """Read a run; its metrics only if they are not stored. Store them if the run has ended, without problems."""
    key, path = _key(folder), _path(folder)
    header = None if key is None or path is None else _header(path, key)
    if header is not None:
        run, problems = one_run.description(folder)
        if not problems:
            last, rows = header["last"], header["rows"]
            return StoredRun(run | {"step": max(run["step"], last)}, [], last >= 0, rows, path, str(key), None)
    loaded = load_run(folder)
    has_metrics, rows = bool(np.isfinite(loaded.columns["step"]).any()), len(loaded.splits)
    if key is None or path is None or loaded.problems or loaded.run["status"] not in record.ENDED:
        return StoredRun(loaded.run, loaded.problems, has_metrics, rows, None, "", loaded)
    try:
        _write(path, key, loaded)
    except OSError as error:  # such as a full disk
        _report_once(f"metrics are not stored for later reports ({path.parent}: {error.strerror or error})")
        return StoredRun(loaded.run, [], has_metrics, rows, None, "", loaded)
    return StoredRun(loaded.run, [], has_metrics, rows, path, key, None)


def metrics(runs: Sequence[StoredRun]) -> Iterator[tuple[dict[str, Numbers], pd.Categorical]]:
    """Yield the columns of each run's metrics, and the split of each of their rows.

    Raises: ReportedError if a run has another number of rows than when it was read first.
    """
    for stored in runs:
        columns, splits = _metrics(stored)
        if len(splits) != stored.rows:
            raise ReportedError(f"{stored.run['folder']} has changed while it was read; repeat the command")
        yield columns, splits


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
    return json.dumps(
        [FORMAT, _code(), *((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)]
    )


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


def _header(path: Path, key: str) -> dict[str, Any] | None:
    """Return what a file of the store says of its run (:func:`_write`); None if there is no file with this key."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            header: dict[str, Any] = json.loads(stored["header"].tobytes())
        return header if header["key"] == key else None
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
        categories = pd.Index(header["splits"], dtype=str)  # an empty list alone would be of another type
        splits = pd.Categorical.from_codes(stored["splits"], categories)
    return dict(zip(header["columns"], values, strict=True)), splits


def _write(path: Path, key: str, loaded: LoadedRun) -> None:
    """Write the metrics of a run to the store. A file that a loss of power leaves incomplete counts as damaged.

    Its header has the last step, ``last``, which is -1 without rows, and the number of rows, ``rows``.
    """
    steps = loaded.columns["step"]
    last = int(max(steps[np.isfinite(steps)], default=-1))
    categories = [str(name) for name in loaded.splits.categories]
    header = {"key": key, "columns": list(loaded.columns), "splits": categories, "last": last, "rows": len(steps)}
    arrays: dict[str, Any] = {
        "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
        "values": np.stack(list(loaded.columns.values())),
        "splits": np.asarray(loaded.splits.codes),
    }
    temporary = path.with_name(f".{path.name}.{atomic.owner()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
