"""``rmsexp.compare_steps``: the interleaved clock for training steps of one's own."""

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.own_steps import make_step

import rmsexp
from rmsexp.measure import interleaved
from rmsexp.measure.own_steps import OwnSteps
from rmsexp.records.frames import timing_records
from rmsexp.system.command_line import ConfigError


def test_makers_that_can_be_imported_are_timed_in_a_fresh_process(tmp_path: Path) -> None:
    makers = {"ln": make_step, "rms": partial(make_step, "rms")}
    times = rmsexp.compare_steps(makers, "tiny", results=tmp_path, processes=1, budget=0.3, report=lambda _: None)
    assert times.folder == tmp_path / "tiny/own/timing/steps0"
    rows = timing_records.load(tmp_path)
    assert list(rows["series"]) == ["ln", "rms"]
    assert set(rows["impl"]) == {"own"}
    assert rows["workload"].nunique() == 2
    assert (rows["ratio"][0], rows["low"][0] <= rows["ratio"][0] <= rows["high"][0]) == (1, True)
    assert (times.folder / "timing.csv").exists()
    assert "paper" not in times.table
    assert "saving vs LayerNorm (95 % interval)" in str(times)


class NotPickled:
    def __reduce__(self) -> str:
        raise RuntimeError


def test_other_makers_are_timed_in_this_process_and_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved, "BLOCK_SECONDS", 1e-3)
    monkeypatch.setenv("HOME", str(tmp_path))
    lines: list[str] = []
    makers: Any = {1: partial(lambda _: make_step(), NotPickled()), "b": lambda: make_step("rms")}
    times = rmsexp.compare_steps(makers, results="~", reference="b", budget=0.3, report=lines.append)
    assert times.folder.is_relative_to(tmp_path)
    assert "module of their own" in lines[0]
    assert list(times.rows["series"]) == ["1", "b"]
    assert set(times.rows["impl"]) == {"own, same process"}
    assert set(times.rows["reference"]) == {"b"}
    assert "one process, not replicated" in times.notes[0]


@pytest.mark.parametrize(
    ("makers", "keywords", "named"),
    [
        ({"a": make_step}, {}, "two steps"),
        ({"a": make_step, "../b": make_step}, {}, r"\.\./b"),
        ({"a": make_step, "b": make_step}, {"reference": "c"}, "reference=c"),
        ({"a": make_step, "b": make_step}, {"processes": 0}, r"timing\.processes"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(
    makers: dict[str, object], keywords: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ValueError), match=named):
        rmsexp.compare_steps(makers, results=tmp_path, **keywords)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_times_of_an_edited_module_are_not_pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the module is that of an argument, as of the model in a swap."""
    (tmp_path / "my_own_model.py").write_text("def make(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    make = importlib.import_module("my_own_model").make
    steps = OwnSteps(partial(make_step, make), "mine", "own", 1, "cpu", "own", tmp_path)
    before = steps.workload()
    assert steps.workload() == before
    (tmp_path / "my_own_model.py").write_text("def make(): return 1")
    assert steps.workload() != before
    assert replace(steps, impl="own, same process").workload() != before
