"""The progress display and the log file of a run."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from helpers.records import make_row

from rmsexp.train.progress import LOG, Failures, ProgressDisplay, logged


def test_what_is_logged_is_written_with_its_time(tmp_path: Path) -> None:
    root, path = logging.getLogger(), tmp_path / "run.log"
    before = root.level, list(root.handlers)
    with logged(path, Failures()):
        LOG.info("step 1")
        logging.getLogger("somebody").warning("a warning of %d", 2)
        logging.getLogger("somebody").debug("left out")
    assert (root.level, root.handlers) == before
    assert [line.split(" ", 2)[2] for line in path.read_text().splitlines()] == ["step 1", "a warning of 2"]


def test_a_log_file_that_cannot_be_written_is_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    with logged(tmp_path, failures):  # a folder
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
