"""The record of a run: its files, and how they are written and read.

The folder of a run is ``<results>/<task>/<setting>/<series>/seed<k>/``. Besides files of its task and loggers it holds

- ``config.yaml``: the resolved config;
- ``run.json``: identity, data set, parameter counts, and ``sessions``: an entry for the last process that worked on
  the run, and for each earlier one whose steps were kept;
- ``metrics.jsonl``: one row per line (see :meth:`RunFolder.append`);
- ``status.json``: status and step (see :meth:`RunFolder.write_status`), replaced atomically;
- ``checkpoints/``;
- ``own_code/``: the sources of the user's own modules, of the last session;
- ``traceback.txt``: the traceback of the last unexpected error, until the run has finished or diverged.

Later changes of two files are noticed when they are read: ``status.json`` contains a digest of its other content and,
once the run has finished or diverged, one of ``metrics.jsonl``.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, NoReturn, NotRequired, TypedDict

from rmsexp.system import atomic
from rmsexp.system.checks import MOST
from rmsexp.system.clock import BUCKETS
from rmsexp.system.command_line import command
from rmsexp.system.files import open_regular, read_regular
from rmsexp.system.lock import Lock, is_locked
from rmsexp.system.readers import LARGEST as LARGEST_INTEGER
from rmsexp.system.readers import Between, Count, read_typed

ENDED = ("finished", "diverged")  # the statuses of runs that are not continued, unless with a larger max_steps
Row = dict[str, Any]

OLD_SPLITS = {"interim": "valid_sample"}  # names in records until 29 November 2026
CONFIG, RUN, METRICS, STATUS, CHECKPOINTS = "config.yaml", "run.json", "metrics.jsonl", "status.json", "checkpoints"
IDENTITY = ("folder", "task", "setting", "series", "seed")  # columns of a frame of metrics that say of which run
# what a row or a frame of metrics has besides metrics, none of which can have such a name
NO_METRICS = (*IDENTITY, "split", "step", "seconds", "time", *(f"seconds_{bucket}" for bucket in BUCKETS))
REFERENCE = "reference"  # the folder, in a results folder, of records that are committed: not the user's own runs
OWN_CODE: Final = "own_code"  # the key of a session with the digest of the user's own modules, if there are any
TRAINED: Final = "trained"  # the key of a session, which is false if it took no step
SUBWORDS = "subwords"  # the note of a task with a digest of the subwords that it has learnt; "" without subwords
WORDS = "words"  # the note of a task with a digest of its vocabulary, if its tokens are words
# A run is disturbed if its threads wait for a core for more than this, times their CPU time. Measured on two machines:
# 0.002 to 0.006 without other busy processes, 0.01 to 0.05 beside one on another core, 1.0 beside one on the same core.
WAITED_LIMIT = 0.015
LARGEST = 1e150  # a larger value of a metric, or its negative, is damage: sums of squares would overflow
STEAL_LIMIT = 0.02  # It is disturbed, too, if the host takes away more than this share of the time of all cores.
# A timing is disturbed, too, if the median of at least FEWEST_PROBES probes takes longer than on the quiet machine by
# more than one of these factors. A single probe says little: beside a process that streams memory, about half are fast.
SLOWDOWN_LIMITS = {"arithmetic": 1.15, "memory": 1.2}
FEWEST_PROBES = 20


# The content of run.json and status.json. A continued run needs the keys that are required. Of the others, those that
# are there must have the right type; older records lack some.
Status = Literal["running", "finished", "diverged", "failed", "interrupted"]
Seconds = Annotated[float, Between(0, 1e9)]


class StatusContent(TypedDict):
    """The content of ``status.json`` (see :meth:`RunFolder.write_status`)."""

    status: Status
    step: Count
    error: NotRequired[str | None]
    process: NotRequired[Count]
    run: NotRequired[str | None]
    checkpoint: NotRequired[Count | None]
    metrics: NotRequired[dict[str, int | str] | None]  # see :func:`_extent`
    digest: NotRequired[str]


class Parts(TypedDict):
    """The seconds of the two parts of a probe."""

    arithmetic: Seconds
    memory: Seconds


class Probes(TypedDict):
    """The probes of a process. ``median``: over ``number`` probes. ``reference``: of the quiet machine, if known."""

    number: Count
    median: Parts
    reference: Parts | None


class ContentionContent(TypedDict):
    """Whether other work disturbed a process (see :meth:`rmsexp.train.contention.Contention.report`).

    ``probes``: only timings (:mod:`rmsexp.measure.probes`) and older runs have them.
    """

    # the last two are the words of records until 29 November 2026
    state: NotRequired[Literal["undisturbed", "disturbed", "unknown", "clear", "contended"]]
    waited: NotRequired[float | None]
    steal: NotRequired[float | None]
    shared: NotRequired[bool]
    based_on: NotRequired[list[str]]
    probes: NotRequired[Probes | None]


class MachineContent(TypedDict):
    """What identifies a machine (see :func:`rmsexp.system.machine.identity`)."""

    id: str
    name: NotRequired[str]


class Git(TypedDict, total=False):
    """The commit that a process ran, and whether there were uncommitted changes; None if that is not known."""

    commit: str | None
    dirty: bool | None


class Session(TypedDict):
    """One process that worked on a run, or measured for a timing."""

    from_step: NotRequired[Count]
    started: NotRequired[str]
    git: NotRequired[Git]
    code: NotRequired[str | None]
    versions: NotRequired[dict[str, str]]
    device: NotRequired[str]
    device_type: NotRequired[str]
    threads: NotRequired[Count]
    machine: NotRequired[MachineContent]
    contention: NotRequired[ContentionContent | None]
    comparable: NotRequired[bool]
    trained: NotRequired[bool]
    own_code: NotRequired[str]
    slurm_job: NotRequired[str | None]
    world_size: NotRequired[Count]


class DatasetContent(TypedDict):
    """The data of a run. ``builtin``: whether they are synthetic."""

    digest: str
    name: NotRequired[str]
    builtin: NotRequired[bool]


class TargetContent(TypedDict):
    """The metric by which runs are compared (see :class:`rmsexp.task.Target`)."""

    split: NotRequired[str]
    metric: NotRequired[str]
    mode: NotRequired[Literal["min", "max"]]
    selection: NotRequired[str]
    loss_unit: NotRequired[str]
    chance: NotRequired[float | None]


class Parameters(TypedDict):
    """The number of parameters of a model; None: unknown."""

    total: Count | None


class RunContent(TypedDict):
    """The content of ``run.json``."""

    dataset: DatasetContent
    sessions: list[Session]
    task: NotRequired[str]
    norm: NotRequired[str]
    scale: NotRequired[str]
    seed: NotRequired[Annotated[int, Between(-LARGEST_INTEGER, LARGEST_INTEGER)]]
    setting: NotRequired[str]
    series: NotRequired[str]
    impl: NotRequired[str]
    recipe_steps: NotRequired[Annotated[int, Between(0, MOST)]]
    target: NotRequired[TargetContent]
    parameters: NotRequired[Parameters]
    precision: NotRequired[str | None]
    evaluation: NotRequired[Literal["scored", "validation"] | None]
    predictions: NotRequired[str | None]
    quantities: NotRequired[list[dict[str, Any]]]
    notes: NotRequired[dict[str, str] | None]


class RunFolder:
    """The files of one run, below ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path, self.run_path, self.metrics_path, self.status_path, self.checkpoints = (
            path / name for name in (CONFIG, RUN, METRICS, STATUS, CHECKPOINTS)
        )
        self.log_path, self.traceback_path = path / "run.log", path / "traceback.txt"
        # the words of the run's command line, in the place where programs with Hydra have them
        self.overrides_path = path / ".hydra" / "overrides.yaml"
        # beside the folder, which can thus be renamed while it is locked
        self.lock = Lock(path.parent / f".{path.name}.lock", path)

    def is_locked(self) -> bool:
        """Return whether a living process, possibly this one, holds the run's lock."""
        return is_locked(self.lock.path)

    def move_aside(self) -> Path | None:
        """Rename the folder, if there is anything in it, to ``<name>.old<number>``, with the smallest unused number.

        Return its new path; None if it is empty, as Hydra makes it, or missing.
        """
        return atomic.move_aside(self.path) if self.path.exists() and any(self.path.iterdir()) else None

    def remove_temporaries(self) -> None:
        """Remove the temporary files of processes that were killed in :func:`rmsexp.system.atomic.write_atomic`.

        The caller must hold the run's lock.
        """
        for path in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
            path.unlink()

    def write_status(
        self,
        status: Status,
        step: int,
        error: str | None = None,
        *,
        run: str | None = None,
        checkpoint: int | None = None,
    ) -> None:
        """Replace ``status.json``, with a digest of its content and, of a finished or diverged run, one of the metrics.

        ``error``: why a run diverged, failed or was interrupted. ``run``: the name of the run. ``checkpoint``: the step
        of the last checkpoint, 0 if there is none; None: unknown.

        Raises: RunLockedError if another process may have taken over the run.
        """
        self.lock.check()
        content: dict[str, Any] = {"status": status, "step": step, "error": error, "process": os.getpid()}
        content |= {"run": run, "checkpoint": checkpoint, "metrics": None}
        if status in ENDED:
            self.metrics_path.touch()  # a run that diverged at its first step has no rows
            content["metrics"] = _extent(read_regular(self.metrics_path))
        atomic.write_json(self.status_path, content | {"digest": digest_of_values(content)})

    def read_status(self) -> StatusContent:
        """Return the content of ``status.json``, with "interrupted" instead of "running" if no process holds the lock.

        Raises: OSError or ValueError if the file is missing or damaged.
        """
        status = self._stored_status()
        if status["status"] == "running" and not self.is_locked():
            status = self._stored_status()  # the run may have ended since
            if status["status"] == "running":
                status |= {"status": "interrupted", "error": "the process died without writing a status"}
        return status

    def _stored_status(self) -> StatusContent:
        status = read_typed(self.status_path, StatusContent)
        digest = status.pop("digest", None)
        if (digest is not None or "metrics" in status) and digest != digest_of_values(status):
            raise ValueError(f"{self.status_path} has changed since it was written: its digest is another")
        return status

    def read_run(self) -> RunContent:
        """Return the content of ``run.json``. Raises: OSError or ValueError if the file is missing or damaged."""
        return read_typed(self.run_path, RunContent)

    def write_sources(self, sources: Mapping[str, bytes]) -> None:
        """Write the user's own modules, sources by module name, to ``own_code/<name>.py``, in place of earlier ones."""
        shutil.rmtree(self.path / OWN_CODE, ignore_errors=True)
        for name, source in sources.items():
            (self.path / OWN_CODE).mkdir(exist_ok=True)
            atomic.write_atomic(self.path / OWN_CODE / f"{name}.py", source)

    def read_sources(self) -> dict[str, bytes]:
        """Return the sources that :meth:`write_sources` has written, by module name; {} if there are none."""
        return {path.stem: read_regular(path) for path in (self.path / OWN_CODE).glob("*.py")}

    def append(self, rows: list[Row]) -> int:
        """Append rows to the metrics and return the file's length in bytes once they are on the disk.

        The trainer's rows have ``step, epoch, examples, seconds`` (by bucket of the clock), all since the run began,
        ``split`` (train, valid, valid_sample or a test set), ``loss`` (mean per prediction) and the task's other
        metrics; None for values that are not finite. A training row is about the steps since the previous one and also
        has ``predictions`` (how many), ``objective`` and ``grad_norm`` (means over steps of the training objective
        and of the gradient's norm before clipping), and ``lr`` (of the last step).

        Raises: RunLockedError if another process may have taken over the run; ValueError for NaN or an infinite value.
        """
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        self.lock.check()
        with open_regular(self.metrics_path, "ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def cut_metrics(self, length: int) -> None:
        """Cut the metrics to ``length`` bytes; a restarted run writes the rest again. Raises: ValueError if shorter."""
        found = self.metrics_path.stat().st_size if self.metrics_path.exists() else 0
        if found < length:
            missing = f"has {found} bytes, fewer than the {length} at its last checkpoint"
            raise ValueError(f"{self.metrics_path} {missing}")
        with open_regular(self.metrics_path, "ab") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def read_metrics(self) -> tuple[list[Row], str | None]:
        """Return the rows of the metrics up to the first damaged line, and a message about the damage (or None).

        Damage is a line that is no row, or a change since the run finished or diverged (see :meth:`write_status`).
        Raises: OSError if the file is missing or cannot be read.
        """
        try:
            status: Mapping[str, Any] = self.read_status()  # first: a living process may append rows meanwhile
        except (OSError, ValueError):
            status = {}
        content = read_regular(self.metrics_path)
        rows, damaged = _rows(content)
        if damaged is not None:
            problem = "not a row of metrics; this line and those after it are left out"
            return rows, f"{self.metrics_path}:{damaged}: {problem}"
        recorded = status.get("metrics")
        if recorded is not None and status["status"] in ENDED and recorded != _extent(content):
            return rows, f"{self.metrics_path} has changed since {STATUS} was written: its digest is another"
        return rows, None


def digest_of_sources(sources: Mapping[str, bytes]) -> str:
    """Return a digest of sources by module name, the value of ``own_code`` in sessions; "" if there are none."""
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(name.encode() + b"\0" + source)
    return digest.hexdigest()[:16] if sources else ""


def _extent(content: bytes) -> dict[str, int | str]:
    """Return what a status records of a metrics file: its length and its SHA-256."""
    return {"bytes": len(content), "digest": hashlib.sha256(content).hexdigest()}


def _rows(content: bytes) -> tuple[list[Row], int | None]:
    """Return the rows up to the first damaged line of a metrics file, and the number of this line (or None)."""
    rows: list[Row] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return rows, number
        if not (isinstance(row, dict) and isinstance(row.get("split"), str) and type(row.get("step")) in (int, float)):
            return rows, number
        row["split"] = OLD_SPLITS.get(row["split"], row["split"])
        rows.append(row)
    return rows, None


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN, Infinity and -Infinity, which Python's parser of JSON takes for numbers. Raises: ValueError."""
    raise ValueError(f"{constant} is no JSON value")


def number(value: object) -> float:
    """Return a value of a record as a float; NaN if it is no number, or its absolute value is above ``LARGEST``."""
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST else math.nan


def digest_of_values(content: Mapping[str, object]) -> str:
    """Return the digest of a mapping of plain values, such as a status or a campaign's rules."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def left_out(root: Path, module: str) -> str:
    """Return a line that says that the command ``module`` leaves out ``<root>/reference``; "" without this folder."""
    reference = root / REFERENCE
    return f"left out: the committed records; for them: {command(module, str(reference))}" if reference.is_dir() else ""


def find(root: Path, pattern: str) -> list[Path]:
    """Return the sorted files below ``root`` whose paths end like ``pattern``; its last part must have no wildcards.

    Hidden folders, the committed records in ``<root>/reference`` and folders whose names are not UTF-8 are left out.
    Links to folders are followed, unless they lead to ``root``, the target of an earlier link, a folder below one of
    these, or a folder that contains ``root``.
    """
    searched, found, name = [root.resolve()], list[Path](), PurePath(pattern).name

    def is_searched(folder: Path) -> bool:
        if any("\ud800" <= character <= "\udfff" for character in folder.name):  # a byte that is not UTF-8
            return False
        if not folder.is_symlink():
            return True
        target = folder.resolve()
        if searched[0].is_relative_to(target) or any(target.is_relative_to(other) for other in searched):
            return False
        searched.append(target)
        return True

    # unlike rglob, os.walk passes over folders that are removed meanwhile
    for folder, folders, files in os.walk(root, followlinks=True):
        own = [each for each in folders if not (each.startswith(".") or (each == REFERENCE and Path(folder) == root))]
        folders[:] = [each for each in own if is_searched(Path(folder, each))]
        found += [Path(folder, name)] * (name in files)
    return sorted(path for path in found if path.match(pattern))


def find_runs(root: Path, files: Sequence[str] = (RUN, METRICS)) -> Iterator[Path]:
    """Yield the folder of every run below ``root``, sorted, except hidden folders and runs that were moved aside.

    Runs in ``<root>/reference`` are left out, too. ``files``: a folder that has one of these files is a run. A run that
    failed early has only a ``status.json``.
    """
    for folder in sorted({path.parent for name in files for path in find(root, name)}):
        if ".old" not in folder.name:
            yield folder


def metrics_text(row: Row, metric: str | None) -> str:
    """Return loss and another ``metric`` of an evaluation's row for printing, such as "loss 0.5432, error 0.1234".

    A value that is missing, or None because it was not finite, is left out.
    """
    values = {key: row[key] for key in ("loss", metric) if key is not None and isinstance(row.get(key), int | float)}
    return ", ".join(f"{key} {value:.4f}" for key, value in values.items())
