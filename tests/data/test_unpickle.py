"""Pickles from other sources: plain data is read, references to code are refused."""

from __future__ import annotations

import os
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmsexp.data.unpickle import unpickle

PYTHON2_FLOAT64 = (  # what Python 2 writes for numpy.float64(0.5)
    b"\x80\x02cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\nq\x01U\x02f8q\x02K\x00K\x01\x87q\x03Rq\x04"
    b"(K\x03U\x01<q\x05NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x06bU\x08" + struct.pack("<d", 0.5) + b"\x86Rq\x07."
)


class Calls:
    """An object whose pickle calls ``function(*arguments)`` when an unrestricted reader loads it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"(lp0\n(lp1\nI4\naI17\naa(lp2\nI5\naa.", [[4, 17], [5]], id="protocol 0"),
        pytest.param(b"(dp0\nS'@entity1'\np1\nI4\nsS'the'\np2\nL5L\ns.", {"@entity1": 4, "the": 5}, id="long"),
        pytest.param(b"\x80\x02]q\x00(U\x05caf\xc3\xa9q\x01X\x05\x00\x00\x00caf\xc3\xa9q\x02e.", ["cafÃ©", "café"]),
    ],
)
def test_containers_of_python_2(content: bytes, expected: Any) -> None:
    assert unpickle(content) == expected


def test_numpy_number_of_python_2() -> None:
    number = unpickle(PYTHON2_FLOAT64)
    assert isinstance(number, np.float64)
    assert number == 0.5


@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"], ids=["new module", "old module"])
@pytest.mark.parametrize("protocol", range(4))
def test_arrays_numbers_and_bytes(protocol: int, module: bytes) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = pickle.dumps({"a": [array, np.int64(7), b"\xff", None, True]}, protocol)
    values = unpickle(re.sub(rb"numpy\._?core", module, content))["a"]
    assert np.array_equal(values[0], array)
    assert values[0].dtype == array.dtype
    assert values[1:] == [7, b"\xff", None, True]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_refused_by_name_and_not_run(protocol: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for function in (os.mkdir, os.system, eval, getattr, np.load):
        content = pickle.dumps([1, Calls(function, str(folder))], protocol)
        with pytest.raises(
            pickle.UnpicklingError, match=rf"refers to [\w.]+\.{function.__name__}, which is not allowed"
        ):
            unpickle(content)
    assert not folder.exists()


def test_attribute_of_an_allowed_class_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"numpy\.ndarray\.__class__"):
        unpickle(b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.")


def test_persistent_ids_are_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="persistent"):
        unpickle(b"Pname\n.")


def test_truncated_pickle_is_refused() -> None:
    content = pickle.dumps(list(range(1000)), 2)
    for length in (0, 1, 100, len(content) - 1):
        with pytest.raises((EOFError, pickle.UnpicklingError)):
            unpickle(content[:length])
