"""Signals that stop a run; its display, its log file and its loggers, whose failures do not."""

import io
import logging
import re
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.records import make_row

from rmsexp.config.schema import LoggerConfig, TensorBoardConfig
from rmsexp.records import record
from rmsexp.system.process import Interrupt, Interrupted
from rmsexp.train import loggers
from rmsexp.train.checkpoint import Identity
from rmsexp.train.progress import LOG, Failures, ProgressDisplay, logged
from rmsexp.train.writer import Writer

# --- signals


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


@pytest.mark.parametrize(
    "numbers", [*([number] * times for number in SIGNALS for times in (1, 2)), [signal.SIGINT, signal.SIGTERM]]
)
def test_the_first_stopping_signal_raises_once_the_work_is_done(numbers: list[signal.Signals]) -> None:
    """A closed terminal sends SIGHUP twice, by its shell and the kernel; timeout(1) and SLURM repeat theirs, too.

    A terminal's Ctrl-C reaches a worker twice: directly, and through the process of the sweep, or from torchrun.
    """
    interrupt, done = Interrupt(), []
    with pytest.raises(Interrupted) as stop, interrupt.install(), interrupt.deferred():  # noqa: PT012
        for number in numbers:
            signal.raise_signal(number)
        done.append(True)
    assert (stop.value.signum, done) == (numbers[0], [True])
    assert str(stop.value) == f"stopped by {numbers[0].name}"


def test_after_nohup_a_run_goes_on_without_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt().install():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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


def test_a_standard_error_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the terminal of a run in the background was closed."""
    failures = Failures()
    with Path("/dev/full").open("w", buffering=1) as full, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", full)
        display = ProgressDisplay("rms seed0", 10, failures)
        display.report("text")
        display.close()
        with suppress(OSError):
            full.close()
    assert "No space left" in failures.errors["the progress display"]


# --- the display and the log file


def test_what_is_logged_is_written_with_its_time(tmp_path: Path) -> None:
    root, path, shown = logging.getLogger(), tmp_path / "run.log", io.StringIO()
    root.addHandler(own := logging.StreamHandler(shown))  # of a program that calls rmsexp.run
    before = root.level, list(root.handlers), LOG.level
    with logged(path, Failures()):
        LOG.info("step 1")
        logging.getLogger("somebody").warning("a warning of %d", 2)
        logging.getLogger("somebody").debug("left out")
    assert (root.level, root.handlers, LOG.level) == before
    root.removeHandler(own)
    assert shown.getvalue() == "a warning of 2\n"
    assert [line.split(" ", 2)[2] for line in path.read_text().splitlines()] == ["step 1", "a warning of 2"]


def test_a_log_file_that_cannot_be_written_is_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, Path("/dev/full")):
        failures = Failures()
        with logged(path, failures):
            LOG.info("step 1")
            LOG.info("step 2")
        assert list(failures.errors) == ["the log file"]
        assert capsys.readouterr().err.count("\n") == 1


def test_progress_is_plain_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    display = ProgressDisplay("rms seed0", 100)
    display.update(make_row(40, 0.5), {"steps": 2.0, "tokens": 4096.0}, 30.0)
    display.update(make_row(60, None), {"steps": 0.01}, 6000.0)
    display.close()
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "rms seed0  step 40/100  loss 0.5000  2.0 steps/s, 4,096 tokens/s  0:30 left",
        "rms seed0  step 60/100  loss not finite  0.0 steps/s  1:40:00 left",
    ]
    assert captured.out == ""


def test_progress_is_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "150"}.items():
        monkeypatch.setenv(name, value)
    display = ProgressDisplay("rms seed0", 100)
    display.update(make_row(40, 0.5), {"steps": 2.0}, 30.0)
    display.report_evaluation(make_row(40, 0.25, "test"))
    display.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    for part in ("40/100", "loss 0.5000  2.0 steps/s  0:30 left", "test: loss 0.2500"):
        assert part in plain
