"""The timing stage: once for all workers, with a seed of its own, and its record in the setting's folder."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import measuring_work
from helpers.campaign_runs import ask

from rmsexp import config
from rmsexp.campaign import items
from rmsexp.campaign.asked import Timing
from rmsexp.commands import campaign, summary
from rmsexp.commands.campaign import _measure, main
from rmsexp.config.timing import TimingConfig
from rmsexp.measure import new_process, processes
from rmsexp.measure.options import Budget
from rmsexp.records.frames import timing_records
from rmsexp.system import atomic, readers
from rmsexp.system.clock import Stopwatch
from rmsexp.system.lock import Lock
from rmsexp.work.worker import Worker


def measured(
    jobs: dict[str, config.Job], options: TimingConfig, report: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield the contents of a record, without measuring."""
    answers = []
    for number in range(options.processes):
        answers.append(measuring_work.measured(jobs, options, number, 0, Budget(Stopwatch(), 1), lambda _: None))
        yield processes._content(jobs, options, 0, answers, "narrow enough", [])
    report("measured")


COMMAND = ["python", "-m", "rmsexp.campaign", "quality"]


def timed(folder: Path, *words: str) -> Timing:
    (found,) = ask(folder, *words).timings()
    return found


def test_nothing_is_timed_by_default(tmp_path: Path) -> None:
    assert ask(tmp_path).timings() == []


def test_the_timing_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "measure", measured)
    asked, reports = timed(tmp_path, "timing.norms=[rms,ln]"), list[str]()
    assert asked.is_left()
    assert _measure(asked, reports.append, [*COMMAND, "results=/here", "data.root=/there"]) is None
    _measure(asked, reports.append, ["again"])
    (path,) = tmp_path.rglob(timing_records.FILE)
    content = readers.read_json(path)
    assert (content["reference"], content["seed"], content["command"]) == ("ln", 3000, " ".join(COMMAND))
    assert len(content["processes"]) == 6
    assert reports == ["measured", f"timing  {path}"]
    assert not asked.is_left()
    atomic.write_json(path, content | {"processes": content["processes"][:5]})  # the budget was spent, or Ctrl-C
    assert asked.is_left()
    assert timed(tmp_path, "timing.norms=[ln,rms,none]").is_left()


def test_records_of_another_config_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "measure", measured)
    asked = timed(tmp_path, "timing.norms=[rms,ln]")
    _measure(asked, lambda _: None, COMMAND)
    assert not asked.is_left()
    (path,) = tmp_path.rglob(timing_records.FILE)
    content = readers.read_json(path)
    other = [series | {"workload": "of another config"} for series in content["series"]]
    atomic.write_json(path, content | {"series": other})
    assert asked.is_left()


def test_records_of_one_machine_and_code_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "measure", measured)
    asked = timed(tmp_path, "timing.norms=[rms,ln]")
    _measure(asked, lambda _: None, COMMAND)
    (path,) = tmp_path.rglob(timing_records.FILE)
    content = readers.read_json(path)
    atomic.write_json(path, content | {"processes": content["processes"][:4]})
    rest = content["processes"][4:]
    timing_records.write(content | {"processes": rest}, asked.folder, [])
    assert not asked.is_left()
    (other,) = tmp_path.rglob(f"steps1/{timing_records.FILE}")
    newer = [process | {"session": process["session"] | {"code": "newer"}} for process in rest]
    atomic.write_json(other, content | {"processes": newer})
    assert asked.is_left()


def stopped(*arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield the contents after two processes; then Ctrl-C is pressed."""
    yield from itertools.islice(measured(*arguments), 2)
    signal.raise_signal(signal.SIGINT)


def failed(*arguments: Any) -> Iterator[dict[str, Any]]:
    yield from itertools.islice(measured(*arguments), 2)
    raise new_process.ProcessError("too little memory")


def test_ctrl_c_stops_a_timing_and_keeps_the_finished_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "measure", stopped)
    asked = timed(tmp_path, "timing.norms=[rms,ln]")
    assert _measure(asked, lambda _: None, COMMAND) == signal.SIGINT
    (path,) = tmp_path.rglob(timing_records.FILE)
    assert len(readers.read_json(path)["processes"]) == 2
    assert asked.is_left()


def test_a_failure_keeps_the_finished_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "measure", failed)
    with pytest.raises(new_process.ProcessError, match="too little memory"):
        _measure(timed(tmp_path, "timing.norms=[rms,ln]"), lambda _: None, COMMAND)
    (path,) = tmp_path.rglob(timing_records.FILE)
    assert len(readers.read_json(path)["processes"]) == 2


def test_the_command_stops_with_a_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It neither does the next timing nor decides claims."""
    given: list[Any] = []
    monkeypatch.setattr(processes, "measure", stopped)
    timings = [timed(tmp_path, "timing.norms=[rms,ln]")] * 2
    monkeypatch.setattr(items, "asked", lambda *_: SimpleNamespace(results=tmp_path, timings=lambda: timings))
    monkeypatch.setattr(summary, "conclude", given.append)
    monkeypatch.setattr(Worker, "work", lambda _: None)
    assert main(["quality", "margin=1"]) == 130
    assert capsys.readouterr().out.endswith("stopped; repeat the command to continue\n")
    (path,) = tmp_path.rglob(timing_records.FILE)
    assert readers.read_json(path)["command"] == "python -m rmsexp.campaign quality margin=1"
    assert not given


def test_claims_are_decided_although_a_timing_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[Any] = []

    def measure(*_: object) -> None:
        raise new_process.ProcessError("no data here")

    asked = SimpleNamespace(results=tmp_path, timings=lambda: [None])
    monkeypatch.setattr(items, "asked", lambda *_: asked)
    monkeypatch.setattr(summary, "conclude", given.append)
    monkeypatch.setattr(campaign, "_measure", measure)
    monkeypatch.setattr(Worker, "work", lambda _: None)
    assert main(["quality"]) == 1
    assert capsys.readouterr().err == "rmsexp: no data here\n"
    assert given == [asked]


def test_another_worker_that_measures_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "measure", measured)
    asked = timed(tmp_path, "timing.norms=[rms,ln]")
    with Lock(asked.lock, asked.lock.parent).held():
        _measure(asked, lambda _: None, COMMAND)
    assert asked.is_left()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["timing.norms=[ln]", "timing.seed=1000"], "share seed 1000"),
        (["timing.budget=0"], "timing.budget must be a finite number greater than 0"),
        (["timing.processes=0"], "timing.processes must be at least 1"),
        (["timing.norms=[lnn]"], "norm=lnn is not known"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=message):
        ask(tmp_path, *words)
