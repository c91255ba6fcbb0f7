"""Read pickles from other sources as plain data, without running code that they name.

A pickle is a program for a small stack machine. Python's own reader lets it call functions and set the internals of
numpy's objects, which can run code or crash the process. The reader here knows only the operations that plain data
needs, checks their operands, and makes arrays from types and bytes that it has checked.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable
from pickle import UnpicklingError as UnpicklingError
from types import FunctionType
from typing import Any

import numpy as np

CODES = {operation.name: ord(operation.code) for operation in pickletools.opcodes}
NAMES = {code: name for name, code in CODES.items()}
UNCHANGED = (  # operations that have the same effect here as in Python's own reader
    *("PROTO", "FRAME", "STOP", "MARK", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT"),
)
CONTAINERS = (list, tuple, dict, np.ndarray)
KEYS = (str, bytes, int, float, type(None), np.generic)  # types of a dictionary's keys
TYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU][1-9]\d{0,8})")  # numpy's name of a type of kind b, i, u, f, S, U
LARGEST_INTEGER = 1 << 64  # exclusive; many larger integers can have the same hash, which makes dictionaries slow


def unpickle(content: bytes) -> Any:
    """Return the content of a pickle of plain containers, numbers, strings, bytes and numpy arrays.

    Containers are lists, tuples and dictionaries; an OrderedDict or defaultdict is read as a plain dictionary. Pickles
    written by Python 2 are read, too; their 8-bit strings are decoded as Latin-1.

    A container that occurs at two places is refused, because a few bytes could then stand for any amount of data.

    Raises: UnpicklingError if the pickle is damaged or has other content.
    """
    try:
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise UnpicklingError(f"it is damaged: {type(error).__name__} {error}".strip()) from None


class _Type:
    """The type of an array or number while a pickle is read; ``dtype`` is numpy's."""

    def __init__(self, name: str, *_flags: object) -> None:
        if not TYPE.fullmatch(name):
            raise UnpicklingError(f"it has an array of type {name!r}, which is not allowed")
        self.dtype = np.dtype(name)

    def set_order(self, _version: int, order: str, *rest: object) -> None:
        """Set the byte order. ``rest``, other state of numpy's object, must be that of a type without parts."""
        sizes = ((-1, self.dtype.itemsize), (-1, self.dtype.alignment), (0, 8))  # size, alignment, flags
        plain = len(rest) == 6 and all(part is None for part in rest[:3])
        if not plain or any(value not in allowed for value, allowed in zip(rest[3:], sizes, strict=True)):
            raise UnpicklingError(f"it has a type {self.dtype.str} with a changed state, which is not allowed")
        self.dtype = self.dtype.newbyteorder(order)  # type: ignore[arg-type]


def _new_type(*arguments: Any) -> _Type:
    return _Type(*arguments)


def _empty_array(*_arguments: object) -> np.ndarray:
    return np.empty(0)


def _fill(array: np.ndarray, _version: int, shape: tuple[int, ...], kind: _Type, fortran: bool, content: Any) -> None:
    """Give an array its shape, type and elements; ``fortran``: whether they are stored in Fortran's order."""
    dtype, data = kind.dtype, _bytes(content)
    if type(shape) is not tuple or any(type(size) is not int or size < 0 for size in shape):
        raise UnpicklingError("it has an array whose shape is not valid")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise UnpicklingError(f"it has an array of shape {shape} with {len(data):,} bytes")
    array.__setstate__((1, shape, dtype, bool(fortran), data))  # type: ignore[arg-type]


def _scalar(kind: _Type, content: Any) -> np.generic:
    (number,) = np.frombuffer(_bytes(content), kind.dtype)
    return number


def _bytes(content: Any) -> bytes:
    """Return binary content, which Python 2 stored as a string."""
    return content if type(content) is bytes else content.encode("latin1")


def _ordered_dictionary(pairs: Iterable[Any] = ()) -> dict[Any, Any]:
    dictionary: dict[Any, Any] = {}
    for key, value in pairs:
        _store(dictionary, [key, value])
    return dictionary


def _default_dictionary(*_arguments: object) -> dict[Any, Any]:
    return {}


def _encode(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


# what a pickle may refer to by name -> the function that it may call instead, or None if it may only be named
_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any] | None] = {
    ("numpy", "dtype"): _new_type,
    ("numpy", "ndarray"): None,  # names the class of an array
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty_array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("collections", "OrderedDict"): _ordered_dictionary,
    ("collections", "defaultdict"): _default_dictionary,
    **{(module, "list"): None for module in ("__builtin__", "builtins")},  # names the default of a defaultdict
    ("_codecs", "encode"): _encode,  # how Python 3 stores bytes for Python 2
}


def _store(dictionary: Any, items: list[Any]) -> None:
    """Store ``items``, which has keys and values in turn, in a dictionary."""
    if type(dictionary) is not dict or len(items) % 2:
        raise UnpicklingError("it stores a key without a value, or outside of a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, KEYS):  # hashing a deeply nested tuple would crash the process
            raise UnpicklingError(f"it has a dictionary with a {type(key).__name__} as a key")
        dictionary[key] = value


class _Unpickler(pickle._Unpickler):
    """Performs the operations of a pickle that plain data needs, and refuses all others.

    It derives from Python's reader that is written in Python, which keeps stored objects in a dictionary. The reader
    written in C keeps them in an array, for which a few bytes can request gigabytes.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _REPLACEMENTS:
            raise UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return _REPLACEMENTS[module, name]

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        _store(self.stack[-1], items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _store(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        _store(self.stack[-1], items)

    def load_reduce(self) -> None:
        """Replace a function and its arguments by the function's result."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, FunctionType):
            raise UnpicklingError("it calls something that is not a function")
        self.stack.append(function(*arguments))

    def load_build(self) -> None:
        """Set the content of the last array, or the byte order of the last type."""
        state, last = self.stack.pop(), self.stack[-1]
        if isinstance(last, _Type):
            last.set_order(*state)
        elif isinstance(last, np.ndarray):
            _fill(last, *state)
        else:
            raise UnpicklingError(f"it sets attributes of a {type(last).__name__}")


def _then(load: Callable[[Any], None], check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an operation that performs ``load`` and checks the value that it has pushed."""

    def operation(reader: _Unpickler) -> None:
        load(reader)
        check(reader.stack[-1])

    return operation


def _check_integer(value: int) -> None:
    if not -LARGEST_INTEGER < value < LARGEST_INTEGER:
        raise UnpicklingError("it has an integer of more than 64 bits")


def _check_single(value: Any) -> None:
    if isinstance(value, CONTAINERS):
        raise UnpicklingError(f"it has the same {type(value).__name__} at two places")


class _Operations(dict[int, Callable[[Any], None]]):
    """The operations by their codes."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise UnpicklingError(f"it has the operation {NAMES.get(code, code)}, which plain data does not need")


_STANDARD: dict[int, Any] = pickle._Unpickler.dispatch
_Unpickler.dispatch = _Operations(
    {CODES[name]: _STANDARD[CODES[name]] for name in UNCHANGED}
    | {CODES[name]: _then(_STANDARD[CODES[name]], _check_integer) for name in ("INT", "LONG", "LONG1")}
    | {CODES[name]: _then(_STANDARD[CODES[name]], _check_single) for name in ("GET", "BINGET", "LONG_BINGET")}
    | {
        CODES["DICT"]: _Unpickler.load_dict,
        CODES["SETITEM"]: _Unpickler.load_setitem,
        CODES["SETITEMS"]: _Unpickler.load_setitems,
        CODES["REDUCE"]: _Unpickler.load_reduce,
        CODES["BUILD"]: _Unpickler.load_build,
    }
)
