"""What the paper's authors published beside their code: two logs of training, and a trained model.

- ``results.csv``: CIFAR-10, written by train.py of TimSalimans/weight_norm;
- ``stats_<model>.pkl``: the attentive reader, by attentive_reader.py of cooijmanstim/Attentive_reader;
- ``<model>.npz`` with ``<model>.pkl``: order-embedding, by train.py of ivendrov/order-embedding.

Python 2 wrote all of them. Logs are read as rows of a record (see :func:`rmsexp.record.append`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rmsexp.data import DataError
from rmsexp.data.captions import EOS, UNK
from rmsexp.data.unpickle import unpickle
from rmsexp.record import Row

EPOCH_STEPS, EPOCH_IMAGES = 500, 50_000  # of CIFAR-10
CIFAR10_COLUMNS = ["epoch", "time", "train_error", "test_error"]
VALID_STEPS = 1000  # between the reader's validations: --validFreq in the authors' command
READER_LISTS = {
    "train": {"loss": "train_cost_ave", "error": "train_err_ave", "grad_norm": "train_gnorm_ave"},
    "valid": {"loss": "valid_costs", "error": "valid_errs"},
}
REMEDY = "Give a file as the authors published it."


@dataclass(frozen=True)
class OrderModel:
    """A stored order-embedding model.

    ``arrays``: the parameters by their stored names, those of the GRU as ``gru_W`` and so on; matrices are (in, out).
    ``words``: ids by word. ``options``: what it was trained with.
    """

    arrays: Mapping[str, np.ndarray]
    words: Mapping[str, int]
    options: Mapping[str, Any]

    def ids(self, words: list[str]) -> np.ndarray:
        """The model's ids, int64 of shape (word,), of a vocabulary by id; UNK where it does not know a word."""
        ids = [EOS, UNK, *(self.words.get(word, UNK) for word in words[UNK + 1 :])]
        return np.where(np.array(ids) < len(self.arrays["Wemb"]), ids, UNK)


def cifar10_rows(path: Path) -> list[Row]:
    """A training and a test row for each epoch of ``results.csv``, which has errors and no losses.

    Its time is that of training and test passes together: ``seconds`` has the bucket train alone, so that these rows
    have no place on a time axis, which is data + train.

    Raises: DataError.
    """
    try:
        header, *lines = _read(path).decode("ascii").splitlines()
    except ValueError:  # not ASCII, or no line at all
        header, lines = "", []
    if [cell.strip() for cell in header.split(",")] != CIFAR10_COLUMNS:
        raise DataError(f"{path}, line 1: not the header {', '.join(CIFAR10_COLUMNS)}.\n{REMEDY}")
    if not lines:
        raise DataError(f"{path} has a header and no epoch.\n{REMEDY}")
    rows: list[Row] = []
    earlier = 0.0
    for number, line in enumerate(lines, 2):
        try:
            epoch, seconds, train_error, test_error = map(float, line.split(","))
        except ValueError:
            raise DataError(f"{path}, line {number}: not four numbers ({line[:60]!r}).\n{REMEDY}") from None
        epochs = number - 1
        if epoch != epochs - 1:
            raise DataError(f"{path}, line {number}: epoch {epoch:g}, where {epochs - 1} was to follow.\n{REMEDY}")
        if not earlier <= seconds < math.inf:
            raise DataError(f"{path}, line {number}: the time is {seconds:g} s, after {earlier:g} s.\n{REMEDY}")
        if not (0 <= train_error <= 1 and 0 <= test_error <= 1):
            raise DataError(f"{path}, line {number}: an error is no fraction of 1 ({line[:60]!r}).\n{REMEDY}")
        earlier = seconds
        shared = {"step": EPOCH_STEPS * epochs, "epoch": epochs, "examples": EPOCH_IMAGES * epochs}
        timed = {"seconds": {"train": seconds}}
        rows.append(shared | {"split": "train", "error": train_error} | timed)
        rows.append(shared | {"split": "test", "error": test_error} | timed)
    return rows


def reader_rows(path: Path) -> list[Row]:
    """A training and a validation row for each validation of a ``stats_*.pkl``.

    Training rows hold running averages (0.9 old + 0.1 new) with dropout, begun anew after each validation; the norm of
    the gradient is the one after clipping.

    Raises: DataError.
    """
    stats = _unpickled(path)
    values = {name: _numbers(path, stats, name) for names in READER_LISTS.values() for name in names.values()}
    lengths = {name: len(numbers) for name, numbers in values.items()}
    if len(set(lengths.values())) > 1 or not lengths["valid_errs"]:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{path}: its lists should be of one length, and not empty ({listed}).\n{REMEDY}")
    return [
        {"step": VALID_STEPS * (index + 1), "split": split}
        | {metric: values[name][index] for metric, name in names.items()}
        for index in range(lengths["valid_errs"])
        for split, names in READER_LISTS.items()
    ]


def order_model(path: Path) -> OrderModel:
    """The model in ``path``, an .npz file, with the .pkl file beside it.

    Raises: DataError.
    """
    arrays = _arrays(path)
    encoder = next((name.removesuffix("Ux") for name in arrays if name.endswith("_Ux")), None)
    if encoder is None or any(name not in arrays or arrays[name].ndim != 2 for name in ("Wemb", "ff_image_W")):
        raise DataError(
            f"{path} is no order-embedding model: it needs matrices Wemb, ff_image_W and one whose name ends in _Ux "
            f"(it has {', '.join(arrays) or 'nothing'}).\n{REMEDY}"
        )
    described = path.with_suffix(".pkl")
    stored = _unpickled(described)
    options, words = stored.get("options"), stored.get("worddict")
    if not (isinstance(options, dict) and isinstance(words, dict)):
        raise DataError(f"{described} lacks 'options' or 'worddict' as dictionaries.\n{REMEDY}")
    wrong = next((word for word, one in words.items() if type(one) is not int or one <= UNK), None)
    if wrong is not None:
        raise DataError(f"{described}: the id of {wrong!r} in 'worddict' is {words[wrong]!r}, no word's.\n{REMEDY}")
    renamed = {
        f"gru_{name.removeprefix(encoder)}" if name.startswith(encoder) else name: arrays[name] for name in arrays
    }
    return OrderModel(renamed, words, options)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def _unpickled(path: Path) -> dict[str, Any]:
    content = _read(path)
    try:
        value = unpickle(content)
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{path} is no pickle of plain values ({error or type(error).__name__}).\n{REMEDY}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no dictionary, but {type(value).__name__}.\n{REMEDY}")
    return value


def _numbers(path: Path, stats: Mapping[str, Any], name: str) -> list[float | None]:
    """A list of the pickle; None where a number is not finite, as records have it."""
    try:
        numbers = [float(value) for value in stats[name]]
    except KeyError:
        raise DataError(f"{path} has no list {name!r} (it has {', '.join(map(str, stats))}).\n{REMEDY}") from None
    except (TypeError, ValueError):
        raise DataError(f"{path}: {name!r} is no list of numbers.\n{REMEDY}") from None
    return [number if math.isfinite(number) else None for number in numbers]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # numpy's and zipfile's, of many types
        raise DataError(f"{path} cannot be read as .npz ({error or type(error).__name__}).\n{REMEDY}") from None
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"{path}: {name} holds values that are no finite numbers.\n{REMEDY}")
    return arrays
