"""Read ``top4``: CNN questions whose passages are shortened to four sentences, as pickles of Python 2.

The code that the paper builds on, cooijmanstim/Attentive_reader, named their address, which is dead.

Deviation: attentive reader, last id of the published passages and questions
    original: removed from every sequence, whatever it is (attentive-reader:codes/att_reader/attentive_reader.py:36-37)
    ours: removed only if all sequences of a file end in 0
    why: an id that is no mark of the end is a word of the text
    effect: none on files whose sequences all end in 0; not checked, for want of the original files
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from rmsexp.data import Report, Source
from rmsexp.data.cloze import ENTITY, RESERVED, Cloze, Examples, stored
from rmsexp.data.cloze import UNK as UNKNOWN_WORD
from rmsexp.data.files import checked, digest_of, key, require

KIND = "as the authors published it"  # what a damaged file is not

TOP4_ORIGIN = (
    "top4 was at http://www.cs.toronto.edu/~rkiros/top4.zip. Unpack it into this folder, or use data.name=cnn "
    "data.sentences=4, which makes similar passages from question files."
)
TOP4_SPLITS = {"train": "train4", "valid": "valid4"}  # our name of a split -> its name in the files
TOP4_FILES = ("dict.pkl", *(f"{split}_{part}.pkl" for split in TOP4_SPLITS.values() for part in ("pass", "qs", "ans")))


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


def top4(root: Path) -> Source[Cloze]:
    """Return the published questions with passages of four sentences, in TOP4_FILES of ``<root>/top4``.

    As in the published model, the vocabulary has one word more than dict.pkl. The id that dict.pkl does not use is
    named ``<unused>``, or, if it is below 4, as in RESERVED.

    Raises: DataError if a file is missing. ``load`` raises DataError if a file is damaged.
    """
    folder = root / "top4"
    paths = [folder / name for name in TOP4_FILES]
    require("CNN top4", folder, paths, TOP4_ORIGIN)
    digest = digest_of(paths)

    def make(_: Report) -> Cloze:
        words = _words(folder / "dict.pkl")
        return Cloze(words, {split: _examples(folder, name, len(words)) for split, name in TOP4_SPLITS.items()})

    return stored(root, "CNN top4", digest, key(__file__, digest), make)


def _words(path: Path) -> list[str]:
    """Return n + 1 words by id. The file is a pickled dictionary that gives n words distinct ids from 0 to n."""
    with checked(path, KIND) as content:
        ids = dict(unpickled(content))
        names = {id: word for word, id in ids.items()}
        if len(names) < len(ids) or not names.keys() <= set(range(len(ids) + 1)):
            raise ValueError(f"its {len(ids):,} words must have distinct ids from 0 to {len(ids):,}")
        if ENTITY.fullmatch(names.get(UNKNOWN_WORD, "")):  # every answer to its questions would count as wrong
            raise ValueError(f"the id of {names[UNKNOWN_WORD]!r} is {UNKNOWN_WORD}, which is the unknown word's")
        return [names.get(id, RESERVED[id] if id < len(RESERVED) else "<unused>") for id in range(len(ids) + 1)]


def _examples(folder: Path, prefix: str, size: int) -> Examples:
    passages, questions, answers = (_rows(folder / f"{prefix}_{part}.pkl", size) for part in ("pass", "qs", "ans"))
    with checked(folder / f"{prefix}_ans.pkl", KIND):
        if any(len(answer) != 1 for answer in answers):
            raise ValueError("each question needs one answer")
        return Examples.from_lists(zip(passages, questions, answers, strict=True))


def _rows(path: Path, size: int) -> list[np.ndarray]:
    """Return a pickled list of lists of ids, which must be below ``size``. If every list ends in 0, remove this 0."""
    with checked(path, KIND) as content:
        rows = [np.asarray(ids) for ids in unpickled(content)]
        if not rows or not all(map(len, rows)):
            raise ValueError("a list is empty")
        if any(row.ndim != 1 or row.dtype.kind not in "iu" or row.min() < 0 or row.max() >= size for row in rows):
            raise ValueError("an id is no integer, or has no word")
        if all(row[-1] == 0 for row in rows):
            rows = [row[:-1] for row in rows]
        if not rows or not all(map(len, rows)):
            raise ValueError("a list is empty")
        return rows
