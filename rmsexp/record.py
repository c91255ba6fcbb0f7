"""The record of a run: its files, and how they are written and read.

The folder of a run is ``<results>/<task>/<setting>/<series>/seed<k>/``. Besides files of its task and loggers it holds

- ``config.yaml``: the resolved config;
- ``run.json``: identity, data set, parameter counts and ``sessions``, one entry per process whose steps are in it;
- ``metrics.jsonl``: one row per line (see :meth:`RunFolder.append`);
- ``status.json``: status and step, replaced atomically;
- ``checkpoints/``;
- ``traceback.txt``: the traceback of an unexpected error, if there was one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rmsexp.readers import read_json as read_json

Status = Literal["running", "finished", "diverged", "failed", "interrupted"]
Row = dict[str, Any]

CONFIG, RUN, METRICS, STATUS, CHECKPOINTS = "config.yaml", "run.json", "metrics.jsonl", "status.json", "checkpoints"
BUCKETS = ("warmup", "data", "train", "eval", "checkpoint", "log")  # kinds of work whose time the clock adds up
TIMED = ("data", "train")  # the buckets whose sum is the time axis of every curve


class RunLockedError(RuntimeError):
    """Another process is writing this run."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, below ``path``."""

    path: Path

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def run_path(self) -> Path:
        return self.path / RUN

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def status_path(self) -> Path:
        return self.path / STATUS

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def lock_path(self) -> Path:
        """Return the path of the lock's file. It is beside the folder, which can thus be renamed while it is locked."""
        return self.path.parent / f".{self.path.name}.lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock inside the context. If the process dies, the kernel releases the lock.

        Raises: RunLockedError if another process holds it.
        """
        self.lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self.lock_path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise RunLockedError(
                    f"{self.path} is being written by another process (id {owner}); "
                    "wait for it, or choose another seed or results folder"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def is_locked(self) -> bool:
        """Return whether a living process, possibly this one, holds the run's lock."""
        if not self.lock_path.exists():
            return False
        with self.lock_path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def move_aside(self) -> None:
        """Rename the folder, if it exists, to ``<name>.old<number>``, with the smallest unused number."""
        if not self.path.exists():
            return
        number = 0
        while (target := self.path.with_name(f"{self.path.name}.old{number}")).exists():
            number += 1
        self.path.rename(target)

    def remove_temporaries(self) -> None:
        """Remove the temporary files of processes that were killed in :func:`write_atomic`.

        The caller must hold the run's lock.
        """
        for path in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
            path.unlink()

    def write_status(self, status: Status, step: int, error: str | None = None) -> None:
        """Replace ``status.json``; ``error`` says why a run diverged, failed or was interrupted."""
        content = {"status": status, "step": step, "error": error, "process": os.getpid()}
        write_json(self.status_path, content)

    def read_status(self) -> dict[str, Any]:
        """Return the content of ``status.json``, with "interrupted" instead of "running" if no process holds the lock.

        Keys: ``status``, ``step``, ``process`` (its id) and ``error``, the reason why the run diverged, failed or was
        interrupted.

        Raises: OSError or ValueError if the file is missing or damaged.
        """
        status = read_json(self.status_path)
        if status["status"] == "running" and not self.is_locked():
            status |= {"status": "interrupted", "error": "the process died without writing a status"}
        return status

    def append(self, rows: list[Row]) -> int:
        """Append rows to the metrics and return the file's length in bytes once they are on the disk.

        Keys of a row: ``step, epoch, examples`` (since the run began), ``split`` (train, valid or a test set), ``loss``
        (mean per prediction), the task's other metrics, and ``seconds`` (in each bucket of the clock, since the run
        began). Training rows also have ``objective`` (the training objective), ``grad_norm`` (norm of the gradient
        before clipping) and ``lr``. They have means over the steps since the previous training row, except ``lr``, the
        rate of the last step.
        """
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        with self.metrics_path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def cut_metrics(self, length: int) -> None:
        """Cut the metrics to ``length`` bytes; a restarted run writes the later rows again.

        Raises: ValueError if the file is shorter.
        """
        path = self.metrics_path
        with path.open("ab") as file:
            if file.tell() < length:
                raise ValueError(f"{path} has {file.tell()} bytes, fewer than the {length} at its last checkpoint")
            file.truncate(length)
            os.fsync(file.fileno())

    def read_metrics(self) -> tuple[list[Row], str | None]:
        """Return the rows of the metrics up to the first damaged line, and a message about that line (or None)."""
        lines = self.metrics_path.read_text().splitlines()
        try:
            rows: list[Row] = json.loads(f"[{','.join(lines)}]")  # a third faster than line by line
            if len(rows) == len(lines) and all(_is_row(row) for row in rows):
                return rows, None
        except ValueError:
            pass
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not _is_row(row):
                problem = "not a row of metrics; this line and those after it are left out"
                return rows, f"{self.metrics_path}:{number}: {problem}"
            rows.append(row)
        return rows, None


def _is_row(value: object) -> bool:
    return isinstance(value, dict) and value.keys() >= {"step", "split"}


@dataclass(frozen=True)
class Record:
    """The record of a run: the content of ``run.json`` and ``status.json``, and the rows of its metrics."""

    folder: Path
    run: dict[str, Any]
    status: dict[str, Any]
    metrics: list[Row]


def read(folder: Path) -> Record:
    """Return the record of a run; metrics after a damaged line are left out.

    Raises: OSError or ValueError if a file is missing or damaged.
    """
    files = RunFolder(folder)
    rows, _ = files.read_metrics()
    return Record(folder, read_json(files.run_path), files.read_status(), rows)


def find_runs(root: Path) -> Iterator[Path]:
    """Yield the folder of every run below ``root``, sorted, except hidden folders and runs that were moved aside.

    A folder that has only one of ``run.json`` and the metrics is a run, too.
    """
    for folder in sorted({path.parent for name in (RUN, METRICS) for path in root.rglob(name)}):
        if ".old" not in folder.name and not any(part.startswith(".") for part in folder.relative_to(root).parts):
            yield folder


def metrics_text(row: Row) -> str:
    """Return the finite metrics of an evaluation's row for printing, such as "loss 0.5432, error 0.1234"."""
    skipped = ("step", "epoch", "examples", "split", "seconds")
    values = {key: value for key, value in row.items() if key not in skipped and value is not None}
    return ", ".join(f"{key} {value:.4f}" for key, value in values.items())


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file so that it has either its old or its complete new content, even if the power fails."""
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


def sync_folder(folder: Path) -> None:
    """Wait until the renames in a folder have been written to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=2) + "\n")
