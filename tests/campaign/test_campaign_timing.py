"""The timing stage: once for all workers, with a seed of its own, and its record in the setting's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.campaign_runs import ask

from rmsexp import config, readers
from rmsexp.campaign import timing
from rmsexp.compare.records import timing_records
from rmsexp.lock import Lock
from rmsexp.measure import steps
from rmsexp.measure.options import TimingConfig


def measured(jobs: dict[str, config.Job], options: TimingConfig, report: object) -> dict[str, Any]:  # noqa: ARG001
    """Return the content of a record, without measuring."""
    job = next(iter(jobs.values()))
    session = {"device": "cpu", "threads": 1, "versions": {"torch": "2.15.0"}, "started": "2026-11-22T10:00:00"}
    return {
        "task": job.config.task,
        "scale": job.config.scale,
        "seed": job.config.seed,
        "setting": job.setting,
        "kind": "steps",
        "reference": options.reference,
        "stopped": "narrow",
        "data_seconds": 0.001,
        "steps_per_block": 3,
        "dataset": {"builtin": True},
        "session": session | {"contention": {"state": "clear"}},
        "series": [
            {"series": name, "impl": "eager", "seconds": [0.1] * 4, "parts": {}, "peak_bytes": None} for name in jobs
        ],
    }


def test_nothing_is_timed_by_default(tmp_path: Path) -> None:
    assert not timing.is_left(ask(tmp_path))


def test_the_timing_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "measure", measured)
    asked, reports = ask(tmp_path, "timing.norms=[rms,ln]"), list[str]()
    assert timing.is_left(asked)
    timing.measure(asked, reports.append)
    timing.measure(asked, reports.append)
    (path,) = tmp_path.rglob(timing_records.FILE)
    content = readers.read_json(path)
    assert (content["reference"], content["seed"]) == ("ln", 3000)
    assert reports == [f"timing  {path}"]
    assert not timing.is_left(asked)
    assert timing.is_left(ask(tmp_path, "timing.norms=[ln,rms,none]", "norms=[ln,rms,none]"))


def test_another_worker_that_measures_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "measure", measured)
    asked = ask(tmp_path, "timing.norms=[rms,ln]")
    with Lock(asked.folder / ".timing.lock", asked.folder).held():
        timing.measure(asked, lambda _: None)
    assert timing.is_left(asked)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["timing.norms=[ln]", "timing.seed=1000"], "tuning and timing runs share seed 1000"),
        (["timing.budget=0"], "timing.budget must be a finite number greater than 0"),
        (["timing.norms=[lnn]"], "norm=lnn is not known"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=message):
        ask(tmp_path, *words)
