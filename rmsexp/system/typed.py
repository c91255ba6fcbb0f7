"""Read plain data, as in JSON files, into typed values by their annotations.

A class with annotations, a dataclass or a named tuple, is read from an object (a dict) with its fields as keys. Fields
with defaults may be missing. Keys that are no fields are ignored, as files of later versions may have some, or refused.
What a class raises ValueError for, in ``__post_init__``, is reported with its place.

Types of fields: ``bool``, ``int``, ``float``, ``str``, ``None``, ``Any``, ``Literal``, classes as above, unions, and
``list``, ``tuple`` and ``dict`` of these. Integers are accepted as floats, and floats are finite. ``true`` and
``false`` are no numbers.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
import types
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
NAMES = {bool: "true or false", int: "an integer", float: "a finite number", str: "a text", type(None): "null"}


def typed(kind: type[T], value: object, name: object, unknown: Literal["ignored", "refused"] = "ignored") -> T:
    """Return plain data as a value of a type.

    Args:
        kind: the type.
        value: the data.
        name: what the data are called in messages, such as the path of their file.
        unknown: whether keys that are no fields are ignored or refused.

    Raises: ValueError with the place of what does not fit, as in "run.json: sessions[3].seconds is 'x' instead of a
        finite number".
    """
    result: T = _Reader(str(name), unknown == "refused").read(kind, value, "")
    return result


class _Field(NamedTuple):
    kind: Any
    required: bool


@cache
def _fields(kind: Any) -> dict[str, _Field] | None:
    """Return the fields of a class by their names; None if it is neither a dataclass nor a named tuple."""
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        none = dataclasses.MISSING
        required = {field.name: field.default is none and field.default_factory is none for field in fields}
    elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        required = {name: name not in kind._field_defaults for name in kind._fields}  # type: ignore[attr-defined]
    else:
        return None
    hints = get_type_hints(kind)
    return {name: _Field(hints[name], is_required) for name, is_required in required.items()}


class _Reader(NamedTuple):
    """``place``, in the methods: of a value within the data, such as "sessions[3].seconds"; "" for the whole."""

    name: str
    refuse_unknown: bool

    def read(self, kind: Any, value: Any, place: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if kind is Any:
            return value
        if origin in (Union, types.UnionType):
            return self._one_of(arguments, value, place)
        if origin is Literal:
            if not any(type(value) is type(option) and value == option for option in arguments):
                raise self._misfit(value, place, f"one of {', '.join(map(str, arguments))}")
            return value
        if origin in (list, tuple):
            return self._items(origin, arguments, value, place)
        if origin is dict:
            self._check(type(value) is dict, value, place, "an object")
            return {
                self.read(arguments[0], key, f"a key of {place}"): self.read(arguments[1], item, _below(place, key))
                for key, item in value.items()
            }
        if (fields := _fields(kind)) is not None:
            return self._instance(kind, fields, value, place)
        if kind is float:
            is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
            self._check(is_number, value, place, NAMES[float])
            return float(value)
        self._check(type(value) is kind, value, place, NAMES.get(kind, f"a {kind.__name__}"))
        return value

    def _one_of(self, kinds: Sequence[Any], value: Any, place: str) -> Any:
        """Return the value as the first of the types that it fits."""
        if value is None and type(None) in kinds:
            return None
        errors = []
        for kind in (kind for kind in kinds if kind is not type(None)):
            try:
                return self.read(kind, value, place)
            except ValueError as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise self._misfit(value, place, " or ".join(NAMES.get(kind, str(kind)) for kind in kinds))

    def _items(self, kind: type, arguments: Sequence[Any], value: Any, place: str) -> Any:
        self._check(type(value) is list, value, place, "a list")
        if kind is list or arguments[-1] is Ellipsis:
            arguments = [arguments[0]] * len(value)
        self._check(len(value) == len(arguments), value, place, f"a list of {len(arguments)}")
        items = zip(arguments, value, strict=True)
        return kind(self.read(each, item, f"{place}[{number}]") for number, (each, item) in enumerate(items))

    def _instance(self, kind: Any, fields: dict[str, _Field], value: Any, place: str) -> Any:
        self._check(type(value) is dict, value, place, "an object")
        for name, field in fields.items():
            if field.required and name not in value:
                raise ValueError(f"{self._at(place)} has no {name}")
        if self.refuse_unknown and (names := [name for name in value if name not in fields]):
            raise ValueError(f"{self._at(place)} has {reprlib.repr(names[0])}, which is not known")
        read = {
            name: self.read(fields[name].kind, value[name], _below(place, name)) for name in fields if name in value
        }
        try:
            return kind(**read)
        except ValueError as error:
            raise ValueError(f"{self._at(place)}: {error}") from None

    def _check(self, fits: bool, value: Any, place: str, expected: str) -> None:
        if not fits:
            raise self._misfit(value, place, expected)

    def _misfit(self, value: Any, place: str, expected: str) -> ValueError:
        # reprlib shortens large values and does not descend into deep ones
        return ValueError(f"{self._at(place)} is {reprlib.repr(value):.60} instead of {expected}")

    def _at(self, place: str) -> str:
        return f"{self.name}: {place}" if place else self.name


def _below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
