"""The record of a run: what is on disk, how it is read, appended to and cut. Standard library only.

A run's folder is ``<results>/<task>/<setting>/<series>/seed<k>/`` and holds

- ``config.yaml``: the resolved config;
- ``run.json``: identity, data set, parameter counts and one entry in ``sessions`` for each process that worked on it;
- ``metrics.jsonl``: append-only, one line an event (see :func:`append`);
- ``status.json``: replaced atomically;
- ``checkpoints/``.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["running", "finished", "diverged", "failed", "interrupted"]
Row = dict[str, Any]

CONFIG, RUN, METRICS, STATUS, CHECKPOINTS = "config.yaml", "run.json", "metrics.jsonl", "status.json", "checkpoints"
BUCKETS = ("warmup", "data", "train", "eval", "checkpoint", "log")  # of the clock; `seconds` of a row has these keys
TIMED = ("data", "train")  # the time axis of every curve is their sum


class RunLockedError(RuntimeError):
    """Another process is writing this run."""


class Lock:
    """An exclusive ``flock`` for one run; the kernel frees it when its process ends, however it ends.

    The file lies beside the run's folder, so that the folder can be moved away under the lock.
    """

    def __init__(self, folder: Path) -> None:
        self.path = lock_path(folder)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise RunLockedError(
                f"{folder} is being written by another process (id {owner}); "
                "wait for it, or choose another seed or results folder"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def lock_path(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


def is_locked(folder: Path) -> bool:
    """Whether a living process holds the run's lock."""
    path = lock_path(folder)
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces ``path`` as a whole or not at all, and durably."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_temporaries(folder: Path) -> None:
    """Removes what :func:`write_atomic` left of a run, under its lock, where a process was killed inside it."""
    for path in (*folder.glob(".*.tmp"), *(folder / CHECKPOINTS).glob(".*.tmp")):
        path.unlink()


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Raises: ValueError, with the file's name, if it is not a JSON object."""
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def append(path: Path, rows: list[Row]) -> int:
    """Appends one line a row and returns the file's length in bytes once they are on the disk.

    Keys of a row: ``step, epoch, examples, split`` (train, valid or test), ``loss`` (mean per prediction, in nats),
    ``objective`` (what is optimised; training rows only), the task's metrics, ``lr, grad_norm`` (training rows only)
    and ``seconds``, the clock's buckets. A training row is the mean over the steps since the training row before.
    """
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    with path.open("ab") as file:
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def cut(path: Path, length: int) -> None:
    """Drops what was written after ``length`` bytes: the rows that a restarted run will write again."""
    with path.open("ab") as file:
        if file.tell() < length:
            raise ValueError(f"{path} has {file.tell()} bytes, fewer than the {length} that its checkpoint counts")
        file.truncate(length)
        os.fsync(file.fileno())


def read_metrics(path: Path) -> tuple[list[Row], str | None]:
    """The rows of a metrics file, and what was wrong with it, if anything (the rows before that point are good)."""
    lines = path.read_text().splitlines()
    try:
        rows: list[Row] = json.loads(f"[{','.join(lines)}]")  # at once: a third quicker than line by line
        if len(rows) == len(lines) and all(isinstance(row, dict) and row.keys() >= {"step", "split"} for row in rows):
            return rows, None
    except ValueError:
        pass
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            row["step"], row["split"]
        except (ValueError, KeyError, TypeError):
            return rows, f"{path}:{number}: not a row of metrics; this line and those after it are left out"
        rows.append(row)
    return rows, None


def read_status(folder: Path) -> dict[str, Any]:
    """The run's status; one that says "running" while nobody holds the lock was interrupted.

    Keys: ``status``, ``step``, and ``error`` (why) where it is diverged, failed or interrupted.
    """
    status = read_json(folder / STATUS)
    if status["status"] == "running" and not is_locked(folder):
        status |= {"status": "interrupted", "error": "its process ended without a word"}
    return status


@dataclass(frozen=True)
class Record:
    """All that is recorded of one run."""

    folder: Path
    run: dict[str, Any]
    status: dict[str, Any]
    metrics: list[Row]


def read(folder: Path) -> Record:
    """Raises: OSError or ValueError where something is missing or damaged."""
    rows, _ = read_metrics(folder / METRICS)
    return Record(folder, read_json(folder / RUN), read_status(folder), rows)


def find_runs(root: Path) -> Iterator[Path]:
    """Every run's folder below ``root``, in order; one that lost ``run.json`` or its metrics is still a run.

    Runs moved aside by ``force`` are left out.
    """
    for folder in sorted({path.parent for name in (RUN, METRICS) for path in root.rglob(name)}):
        if ".old" not in folder.name and not any(part.startswith(".") for part in folder.relative_to(root).parts):
            yield folder
