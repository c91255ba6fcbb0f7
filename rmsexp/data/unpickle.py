"""Read pickles from other sources as plain data, without running code that they name.

A pickle may name any function, and Python's own reader would call it. The reader here knows only the names that plain
data needs. A forged pickle may take much memory or crash the process, but it cannot run code.
"""

from __future__ import annotations

import io
import pickle
from pickle import UnpicklingError as UnpicklingError
from typing import Any

import numpy as np

KINDS = "biufSU"  # numpy's kinds of types that arrays may have: numbers and strings


def unpickle(content: bytes) -> Any:
    """Return the content of a pickle of plain containers, numbers, strings, bytes and numpy arrays.

    An OrderedDict or defaultdict is read as a plain dictionary. Pickles written by Python 2 are read, too; their 8-bit
    strings are decoded as Latin-1.

    Raises: UnpicklingError if the pickle is damaged or has other content.
    """
    try:
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise any exception
        problem = "" if isinstance(error, UnpicklingError) else f"it is damaged: {type(error).__name__} "
        raise UnpicklingError(" ".join(f"{problem}{error}".split())) from None


def _dtype(name: str, *_flags: object) -> np.dtype:
    dtype = np.dtype(name, copy=True)  # a copy, because its byte order is then set
    if dtype.kind not in KINDS:
        raise UnpicklingError(f"it has an array of type {name!r}, which is not allowed")
    return dtype


# what a pickle may refer to by name -> what it gets; a text cannot be called
_ALLOWED: dict[str, Any] = {
    "numpy.dtype": _dtype,
    "numpy.ndarray": "the class of an array",
    **{f"numpy.{core}.multiarray._reconstruct": lambda *_: np.empty(0) for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": np.float64().__reduce__()[0] for core in ("core", "_core")},
    "collections.OrderedDict": dict,
    "collections.defaultdict": lambda *_: {},
    **{f"{module}.list": "the default of a defaultdict" for module in ("__builtin__", "builtins")},
    "_codecs.encode": lambda text, _: text.encode("latin1"),  # how Python 3 stores bytes for Python 2
}


class _Unpickler(pickle._Unpickler):
    """Finds the allowed names only. It derives from Python's reader in Python, whose operations can be replaced."""

    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _ALLOWED:
            raise UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return _ALLOWED[f"{module}.{name}"]

    def load_build(self) -> None:
        """Set the content of an array, or the byte order of a dtype.

        Other state of a dtype is refused: forged fields or sizes make numpy read memory outside of the array.
        """
        last, state = self.stack[-2:]
        plain = isinstance(last, np.dtype) and state[2:] == last.__reduce__()[2][2:]
        if not plain and not isinstance(last, np.ndarray):
            raise UnpicklingError(f"it sets attributes of a {type(last).__name__}")
        super().load_build()  # type: ignore[misc]

    dispatch = pickle._Unpickler.dispatch | {pickle.BUILD[0]: load_build}  # type: ignore[assignment]
