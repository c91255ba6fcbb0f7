"""Plain data as typed values: what fits, and the place of what does not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from rmsexp.system.typed import typed


class Job(NamedTuple):
    stage: Literal["tune", "final"]
    rate: float
    seed: int = 0


@dataclass(frozen=True)
class Campaign:
    name: str
    jobs: tuple[Job, ...]
    range: tuple[float, float] | None = None
    options: dict[str, list[int]] = field(default_factory=dict)
    timed: bool = False
    limit: int | str | None = None
    other: Any = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")


JOB = {"stage": "tune", "rate": 0.5, "seed": 3}
LEAST = {"name": "quality", "jobs": [JOB]}


def test_every_kind_of_value() -> None:
    stored = LEAST | {"range": [1, 2.5], "options": {"a": [1]}, "timed": True, "limit": "none", "other": [{}]}
    read = typed(Campaign, stored, "campaign.json")
    assert read == Campaign("quality", (Job("tune", 0.5, 3),), (1.0, 2.5), {"a": [1]}, True, "none", [{}])
    assert read.range is not None
    assert type(read.range[0]) is float


def test_what_is_left_out_has_its_default() -> None:
    assert typed(Campaign, {"name": "a", "jobs": []}, "it") == Campaign("a", ())
    assert typed(Job, {"stage": "final", "rate": 1}, "it") == Job("final", 1.0, 0)
    assert typed(Campaign, LEAST | {"limit": None}, "it").limit is None


def test_unknown_keys_are_ignored_or_refused() -> None:
    assert typed(Job, JOB | {"later": 1}, "it") == Job("tune", 0.5, 3)
    with pytest.raises(ValueError, match=r"it: jobs\[0\] has 'later'"):
        typed(Campaign, {"name": "a", "jobs": [JOB | {"later": 1}]}, "it", unknown="refused")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": ["x"]}, "jobs[0]"),
        ({"jobs": [JOB, {"stage": "tune"}]}, "jobs[1] has no rate"),
        ({"jobs": [JOB | {"rate": "x"}]}, "jobs[0].rate is 'x' instead of a finite number"),
        ({"jobs": [JOB | {"rate": float("nan")}]}, "jobs[0].rate"),
        ({"jobs": [JOB | {"rate": 10**400}]}, "jobs[0].rate"),
        ({"jobs": [JOB | {"rate": True}]}, "jobs[0].rate"),
        ({"jobs": [JOB | {"seed": False}]}, "jobs[0].seed"),
        ({"jobs": [JOB | {"seed": 1.0}]}, "jobs[0].seed"),
        ({"jobs": [JOB | {"stage": ["tune"]}]}, "jobs[0].stage"),
        ({"range": [1]}, "range"),
        ({"options": {"a": 1}}, "options.a"),
        ({"options": [1]}, "options"),
        ({"timed": 1}, "timed"),
        ({"limit": []}, "limit"),
        ({"name": json.loads("[" * 900 + "]" * 900)}, "name"),
        ({"name": {"key": "long" * 1000}}, "name"),
    ],
)
def test_an_error_names_the_file_and_the_place_in_one_short_line(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=r"^campaign\.json") as error:
        typed(Campaign, LEAST | change, "campaign.json")
    message = str(error.value)
    assert place in message
    assert len(message.splitlines()) == 1
    assert len(message) < 150


@pytest.mark.parametrize("value", [[], None, "text", 10**4000])
def test_the_whole_may_not_fit(value: object) -> None:
    with pytest.raises(ValueError, match=r"^it .*instead of an object$"):
        typed(Job, value, "it")


def test_literals_and_large_integers_keep_their_type() -> None:
    assert typed(int, 10**400, "it") == 10**400
    with pytest.raises(ValueError, match="one of 1"):
        typed(Literal[1], True, "it")  # type: ignore[arg-type]
