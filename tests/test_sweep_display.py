"""How far a sweep is: time left, numbers of runs by state, and what is shown of runs in other processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.commands import sweep_display
from rmsexp.records.states import Evaluation, Run

DONE = Run(Path("a"), "finished", 10, 10, Evaluation(10, "test", "error", 0.125), 20.0, 2.0)
HALF = Run(Path("b"), "running", 5, 10, None, 20.0, 4.0)


def test_the_time_left_counts_runs_that_have_not_begun() -> None:
    assert sweep_display.time_left([None, None]) == ""
    assert sweep_display.time_left([DONE, HALF, None]) == "about 0:50 left in all"  # 5 steps of 4 s, then (20 + 40) / 2
    assert sweep_display.time_left([DONE, HALF, None], at_once=2) == "about 0:30 left in all"  # the last run
    assert sweep_display.time_left([HALF, HALF, HALF, HALF], at_once=2) == "about 0:40 left in all"


def test_the_numbers_of_runs_are_listed_by_state() -> None:
    assert sweep_display.counts([DONE, HALF, None, None]) == "1 finished, 1 running, 2 not started"


def test_a_line_is_printed_for_each_run_that_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [config.job([f"norm={norm}", f"results={tmp_path}"]) for norm in ("ln", "rms")]
    states = [[None, None], [HALF, None], [DONE, HALF], [DONE, HALF]]
    monkeypatch.setattr(sweep_display, "read", lambda *_: states.pop(0) if len(states) > 1 else states[0])
    display = sweep_display._Display(jobs, 2)
    for _ in range(2):
        group = display._update()
    table, line = group.renderables
    assert table.row_count == 1
    assert line.plain == "[1/2] 1 finished, 1 running  about 0:20 left in all"
    ended = threading.Event()
    ended.set()
    display.follow(ended)
    assert capsys.readouterr().err == "[1/2] finished: ln seed0  step 10  test error 0.1250\n"
    monkeypatch.setattr(sweep_display, "read", lambda *_: [DONE, None])  # the folder of a running run was removed
    assert display._update().renderables[0].row_count == 0
