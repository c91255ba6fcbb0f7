"""The timing stage: once for all workers, with a seed of its own, and its record in the setting's folder."""

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import measuring_work
from helpers.campaigns import ask

from rmsexp import config
from rmsexp.campaign import items
from rmsexp.campaign.asked import Timing
from rmsexp.commands import summary
from rmsexp.commands.campaign import _measure, main
from rmsexp.config.timing import TimingConfig
from rmsexp.measure import new_process, processes
from rmsexp.measure.interleaved import Budget
from rmsexp.records.frames import timing_records
from rmsexp.system import atomic, readers
from rmsexp.system.clock import Stopwatch
from rmsexp.system.lock import Lock
from rmsexp.work.worker import Worker

pytestmark = pytest.mark.usefixtures("small_synthetic_data")


def measured(
    jobs: dict[str, config.Job], options: TimingConfig, report: Callable[[str], None], *_: object
) -> Iterator[dict[str, Any]]:
    """Yield the contents of a record, without measuring."""
    answers = []
    for number in range(options.processes):
        answers.append(measuring_work.measured(jobs, options, number, 0, Budget(Stopwatch(), 1), lambda _: None))
        yield processes._content(jobs, options, 0, answers, "narrow enough")
    report("measured")


COMMAND = ["python", "-m", "rmsexp.campaign", "quality"]


def timed(folder: Path, *words: str) -> Timing:
    (found,) = ask(folder, *words).timings()
    return found


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timing:
    monkeypatch.setattr(processes, "measure", measured)
    return timed(tmp_path, "timing.norms=[rms,ln]")


def record_of(root: Path) -> tuple[Path, dict[str, Any]]:
    (path,) = root.rglob(timing_records.FILE)
    return path, readers.read_json(path)


def test_the_timing_is_done_once(asked: Timing, tmp_path: Path) -> None:
    reports = list[str]()
    assert asked.is_left()
    with Lock(asked.folder / ".timing.lock", asked.folder).held():  # another worker that measures is not waited for
        _measure(asked, reports.append, COMMAND)
    assert asked.is_left()
    assert _measure(asked, reports.append, [*COMMAND, "results=/here", "data.root=/there"]) is None
    _measure(asked, reports.append, ["again"])
    path, content = record_of(tmp_path)
    assert (content["reference"], content["seed"], content["command"]) == ("ln", 3000, " ".join(COMMAND))
    assert len(content["processes"]) == 6
    assert reports == ["measured", f"timing  {path}"]
    assert not asked.is_left()
    assert timed(tmp_path, "timing.norms=[ln,rms,none]").is_left()
    assert ask(tmp_path).timings() == []  # by default


def test_records_of_one_config_machine_and_code_count_together(asked: Timing, tmp_path: Path) -> None:
    _measure(asked, lambda _: None, COMMAND)
    path, content = record_of(tmp_path)
    other = [series | {"workload": "of another config"} for series in content["series"]]
    atomic.write_json(path, content | {"series": other})
    assert asked.is_left()
    atomic.write_json(path, content | {"processes": content["processes"][:4]})  # the budget was spent, or Ctrl-C
    assert asked.is_left()
    rest = content["processes"][4:]
    timing_records.write(content | {"processes": rest}, asked.folder, [])
    assert not asked.is_left()
    (path,) = tmp_path.rglob(f"steps1/{timing_records.FILE}")
    newer = [process | {"session": process["session"] | {"code": "newer"}} for process in rest]
    atomic.write_json(path, content | {"processes": newer})
    assert asked.is_left()


def stopped(*arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield the contents after two processes; then Ctrl-C is pressed."""
    yield from itertools.islice(measured(*arguments), 2)
    signal.raise_signal(signal.SIGINT)


def failed(*arguments: Any) -> Iterator[dict[str, Any]]:
    yield from itertools.islice(measured(*arguments), 2)
    raise new_process.ProcessError("too little memory")


@pytest.mark.parametrize(("measure", "status"), [(stopped, 130), (failed, 1)])
def test_ctrl_c_and_a_failure_keep_the_finished_processes_and_claims_are_decided_after_a_failure_only(
    measure: Any, status: int, asked: Timing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(processes, "measure", measure)
    question = SimpleNamespace(title="", timings=lambda: [asked] * 2, update=lambda: SimpleNamespace(results={}))
    monkeypatch.setattr(items, "asked", lambda *words: SimpleNamespace(**vars(question), command=lambda: words[:1]))
    monkeypatch.setattr(summary, "print_verdicts", given.append)
    monkeypatch.setattr(Worker, "work", lambda _: None)
    assert main(["quality", "margin=1"]) == status
    assert capsys.readouterr().err == ("rmsexp: too little memory\n" if measure is failed else "")
    _, content = record_of(asked.folder)
    command = "python -m rmsexp.campaign quality"  # of the first alone
    assert (len(content["processes"]), content["command"], asked.is_left()) == (2, command, True)
    assert bool(given) == (measure is failed)
