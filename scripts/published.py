"""Draw, beside your runs, a log published by the authors of the paper or of the code that it builds on.

    python scripts/published.py FILE [--norm NORM] [--seed SEED] [--results RESULTS]

Logs are ``results.csv`` (CIFAR-10, written by train.py of TimSalimans/weight_norm) and ``stats_<model>.pkl`` (attentive
reader, written by attentive_reader.py of cooijmanstim/Attentive_reader). A log becomes the record of a run in
<results>/<task>/paper/<norm>+published/seed<k>, and the curves of that setting are redrawn.
"""

import hashlib
import io
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmsexp import config, tasks
from rmsexp.data import files
from rmsexp.records import record
from rmsexp.report import draw
from rmsexp.system import atomic, readers
from rmsexp.system.command_line import Parser, command, entry_point, number, value_word

SCALE = "paper"
KIND = "as the authors published it"  # what a damaged file is not
EPOCH_STEPS, EPOCH_IMAGES = 500, 50_000  # updates and training images per epoch of the authors' CIFAR-10 runs
CIFAR10_COLUMNS = ["epoch", "time", "train_error", "test_error"]
VALID_STEPS = 1000  # updates between two validations of the attentive reader: --validFreq in the authors' command
READER_LISTS = {  # split -> {our name of a metric: name of the list in the pickle that has its values}
    "train": {"loss": "train_cost_ave", "error": "train_err_ave", "grad_norm": "train_gnorm_ave"},
    "valid": {"loss": "valid_costs", "error": "valid_errs"},
}


class Log(NamedTuple):
    """How a published log becomes the record of a run of ``task``. ``read`` returns its rows from the log's path.

    ``device``: on which the paper's times were measured. ``assumed``: what the log does not say, for the notes.
    """

    task: str
    read: Callable[[Path], list[record.Row]]
    dataset: str
    device: str
    assumed: str


class _StandIn:
    """Stands in for numpy.dtype and numpy.ndarray in a pickle, and keeps their arguments and state.

    numpy itself trusts the state of a pickled dtype, which can make it read bytes as pointers.
    """

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.parts += state

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        shape, dtype, by_columns, data = self.parts[-4:]
        return _numbers(dtype, data).reshape(shape, order="F" if by_columns else "C")


def _numbers(kept: _StandIn, data: str | bytes) -> np.ndarray:
    code, _, _, _, order, *_ = kept.parts
    if (dtype := np.dtype(order + code)).kind not in "biuf":
        raise pickle.UnpicklingError(f"it has values of type {dtype}, which are no numbers")
    return np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, dtype)


PLAIN = {  # what pickles of containers, numbers, strings and arrays refer to -> what stands in for it
    **dict.fromkeys(("collections.OrderedDict", "collections.defaultdict", "_codecs.encode")),
    **dict.fromkeys(("__builtin__.list", "builtins.list")) | dict.fromkeys(("numpy.dtype", "numpy.ndarray"), _StandIn),
    **{f"numpy.{core}.multiarray._reconstruct": _StandIn for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": lambda *of: _numbers(*of)[0] for core in ("core", "_core")},
}


class _PlainUnpickler(pickle.Unpickler):
    """Refuses functions that plain data does not need: a pickle may name any function, which reading it would call."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in PLAIN:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return PLAIN[f"{module}.{name}"] or super().find_class(module, name)


def unpickled(content: bytes) -> Any:
    """Return a pickle's plain data. np.asarray converts arrays; 8-bit strings of Python 2 are decoded as Latin-1."""
    return _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()


def cifar10_rows(path: Path) -> list[record.Row]:
    """Return a training row and a test row of metrics for each epoch in ``results.csv``.

    The file has errors (fractions) but no losses, and counts epochs from 0; rows count them from 1. Its time includes
    test passes, while the time axis of curves shows only the seconds of the buckets data and train. So that these rows
    are not drawn on a time axis, ``seconds`` has the file's time in the bucket train and no bucket data.

    Raises: DataError if the file cannot be read or does not have the expected format.
    """
    with files.checked(path, KIND) as content:
        header, *lines = content.decode("ascii").splitlines()
        if [cell.strip() for cell in header.split(",")] != CIFAR10_COLUMNS or not lines:
            raise ValueError(f"it has no header {', '.join(CIFAR10_COLUMNS)}, or no epochs")
        table = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
        numbers, seconds, *errors = table.T
        if (numbers != np.arange(len(table))).any() or not (np.diff(seconds, prepend=0) >= 0).all():
            raise ValueError("its epochs do not count from 0, or its time decreases")
        if not ((table[:, 2:] >= 0) & (table[:, 2:] <= 1)).all() or not np.isfinite(seconds).all():
            raise ValueError("an error is not between 0 and 1, or a time is not finite")
    return [
        {"step": EPOCH_STEPS * epoch, "epoch": epoch, "examples": EPOCH_IMAGES * epoch}
        | {"split": split, "error": float(values[epoch - 1]), "seconds": {"train": float(seconds[epoch - 1])}}
        for epoch in range(1, len(table) + 1)
        for split, values in zip(("train", "test"), errors, strict=True)
    ]


def reader_rows(path: Path) -> list[record.Row]:
    """Return a training row and a validation row of metrics for each validation that a ``stats_*.pkl`` logs.

    The metrics of a training row are running averages (0.9 old + 0.1 new) of values computed with dropout, which the
    authors' code restarts after each validation. ``grad_norm`` is the norm of the gradient after clipping. A value that
    is not finite becomes None. Rows have no ``seconds``.

    Raises: DataError if the file cannot be read or lacks the expected lists of numbers.
    """
    rows: list[record.Row] = []
    with files.checked(path, KIND) as content:
        stats = unpickled(content)
        columns = [zip(*(stats[name] for name in lists.values()), strict=True) for lists in READER_LISTS.values()]
        for index, validation in enumerate(zip(*columns, strict=True), 1):
            for (split, lists), values in zip(READER_LISTS.items(), validation, strict=True):
                finite = (value if math.isfinite(value) else None for value in map(float, map(np.asarray, values)))
                rows.append({"step": VALID_STEPS * index, "split": split} | dict(zip(lists, finite, strict=True)))
        if not rows:
            raise ValueError("its lists are empty")
    return rows


LOGS = {  # by the ending of the log's name
    ".csv": Log(
        "cifar10",
        cifar10_rows,
        "CIFAR-10",
        "GeForce RTX 2080 Ti",
        f"{EPOCH_STEPS} updates per epoch; seconds include training and test passes",
    ),
    ".pkl": Log(
        "attentive_reader",
        reader_rows,
        "CNN top4",
        "TITAN X (Pascal)",
        f"validated every {VALID_STEPS} updates; training rows are running averages with dropout",
    ),
}


def import_log(path: Path, norm: str, seed: int, results: Path) -> Path:
    """Write the record of a published log and return its folder. Write nothing if it was imported before.

    Raises: DataError if the log cannot be read; FileExistsError if the folder contains another run.
    """
    log, series = LOGS[path.suffix], f"{norm}+published"
    task, rows = log.task, log.read(path)
    step, digest = rows[-1]["step"], hashlib.sha256(path.read_bytes()).hexdigest()
    folder = results / task / SCALE / series / f"seed{seed}"
    run = {
        "format": 1,
        "task": task,
        "norm": norm,
        "scale": SCALE,
        "seed": seed,
        "setting": SCALE,
        "series": series,
        "impl": "theano",
        "recipe_steps": step,
        "target": asdict(tasks.task_class(task).target),
        "quantities": [asdict(quantity) for quantity in tasks.task_class(task).quantities],
        "dataset": {"name": log.dataset, "digest": "unknown", "builtin": False},
        "notes": {"source": f"published by the authors as {path.name} (sha256 {digest})", "assumed": log.assumed},
        "parameters": {"total": None, "modules": {}},
        "sessions": [{"from_step": 0, "device": log.device, "comparable": False}],
    }
    if folder.exists() and readers.read_json(folder / record.RUN).get("notes") == run["notes"]:
        return folder  # imported before, perhaps by an older version, whose description has other keys
    with files.staging(folder) as temporary:
        if folder.exists():
            raise FileExistsError(f"{folder} contains another run; choose another --seed or --results")
        atomic.write_json(temporary / record.RUN, run)
        record.RunFolder(temporary).append(rows)
        atomic.write_json(temporary / record.STATUS, {"status": "finished", "step": step, "error": None})
        files.publish(temporary, folder)
    return folder


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python scripts/published.py", description=__doc__)
    parser.add_argument("file", type=Path, help="a file as the authors published it")
    parser.add_argument("--norm", choices=config.options("norm"), default="rms", help="the norm of FILE (%(default)s)")
    seed = number(int, 0, config.LARGEST_SEED)
    parser.add_argument("--seed", type=seed, default=0, help="tells several logs of one norm apart (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="root of all records")
    arguments = parser.parse_args(argv)
    if arguments.file.suffix not in LOGS:
        parser.error(f"{arguments.file} ends in none of {', '.join(LOGS)}")
    task, results = LOGS[arguments.file.suffix].task, config.results_folder(arguments.results)
    print(f"record  {import_log(arguments.file, arguments.norm, arguments.seed, results)}")
    print(f"curves  {draw(results, task, SCALE) / 'curves.png'}")
    words = [f"task={task}", f"norm={arguments.norm}", f"scale={SCALE}", value_word("results", results)]
    print(f"next    {command('rmsexp', *words)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
