"""Read JSON and YAML files as plain data. The records of a run may come from somebody else, or be damaged.

Each reader returns the mapping that a file in UTF-8 holds. It raises OSError if the file cannot be opened, and
ValueError, in one line that names the file, for other content. YAML that is too large, too deeply nested or has aliases
is refused before it takes time or memory.

A reader of a record states, in annotations, which keys and types it needs, and :func:`typed` checks the data against
them. Keys that the type does not have are allowed, since newer versions add some, unless the reader refuses them. If
the class itself raises ValueError, as in ``__post_init__``, the place in the file is added to the message.
"""

import errno
import inspect
import json
import re
import reprlib
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import yaml

from rmsexp.system.command_line import brief, escaped
from rmsexp.system.files import read_regular

LARGEST_YAML = 1 << 15  # characters; a run's config.yaml has about two thousand characters
# errors of the system that show no damage, such as missing permissions: the file must not be replaced
NOT_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
DEEPEST_YAML = 20  # levels of nesting; a run's config has four
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is the faster one
T = TypeVar("T")
LARGEST = (1 << 63) - 1  # integer in a record: that of NumPy and pandas
NAMES = {int: "an integer", float: "a finite number", str: "a text", bool: "true or false", NoneType: "null"}


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    text = _text(path)
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which cannot be printed
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file that holds a run's resolved config.

    Such a file has values only, so interpolations (``${name}``) and aliases (``*name``) are refused. A few lines of
    them can stand for gigabytes, and some interpolations read environment variables. In text ``${`` is written ``\\${``
    (:func:`yaml_text`).
    """
    text = checked_yaml(path)
    try:
        value = yaml.load(text, _Loader)
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except Exception as error:  # values that cannot be constructed raise many types of exceptions
        raise ValueError(f"{path} is not YAML of plain values ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not consist of keys and values")
    return value


def checked_yaml(path: Path) -> str:
    """Return the text of a YAML file, such as a config of the user's own, unless it would take much time or memory.

    Raises: OSError if it cannot be opened; ValueError if it is no regular file or not UTF-8, is too large or too deeply
    nested, or has aliases. Text that is no YAML is returned.
    """
    text = _text(path)
    if len(text) > LARGEST_YAML:
        raise ValueError(f"{path}: more than {LARGEST_YAML:,} characters")
    depth = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, _SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth >= DEEPEST_YAML:
                raise ValueError(f"{path}: more than {DEEPEST_YAML} levels of nesting")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{path}: an alias (*{event.anchor}) is not allowed; write the value again")
    return text


def yaml_text(values: Any) -> str:
    """Return the content of a file from which :func:`read_yaml` reads these values."""
    return yaml.safe_dump(escaped(values), sort_keys=False)


class _Loader(_SafeLoader):
    """Loads plain values; refuses interpolations and repeated keys."""

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        value = re.sub(r"(\\*)\\\$\{", lambda match: match[1][::2] + "${", text)  # the reverse of escaped
        if escaped(value) != text:
            raise yaml.MarkedYAMLError(problem="an interpolation is not allowed", problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key occurs twice", problem_mark=node.start_mark)
        return mapping


def _text(path: Path) -> str:
    """Return the text of a file. Raises: OSError if it cannot be opened; ValueError if it is not UTF-8."""
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start})") from None


def _one_line(error: object) -> str:
    return brief(" ".join(str(error).split()))


class Between(NamedTuple):
    """The limits of a number, both included: ``Annotated[int, Between(0, 9)]``."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


Count = Annotated[int, Between(0, LARGEST)]


def read_typed(path: Path, kind: type[T]) -> T:
    """Return the JSON object in a file as a value of a type."""
    return typed_of(path, kind, read_json(path))


def typed_of(file: object, kind: type[T], content: object, *, refuse_unknown: bool = False) -> T:
    """Return ``content``, the plain data in a file, as a value of the type ``kind`` (:func:`typed`).

    Raises: ValueError, in one line that names the file and the place in it, if it is not of this type.
    """
    try:
        found: T = typed(kind, content, refuse=refuse_unknown)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return found


def typed(kind: Any, value: Any, place: str = "it", refuse: bool = False) -> Any:
    """Return plain data as a value of a type.

    ``kind``: a class of ``NAMES``, Any, a Literal, a union, ``Annotated[…, Between(…)]``, a list, tuple or dict of
    such, or a class with annotated fields: a dataclass, a NamedTuple, or a TypedDict, whose values keep their other
    keys. An integer may stand for a float. ``place``: the name of the value in messages. ``refuse``: whether keys that
    a class does not have are refused.

    Raises: ValueError, in one line, for a value of another type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if kind in NAMES:
        return _require(_is_plain(kind, value), value, place, NAMES[kind])
    if origin is Annotated:
        plain, limits = typed(arguments[0], value, place, refuse), arguments[1]
        return _require(limits.least <= plain <= limits.most, plain, place, limits)
    if origin in (Union, UnionType):  # the first type that the value fits
        if value is None and NoneType in arguments:
            return None
        *kinds, last = [each for each in arguments if each is not NoneType]
        for each in kinds:
            with suppress(ValueError):
                return typed(each, value, place, refuse)
        return typed(last, value, place, refuse)
    if origin is Literal:
        known = any(type(value) is type(choice) and value == choice for choice in arguments)
        return _require(known, value, place, " or ".join(map(str, arguments)))
    if origin in (list, tuple):
        _require(isinstance(value, list | tuple), value, place, "a list")
        return origin(typed(arguments[0], item, f"{place}[{number}]", refuse) for number, item in enumerate(value))
    _require(isinstance(value, dict), value, place, "an object")
    if origin is dict:
        return {key: typed(arguments[1], item, _inside(place, key), refuse) for key, item in value.items()}
    fields = _fields(kind)
    if missing := [name for name, (_, required) in fields.items() if required and name not in value]:
        raise ValueError(f"{place} has no {missing[0]}")
    if refuse and (unknown := [name for name in value if name not in fields]):
        raise ValueError(f"{place} has {reprlib.repr(unknown[0])}, which is not known")
    content = {
        name: typed(of, value[name], _inside(place, name), refuse) for name, (of, _) in fields.items() if name in value
    }
    if is_typeddict(kind):
        return value | content
    try:
        return kind(**content)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _is_plain(kind: type, value: object) -> bool:
    """Return whether a value has the type ``kind``, a key of ``NAMES``. An int is a float, too; a bool is neither."""
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
    return type(value) is kind and (kind is not int or abs(value) <= LARGEST)  # type: ignore[arg-type]


def _require(valid: bool, value: Any, place: str, expected: object) -> Any:
    """Return the value if it is valid. Raises: ValueError."""
    if not valid:
        raise ValueError(f"{place} is {reprlib.repr(value)} instead of {expected}")
    return value


def _inside(place: str, key: object) -> str:
    """Return the name of a value in an object."""
    name = key if isinstance(key, str) and key.isidentifier() and len(key) < 40 else reprlib.repr(key)
    return str(name) if place == "it" else f"{place}.{name}"


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a class, and whether data must have the field."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {
            name: (get_args(hint)[0] if get_origin(hint) is NotRequired else hint, name in kind.__required_keys__)
            for name, hint in hints.items()
        }
    parameters = inspect.signature(kind).parameters  # of a dataclass or NamedTuple
    return {name: (hints[name], parameter.default is parameter.empty) for name, parameter in parameters.items()}
