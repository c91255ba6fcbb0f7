"""Read pickles from other sources without running code that they name."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np


def unpickle(content: bytes) -> Any:
    """Return the content of a pickle of plain containers, numbers, strings, bytes and numpy arrays.

    Pickles written by Python 2 are read, too; their 8-bit strings are decoded as Latin-1.

    Raises: pickle.UnpicklingError if the pickle refers to a function or class that is not in ``_ALLOWED``. A damaged
    pickle may raise any exception.
    """
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()


def _latin1(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


# numpy's functions that build an array and a scalar; their module has another name in older numpy
_RECONSTRUCT = np.empty(0).__reduce__()[0]
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
    ("__builtin__", "list"): list,  # the usual factory of a defaultdict
    ("builtins", "list"): list,
    ("_codecs", "encode"): _latin1,  # how Python 3 pickles bytes for Python 2
}


class _Unpickler(pickle.Unpickler):
    """Refuses functions and classes not in ``_ALLOWED``, because loading a pickle can call any function it names."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed") from None
