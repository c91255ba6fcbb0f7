"""Several workers that one command starts."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.campaign_runs import RUNS, write_file
from helpers.processes import kill_the_second

from rmsexp.commands.campaign import main
from rmsexp.records import record
from rmsexp.work import workers


def test_lines_have_a_label() -> None:
    stream = io.StringIO()
    labelled = workers.Labelled(stream, "[2] ")
    print("one\ntwo", end="", file=labelled)
    assert stream.getvalue() == "[2] one\n"
    print(" and three\n", file=labelled)
    labelled.flush()
    assert stream.getvalue() == "[2] one\n[2] two and three\n[2] \n"
    assert not labelled.isatty()


def test_a_character_that_the_encoding_lacks_does_not_cost_the_line() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    print("jürgen", file=workers.Labelled(stream, "[1] "))
    assert written.getvalue() == b"[1] j?rgen\n"


def test_the_exit_status_is_that_of_the_workers(capfd: pytest.CaptureFixture[str]) -> None:
    assert workers.start(2, main, []) == 2
    lines = sorted(capfd.readouterr().err.splitlines())
    missing = "rmsexp: the following arguments are required: "
    assert [line[: len(missing) + 4] for line in lines] == [f"[{number}] {missing}" for number in (1, 2)]


def test_a_worker_that_was_killed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(workers, "_be_worker", kill_the_second)
    assert workers.start(2, main, []) == 1
    assert capsys.readouterr().err == "rmsexp: worker 2 was ended by SIGKILL; repeat the command to continue\n"


@pytest.mark.minutes
def test_a_killed_command_takes_its_workers_with_it(tmp_path: Path) -> None:
    """They save their runs first."""
    folder = write_file(tmp_path, runs=RUNS | {"schedule.steps": 20_000})
    command = [sys.executable, "-m", "rmsexp.campaign", "tiny", "--jobs", "2", "--config-dir", folder]
    env = os.environ | {"TMPDIR": str(tmp_path)}  # a machine lock of its own
    with subprocess.Popen(
        [*command, f"results={tmp_path}"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        seen: set[str] = set()
        for line in parent.stderr:
            seen |= set(re.findall(r"^(\[[12]\]) .* step \d+/20000 ", line))
            if len(seen) == 2:
                break
        parent.send_signal(signal.SIGKILL)
        assert all(re.match(r"\[[12]\] ", line) for line in parent.stderr)  # to the end, when both have ended
    runs = [record.RunFolder(path) for path in record.find_runs(tmp_path)]
    deadline = time.monotonic() + 60
    while any(run.is_locked() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    for run in runs:
        status = run.read_status()
        assert (status["status"], status["error"]) == ("interrupted", "stopped by SIGTERM")
        assert status["checkpoint"] == status["step"] > 0
    assert len(runs) == 2
