"""The test of the timing on planted pairs: the order of its trials, how it goes on, and its slowed model."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timing_power

from rmsexp import config
from rmsexp.measure import steps
from rmsexp.train import provenance, quiet


def trial(low: float, high: float) -> dict[str, Any]:
    identity = {"code": provenance.code(), "machine": quiet.machine_id(), "date": "2026-01-01"}
    identity |= {"commit": "abc", "dirty": False}
    found = {"ratio": (low * high) ** 0.5, "low": low, "high": high, "estimates": [1.0] * 6, "rounds": 120}
    return found | {"time_state": "clear", "stopped": "narrow enough"} | identity


def test_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []

    def run_trial(number: int, kind: str, **options: Any) -> dict[str, Any]:
        assert (options["share"], options["budget"]) == (0.03, 120)
        kinds.append(kind)
        if len(kinds) == 3:
            raise KeyboardInterrupt
        return trial(1.01, 1.05) if kind == "slowed" or number == 0 else trial(0.98, 1.01)

    monkeypatch.setattr(timing_power, "run_trial", run_trial)

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["timing_power.py", f"--results={tmp_path}", "--equal=4", *words])
        timing_power.main()

    with pytest.raises(KeyboardInterrupt):
        run("--slowed=2")
    lines = tmp_path / "checks/timing_power.jsonl"
    assert len(lines.read_text().splitlines()) == 2
    for words in (["--slowed=2", "batch_size=7"], ["--slowed=2", "--share=0.1"], ["--slowed=2", "--budget=7"]):
        with pytest.raises(SystemExit, match="has parts of another command, code or machine"):
            run(*words)
    run("--slowed=2")
    planned = timing_power.order(4, 2)
    assert [*kinds[:2], *kinds[3:]] == planned
    assert Counter(planned) == {"equal": 4, "slowed": 2}
    assert not lines.exists()
    (path,) = (tmp_path / "checks").glob("timing_power*/check.json")
    results = json.loads(path.read_text())["results"]
    assert results["threads"] == 1  # of the trials, not of this process
    assert [found["kind"] for found in results["trials"]] == planned
    assert results["summary"]["slowed"]["right"] == 2
    assert results["summary"]["equal"]["right"] == 4 - (planned[0] == "equal")


def test_the_summary_counts_right_trials(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [{"kind": "equal"} | trial(0.99, 1.01) for _ in range(54)]
    trials += [{"kind": "equal"} | trial(1.001, 1.02) for _ in range(6)]
    trials += [{"kind": "slowed"} | trial(0.9, 0.95) for _ in range(3)]  # excludes 1 on the wrong side
    trials += [{"kind": "slowed"} | trial(1.01, 1.05) for _ in range(17)]
    timing_power.summarise(trials)
    assert capsys.readouterr().out.splitlines() == [
        "equal  54 of 60 intervals (79 to 96 %) contain 1, as it should be; median width 0.0200",
        "slowed 17 of 20 intervals (62 to 97 %) exclude 1, NOT as it should be; median width 0.0400",
    ]


def test_the_second_model_is_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeper:
        def take(self, *_: Any) -> None:
            time.sleep(0.05)

    def make_contestants(*_: Any) -> steps.Contestants:
        return steps.Contestants(
            SimpleNamespace(contestants=[Sleeper(), Sleeper()]), {"second": None, "first": None}, None
        )

    monkeypatch.setattr(steps, "make_contestants", make_contestants)
    monkeypatch.setattr(steps, "measure", lambda: steps.make_contestants().timer.contestants)
    second, first = timing_power.measure_slowed(0.5)
    assert isinstance(first, Sleeper)
    assert isinstance(second, timing_power.Slowed)
    start = time.perf_counter()
    second.take(0, [])
    assert time.perf_counter() - start >= 0.075


def test_a_trial_times_two_models_of_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def measure(jobs: dict[str, config.Job], options: Any, report: Callable[[str], None], work: Any) -> Any:
        del report
        given.append((jobs, options, work))
        session = {"device": "cpu", "threads": 1, "versions": {"torch": "2"}, "started": "2026", "code": "c"}
        session |= {"git": {"commit": "abc", "dirty": False}, "machine": {"id": "m", "name": "M"}}
        seconds = {"first": [1.0, 1.0], "second": [1.02, 1.02]}
        process = {"session": session, "data_seconds": 0, "steps_per_block": 3, "seconds": seconds}
        job = jobs["first"]
        yield {
            "task": job.config.task,
            "setting": job.setting,
            "scale": job.config.scale,
            "kind": "steps",
            "reference": "first",
            "stopped": "narrow enough",
            "dataset": {"builtin": True},
            "processes": [process, process],
            "series": [{"series": name, "impl": "eager", "parts": {}, "peak_bytes": None} for name in jobs],
        }

    monkeypatch.setattr(timing_power.processes, "measure", measure)
    found = timing_power.run_trial(7, "slowed", 0.03, 9.0, [*timing_power.WORDS])
    ((jobs, options, work),) = given
    assert [job.config.seed for job in jobs.values()] == [7, 7]
    assert (options.reference, options.budget, options.processes) == ("first", 9, 6)
    assert (work.func, work.args) == (timing_power.measure_slowed, (0.03,))
    assert (found["ratio"], found["machine"], found["commit"]) == (pytest.approx(1.02), "m", "abc")
