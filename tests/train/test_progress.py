"""The log file of a run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rmsexp.train.failures import Failures
from rmsexp.train.progress import LOG, logged


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
