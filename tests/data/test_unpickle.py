"""Pickles from other sources: plain data is read, references to code are refused."""

from __future__ import annotations

import os
import pickle
import re
import struct
from collections import OrderedDict, defaultdict
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


def test_truncated_pickle_is_refused() -> None:
    content = pickle.dumps(list(range(1000)), 2)
    for length in (0, 1, 100, len(content) - 1):
        with pytest.raises(pickle.UnpicklingError, match="it is damaged"):
            unpickle(content[:length])


# forged pickles


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def type_of(name: str, state: bytes = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00") -> bytes:
    """Return the part of a pickle that makes numpy's type ``name``; ``state`` follows its byte order "<"."""
    text = b"X" + struct.pack("<I", len(name)) + name.encode()
    return named("numpy", "dtype") + text + b"K\x00K\x01\x87R(K\x03X\x01\x00\x00\x00<" + state + b"tb"


def array_of(kind: bytes, content: bytes, shape: bytes = b"K\x01\x85") -> bytes:
    """Return a pickle of an array: ``kind`` makes its type, ``shape`` its shape, (1,) by default."""
    empty = named("numpy.core.multiarray", "_reconstruct") + named("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
    return b"\x80\x03" + empty + b"(K\x01" + shape + kind + b"\x89C" + bytes([len(content)]) + content + b"tb."


SCALAR = b"\x80\x03" + named("numpy.core.multiarray", "scalar")
POINTER = b"AAAAAAAA"  # a reader that takes these bytes for the address of an object crashes
FORGED = {
    "numpy.ndarray called with a buffer": (
        b"\x80\x03" + named("numpy", "ndarray") + b"K\x01\x85X\x01\x00\x00\x00OC\x08" + POINTER + b"\x87R.",
        "it is damaged",
    ),
    "numpy.ndarray made by NEWOBJ": (b"\x80\x03" + named("numpy", "ndarray") + b"K\x09\x85\x85\x81.", "it is damaged"),
    "numpy.ndarray made by OBJ": (b"(" + named("numpy", "ndarray") + b"K\x09\x85o.", "it is damaged"),
    "numpy.ndarray made by INST": (b"(K\x09\x85inumpy\nndarray\n.", "it is damaged"),
    "os.system called by INST": (b"(S'true'\nios\nsystem\n.", r"refers to os\.system, which is not allowed"),
    "torch": (b"\x80\x02" + named("torch._utils", "_rebuild_tensor_v2") + b")R.", "refers to torch._utils._rebuild"),
    "copyreg": (b"\x80\x02" + named("copy_reg", "_reconstructor") + b")R.", "refers to copy_reg._reconstructor"),
    "numpy's name of os": (b"\x80\x02" + named("numpy.f2py", "os.system") + b".", "refers to numpy.f2py.os.system"),
    "array of objects": (array_of(type_of("O8"), POINTER), "type 'O8', which is not allowed"),
    "number that is an object": (SCALAR + type_of("O8") + b"C\x08" + POINTER + b"\x86R.", "type 'O8', which"),
    "type with the flags of objects": (array_of(type_of("S8", b"NNNK\x08K\x01K\x3f"), POINTER), "of a BytesDType"),
    "type with fields": (
        array_of(type_of("f8", b"N)}J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"), POINTER),
        "sets attributes of a Float64DType",
    ),
    "type of another size": (array_of(type_of("S8", b"NNNJ\x00\x00\x00\x7fK\x01K\x00"), POINTER), "of a BytesDType"),
    "negative shape": (array_of(type_of("f8"), b"", b"J\xff\xff\xff\xff\x85"), "it is damaged"),
    "attribute of a function": (
        b"\x80\x03" + named("numpy", "dtype") + b"}X\x01\x00\x00\x00xK\x01sb.",
        "sets attributes",
    ),
    "state of numpy's array that is too short": (array_of(b"N", b"")[:-14] + b"K\x01tb.", "it is damaged"),
    "persistent id": (b"Pname\n.", "persistent"),
    "registered extension": (b"\x80\x02\x82\x01.", "it is damaged"),
    "unknown operation": (b"\xff.", "it is damaged"),
}


@pytest.mark.parametrize(("content", "message"), FORGED.values(), ids=FORGED)
def test_forged_pickles_are_refused_in_one_line(content: bytes, message: str) -> None:
    """Python's own reader would run code, or take bytes of the pickle for the address of an object."""
    with pytest.raises(pickle.UnpicklingError, match=message) as caught:
        unpickle(content)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_container_may_occur_at_two_places() -> None:
    shared = [1, 2]
    assert unpickle(pickle.dumps({"a": shared, "b": [shared]}, 2)) == {"a": [1, 2], "b": [[1, 2]]}


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("name", ["?", "i1", ">i2", "u8", "<f2", ">f4", "f8", "S3", "<U5"])
def test_every_type_of_array_is_read_as_by_python(name: str, protocol: int) -> None:
    array = np.arange(6).reshape(2, 3).astype(name)
    for value in (array, np.asfortranarray(array), array[1, 2], array.T):
        content = pickle.dumps(value, protocol)
        expected, read = pickle.loads(content), unpickle(content)
        assert type(read) is type(expected)
        assert read.dtype == expected.dtype
        assert np.array_equal(read, expected)
        assert read.flags.f_contiguous == expected.flags.f_contiguous


def test_ordered_and_default_dictionaries_are_read_as_plain_ones() -> None:
    values = [OrderedDict(b=1, a=[2]), defaultdict(list, c=[3])]
    python2 = b"ccollections\nOrderedDict\n((lp0\n(lp1\nS'b'\naI1\naa(lp2\nS'a'\naI2\naatR."
    for protocol in range(5):
        read = unpickle(pickle.dumps(values, protocol))
        assert read == [{"b": 1, "a": [2]}, {"c": [3]}]
        assert [type(dictionary) for dictionary in read] == [dict, dict]
    assert list(unpickle(python2).items()) == [("b", 1), ("a", 2)]
