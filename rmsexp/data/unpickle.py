"""Pickles from outside, read without running what is in them."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np


def unpickle(content: bytes) -> Any:
    """The arrays and plain containers of a pickle, Python 2's too (its strings are read as Latin-1).

    Raises: pickle.UnpicklingError if it refers to any code but the constructors of those and of numpy's arrays and
    numbers; anything else for a damaged one.
    """
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()


def _latin1(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy has moved them before, and pickles keep the names of their day
_SCALAR = np.float64(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,  # what a defaultdict makes
    ("builtins", "list"): list,
    ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes in the protocols of Python 2
}


class _Unpickler(pickle.Unpickler):
    """A pickle is a program, and any other name in it could be a command."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which has no place in one") from None
