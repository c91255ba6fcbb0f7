"""Read the files that the paper's authors published with their code: two training logs and a trained model.

- ``results.csv``: log of CIFAR-10, written by train.py of TimSalimans/weight_norm;
- ``stats_<model>.pkl``: log of the attentive reader, written by attentive_reader.py of cooijmanstim/Attentive_reader;
- ``<model>.npz`` with ``<model>.pkl``: order-embedding, written by train.py of ivendrov/order-embedding.

Python 2 programs wrote these files. Logs are converted to rows of metrics (see
:meth:`rmsexp.records.record.RunFolder.append`).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rmsexp.data import DataError
from rmsexp.data.captions import EOS, UNK
from rmsexp.data.files import read_bytes
from rmsexp.data.unpickle import UnpicklingError, unpickle

Row = dict[str, Any]  # of metrics.jsonl

EPOCH_STEPS, EPOCH_IMAGES = 500, 50_000  # updates and training images per epoch of the authors' CIFAR-10 runs
CIFAR10_COLUMNS = ["epoch", "time", "train_error", "test_error"]
VALID_STEPS = 1000  # updates between two validations of the attentive reader: --validFreq in the authors' command
READER_LISTS = {  # split -> {our name of a metric: name of the list in the pickle that has its values}
    "train": {"loss": "train_cost_ave", "error": "train_err_ave", "grad_norm": "train_gnorm_ave"},
    "valid": {"loss": "valid_costs", "error": "valid_errs"},
}
LARGEST_MODEL = 1 << 30  # bytes of all arrays of a model, uncompressed: archives can expand to any size
REMEDY = "Give a file as the authors published it."


@dataclass(frozen=True)
class OrderModel:
    """A trained order-embedding model.

    ``arrays`` maps the name of each parameter to its values. Names are as stored, except that the prefix of the GRU's
    parameters is replaced by ``gru_``: ``gru_W``, ``gru_U`` and so on. Weight matrices have the shape (in, out).
    ``words`` maps the words of the model's vocabulary to ids. ``options`` are the training options.
    """

    arrays: Mapping[str, np.ndarray]
    words: Mapping[str, int]
    options: Mapping[str, Any]

    def ids(self, words: list[str]) -> np.ndarray:
        """Return the model's id of each word of our vocabulary ``words``, int64 of shape (word,).

        ``words`` is a list by id that begins with the names of EOS and UNK; these two keep their ids. A word that the
        model does not know, or whose id has no row in ``Wemb``, gets the id UNK.
        """
        ids = [EOS, UNK, *(self.words.get(word, UNK) for word in words[UNK + 1 :])]
        return np.where(np.array(ids) < len(self.arrays["Wemb"]), ids, UNK)


def cifar10_rows(path: Path) -> list[Row]:
    """Return a training row and a test row of metrics for each epoch in ``results.csv``.

    The file has errors (fractions) but no losses, and counts epochs from 0; rows count them from 1. Its time includes
    test passes, while the time axis of curves shows only the seconds of the buckets data and train. So that these rows
    are not drawn on a time axis, ``seconds`` has the file's time in the bucket train and no bucket data.

    Raises: DataError if the file cannot be read or does not have the expected format.
    """
    try:
        header, *lines = read_bytes(path, REMEDY).decode("ascii").splitlines()
    except ValueError:  # not ASCII, or no lines
        header, lines = "", []
    if [cell.strip() for cell in header.split(",")] != CIFAR10_COLUMNS:
        raise DataError(f"{path}, line 1: this line must be the header {', '.join(CIFAR10_COLUMNS)}.\n{REMEDY}")
    if not lines:
        raise DataError(f"{path} has a header, but no epochs.\n{REMEDY}")
    rows: list[Row] = []
    previous_seconds = 0.0
    for number, line in enumerate(lines, 2):
        try:
            epoch, seconds, train_error, test_error = map(_number, line.split(","))
        except ValueError:
            raise DataError(f"{path}, line {number}: not four numbers ({line[:60]!r}).\n{REMEDY}") from None
        epochs = number - 1
        if epoch != epochs - 1:
            raise DataError(f"{path}, line {number}: epoch {epoch:g} instead of {epochs - 1}.\n{REMEDY}")
        if not previous_seconds <= seconds < math.inf:
            raise DataError(
                f"{path}, line {number}: the time is {seconds:g} s; "
                f"it must be finite and at least {previous_seconds:g} s.\n{REMEDY}"
            )
        if not (0 <= train_error <= 1 and 0 <= test_error <= 1):
            raise DataError(f"{path}, line {number}: an error is not between 0 and 1 ({line[:60]!r}).\n{REMEDY}")
        previous_seconds = seconds
        progress = {"step": EPOCH_STEPS * epochs, "epoch": epochs, "examples": EPOCH_IMAGES * epochs}
        for split, error in (("train", train_error), ("test", test_error)):
            rows.append(progress | {"split": split, "error": error, "seconds": {"train": seconds}})
    return rows


def _number(text: str) -> float:
    """Return a number in decimal notation. Raises: ValueError, for 1_0 as well, which Python takes for 10."""
    if "_" in text:
        raise ValueError
    return float(text)


def reader_rows(path: Path) -> list[Row]:
    """Return a training row and a validation row of metrics for each validation that a ``stats_*.pkl`` logs.

    The metrics of a training row are running averages (0.9 old + 0.1 new) of values computed with dropout, which the
    authors' code restarts after each validation. ``grad_norm`` is the norm of the gradient after clipping. A value that
    is not finite becomes None. Rows have no ``seconds``.

    Raises: DataError if the file cannot be read or lacks the expected lists.
    """
    stats = _unpickled(path)
    values = {name: _numbers(path, stats, name) for names in READER_LISTS.values() for name in names.values()}
    lengths = {name: len(numbers) for name, numbers in values.items()}
    if len(set(lengths.values())) > 1 or not lengths["valid_errs"]:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{path}: its lists must have the same length and not be empty ({listed}).\n{REMEDY}")
    return [
        {"step": VALID_STEPS * (index + 1), "split": split}
        | {metric: values[name][index] for metric, name in names.items()}
        for index in range(lengths["valid_errs"])
        for split, names in READER_LISTS.items()
    ]


def order_model(path: Path) -> OrderModel:
    """Return the model whose parameters are in ``path``, such as order.npz; words and options are read from order.pkl.

    Raises: DataError if a file cannot be read or does not have the expected content.
    """
    arrays = _arrays(path)
    encoder = next((name.removesuffix("Ux") for name in arrays if name.endswith("_Ux")), None)
    if encoder is None or any(name not in arrays or arrays[name].ndim != 2 for name in ("Wemb", "ff_image_W")):
        raise DataError(
            f"{path} is no order-embedding model: it needs matrices Wemb, ff_image_W and one whose name ends in _Ux "
            f"(it has {', '.join(arrays) or 'nothing'}).\n{REMEDY}"
        )
    pickle_path = path.with_suffix(".pkl")
    content = _unpickled(pickle_path)
    options, words = content.get("options"), content.get("worddict")
    if not (isinstance(options, dict) and isinstance(words, dict)):
        raise DataError(f"{pickle_path} lacks 'options' or 'worddict' as dictionaries.\n{REMEDY}")
    wrong = next((word for word, index in words.items() if type(index) is not int or index <= UNK), None)
    if wrong is not None:
        raise DataError(
            f"{pickle_path}: the id of {wrong!r} in 'worddict' is {words[wrong]!r}, not an integer above {UNK}.\n"
            f"{REMEDY}"
        )
    renamed = {
        f"gru_{name.removeprefix(encoder)}" if name.startswith(encoder) else name: arrays[name] for name in arrays
    }
    return OrderModel(renamed, words, options)


def _unpickled(path: Path) -> dict[str, Any]:
    content = read_bytes(path, REMEDY)
    try:
        value = unpickle(content)
    except UnpicklingError as error:
        raise DataError(f"{path} is no pickle of plain values ({error}).\n{REMEDY}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, not a dictionary.\n{REMEDY}")
    return value


def _numbers(path: Path, stats: Mapping[str, Any], name: str) -> list[float | None]:
    """Return the list ``name`` of the log ``stats`` as floats; numbers that are not finite become None.

    Raises: DataError if the list is missing or is no list of numbers. ``path`` is the log's file, for the message.
    """
    if name not in stats:
        raise DataError(f"{path} has no list {name!r} (it has {', '.join(map(str, stats))}).\n{REMEDY}")
    values = stats[name]
    try:
        if not isinstance(values, list | np.ndarray) or any(
            np.asarray(value).dtype.kind not in "iuf" for value in values
        ):
            raise TypeError
        numbers = [float(value) for value in values]  # a value may be an array without axes
    except (TypeError, ValueError):
        raise DataError(f"{path}: {name!r} is not a list of numbers.\n{REMEDY}") from None
    return [number if math.isfinite(number) else None for number in numbers]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LARGEST_MODEL:
            raise ValueError(f"its arrays have {size:,} bytes, but at most {LARGEST_MODEL:,} are read")
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # errors of numpy and zipfile have many types
        raise DataError(f"{path} cannot be read as .npz ({error or type(error).__name__}).\n{REMEDY}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"{path}: {name} is not an array of finite floats.\n{REMEDY}")
    return arrays
