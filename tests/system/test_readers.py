"""JSON and YAML files of others are read as plain data, whose types are checked; no file takes much time or memory."""

import functools
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest
import yaml

from rmsexp.system.readers import DEEPEST_YAML, LARGEST_YAML, Between, Count, read_json, read_typed, read_yaml, typed

Reader = Callable[[Path], dict[str, Any]]
VALUES = {"text": "a: ü\n", "number": 1e-05, "none": None, "list": [1, [2.5, "x"]], "mapping": {"yes": True, "1": "2"}}
READERS = [pytest.param(read_json, id="json"), pytest.param(read_yaml, id="yaml")]


def refusal(read: Reader, path: Path) -> str:
    """Return the message with which ``read`` refuses a file after few function calls, without the file's name."""
    events = itertools.count()
    sys.setprofile(lambda *_: next(events))  # called when a function is called or returns
    try:
        with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
            read(path)
    finally:
        sys.setprofile(None)
    message = str(caught.value)
    assert next(events) < 200_000
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    return message.removeprefix(str(path))


def test_values_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps(VALUES))
    (tmp_path / "b").write_text(yaml.safe_dump(VALUES))
    assert read_json(tmp_path / "a") == read_yaml(tmp_path / "b") == VALUES


@pytest.mark.parametrize("read", READERS)
def test_files_that_are_no_text_or_hold_no_mapping_are_refused(read: Reader, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, message in (
        (b"{\x22a\x22: \x22caf\xe9\x22}", " is not UTF-8 (byte 10)"),
        (b"[1]", ""),
        (b"", ""),
        (b"{", ""),
        (b'{"a": "\\ud800"}', "surrogates not allowed" if read is read_json else "invalid Unicode character"),
        (b'{"a": ' + b"1" * 5000 + b"}", "4300 digits"),
        (b'{"a": ' + b"[" * 9000, ""),
    ):
        path.write_bytes(content)
        assert message in refusal(read, path)


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_cannot_be_opened_raises_oserror_and_a_pipe_is_not_waited_for(read: Reader, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(OSError, match=str(path)):
            read(path)
    os.mkfifo(tmp_path / "pipe")
    assert refusal(read, tmp_path / "pipe") == " is not a regular file"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &a [1]\nb: *a", ": an alias (*a) is not allowed"),
        ("a: " + "x" * LARGEST_YAML, f": more than {LARGEST_YAML:,} characters"),
        ("a: ${oc.env:HOME}", "an interpolation is not allowed"),
        ('a: "\\x24{b}"', "an interpolation is not allowed"),
        ("${a}: 1", "an interpolation is not allowed"),
        ("a: 1\nb: 2\na: 3", "a key occurs twice"),
        ("a: {b: 1, b: 2}", "a key occurs twice"),
        ("a: " + "[" * DEEPEST_YAML + "]" * DEEPEST_YAML, f": more than {DEEPEST_YAML} levels of nesting"),
        ("[" * 9999, f": more than {DEEPEST_YAML} levels of nesting"),
        ("a: [b", "expected ',' or ']'"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor for the tag"),
        ("a: !" + "x" * 9999, "xxx…xxx"),
        ("a: 2020-99-99", "month must be in 1..12"),
        ("a: 1" + ":59" * 9999 + ".5", "int too large to convert to float"),
        ("a: 1\0", "characters are not allowed"),
    ],
)
def test_yaml_with_more_than_plain_values_is_refused_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    assert message in refusal(read_yaml, path)


# --- types


DEEP: Any = functools.reduce(lambda inner, _: [inner], range(100_000), [])


class Point(NamedTuple):
    x: float
    y: float = 1.0


@dataclass
class Shape:
    name: str
    points: list[Point] = field(default_factory=list)
    kind: Literal["open", "closed"] = "open"


class Session(TypedDict):
    step: Count
    machine: NotRequired[dict[str, int]]
    share: NotRequired[Annotated[float, Between(0, 1)] | None]
    shape: NotRequired[Shape]
    pair: NotRequired[tuple[int, ...]]
    word: NotRequired[str | bool]
    anything: NotRequired[Any]


def test_values_have_their_types() -> None:
    content = {"step": 3, "share": None, "machine": {"cores": 2}, "word": True, "other": [{}]}
    nested = {"shape": {"name": "a", "points": [{"x": 1}, {"x": 2.5, "y": 3}], "more": 1}, "pair": [1, 2]}
    shape = Shape("a", [Point(1), Point(2.5, 3)])
    assert typed(Session, content | nested) == content | {"shape": shape, "pair": (1, 2)}
    assert typed(Session, {"step": 0}) == {"step": 0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "it has no step"),
        ({"step": True}, "step is True instead of an integer"),
        ({"step": 1.0}, "step is 1.0 instead of an integer"),
        ({"step": "1"}, "step is '1' instead of an integer"),
        ({"step": None}, "step is None instead of an integer"),
        ({"step": -1}, "step is -1 instead of a number from 0 to "),
        ({"step": 10**400}, "step is 10000"),
        ({"step": 0, "share": math.nan}, "share is nan instead of a finite number"),
        ({"step": 0, "share": -math.inf}, "share is -inf instead of a finite number"),
        ({"step": 0, "share": 10**400}, "share is 10000"),
        ({"step": 0, "share": 2}, "share is 2 instead of a number from 0 to 1"),
        ({"step": 0, "machine": {"a": 1, "b c\n": None}}, r"machine.'b c\n' is None instead of an integer"),
        ({"step": 0, "machine": []}, "machine is [] instead of an object"),
        (
            {"step": 0, "machine": DEEP},
            "machine is [[[[[[[...]]]]]]] instead of an object",
        ),
        ({"step": 0, "shape": {"name": "a", "points": [{"x": 1}, {}]}}, "shape.points[1] has no x"),
        ({"step": 0, "shape": {"name": "a", "kind": ["open"]}}, "shape.kind is ['open'] instead of open or closed"),
        ({"step": 0, "pair": {"0": 1}}, "pair is {'0': 1} instead of a list"),
        ({"step": 0, "word": 1}, "word is 1 instead of true or false"),
        ([], "it is [] instead of an object"),
    ],
)
def test_what_does_not_fit_is_named_in_one_short_line(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        typed(Session, content)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, message in (('{"step": NaN}', "step is nan"), ("{}", "it has no step")):
        path.write_text(content)
        with pytest.raises(ValueError, match=f"{path}: {message}"):
            read_typed(path, Session)
    path.write_text(json.dumps({"step": 4}))
    assert read_typed(path, Session) == {"step": 4}
