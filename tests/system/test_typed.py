"""Plain data become values of annotated types, and what does not fit is named in one line."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest

from rmsexp.system.readers import Between, Count, read_typed, typed


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


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_values_have_their_types() -> None:
    content = {
        "step": 3,
        "share": None,
        "machine": {"cores": 2},
        "shape": {"name": "a", "points": [{"x": 1}, {"x": 2.5, "y": 3}], "more": 1},
        "pair": [1, 2],
        "word": True,
        "other": [{}],
    }
    found = typed(Session, content)
    assert found["shape"] == Shape("a", [Point(1), Point(2.5, 3)])
    assert found["pair"] == (1, 2)
    assert {key: found[key] for key in content if key not in ("shape", "pair")} == {  # type: ignore[literal-required]
        key: value for key, value in content.items() if key not in ("shape", "pair")
    }
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
        ({"step": 0, "machine": deep(100_000)}, "machine is [[[[[[[...]]]]]]] instead of an object"),
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
