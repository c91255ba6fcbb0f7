"""Signals that stop a run, and failures of its display and its loggers, which do not."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmsexp.config.schema import LoggerConfig, TensorBoardConfig
from rmsexp.records import record
from rmsexp.train import loggers
from rmsexp.train.checkpoint import Identity
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.progress import Failures, ProgressDisplay
from rmsexp.train.writer import Writer

# --- signals


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_each_stopping_signal_raises_once_the_work_is_done(number: signal.Signals, times: int) -> None:
    """A closed terminal sends SIGHUP twice, by its shell and the kernel; timeout(1) and SLURM repeat theirs, too."""
    interrupt, done = Interrupt(), []
    with pytest.raises(Interrupted) as stop, interrupt.install(), interrupt.deferred():  # noqa: PT012
        for _ in range(times):
            signal.raise_signal(number)
        done.append(True)
    assert (stop.value.signum, stop.value.torn, done) == (number, False, [True])
    assert str(stop.value) == f"stopped by {number.name}"


def test_after_nohup_a_run_goes_on_without_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt().install():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_process_ignores_further_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal's Ctrl-C reaches a worker twice: directly, and through the process of the sweep."""
    monkeypatch.setattr("rmsexp.train.interrupt.parent_process", lambda: "the process of the sweep")
    interrupt = Interrupt()
    with pytest.raises(Interrupted) as stop, interrupt.install(), interrupt.deferred():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert (stop.value.signum, stop.value.torn) == (signal.SIGINT, False)


def test_a_second_ctrl_c_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmsexp.system.process.TWICE", 0.0)
    interrupt = Interrupt()
    with pytest.raises(Interrupted) as stop, interrupt.install(), interrupt.deferred():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one is not deferred")
    assert (stop.value.signum, stop.value.torn) == (signal.SIGINT, True)


# --- failures of what only shows or copies results


def fail(*_: object, **__: object) -> None:
    raise ConnectionError("the service has gone away\nsecond line")


@pytest.mark.parametrize("failing", ["none", "start", "log", "close"])
def test_a_logger_that_fails_is_switched_off(
    failing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, calls = Failures(), list[str]()

    def note(step: str) -> None:
        calls.append(step)
        if step == failing:
            fail()

    def start(*_: object) -> object:
        note("start")
        return SimpleNamespace(log=lambda _: note("log"), close=lambda _: note("close"))

    monkeypatch.setattr(loggers, "KINDS", {"tensorboard": start})
    writer, options = Writer(record.RunFolder(tmp_path), "slopes"), LoggerConfig(tensorboard=TensorBoardConfig())
    writer.begin(Identity(0, "", ""), {}, {"sessions": [{"from_step": 0}]}, {}, failures, options)
    for _ in range(2):
        writer.append([{}])
    writer.end("finished", 1)
    expected = ["start", "log", "log", "close"]
    assert calls == (expected if failing == "none" else expected[: expected.index(failing) + 1])
    reported = {} if failing == "none" else {"logger=tensorboard": "ConnectionError: the service has gone away"}
    assert failures.errors == reported
    assert capsys.readouterr().err.count("\n") == len(reported)


def test_a_display_that_fails_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = Failures()
    with monkeypatch.context() as patch:
        patch.setattr("rmsexp.train.progress.Console.print", fail)
        display = ProgressDisplay("rms seed0", 10, failures)
        display.report("text")
    display.report("more text")
    display.close()
    assert failures.errors == {"the progress display": "ConnectionError: the service has gone away"}
