"""Workers of a campaign that Hydra's launchers start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from helpers.campaigns import RUNS, write_config

from rmsexp.commands import launch
from rmsexp.commands.campaign import main
from rmsexp.records import record
from rmsexp.system.command_line import ReportedError


def test_after_the_loss_of_a_process_all_are_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for ever, though."""
    calls = list[int]()

    def lose() -> None:
        calls.append(len(calls))
        if len(calls) != 2:
            raise BrokenProcessPool

    monkeypatch.setattr(sys, "argv", ["rmsexp"])
    monkeypatch.setattr(launch.hydra, "main", lambda **_: lambda _: lose)
    assert launch.launch(lambda _: None, [], restarts=1) == 0
    assert (len(calls), capsys.readouterr().out.count("\n")) == (2, 1)
    with pytest.raises(ReportedError, match="BrokenProcessPool"):
        launch.launch(lambda _: None, [], restarts=1)
    assert len(calls) == 4


def start(folder: Path, results: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rmsexp.campaign", "tiny", "--jobs", "2", "--config-dir", str(folder)]
    environment = os.environ | {"TMPDIR": str(results.parent), "OMP_NUM_THREADS": "1"}  # a machine lock of its own
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, f"results={results}", *words], env=environment, text=True, **output)  # type: ignore[call-overload, no-any-return]


def running(results: Path) -> list[record.RunFolder]:
    """Return the runs that are being trained, or an empty list while there are fewer than two."""
    runs = [record.RunFolder(path) for path in record.find_runs(results)] if results.exists() else []
    busy = [run for run in runs if run.status_path.exists() and run.read_status()["status"] == "running"]
    return busy if len(busy) == 2 and all(run.metrics_path.exists() for run in busy) else []


@pytest.mark.minutes
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_two_workers_share_a_campaign(launcher: str, tmp_path: Path) -> None:
    folder, results = Path(write_config(tmp_path / "configs")), tmp_path / "results"
    with start(folder, results, f"hydra/launcher={launcher}") as command:
        out = command.communicate(timeout=500)[0]
    assert command.returncode == 0
    assert "RMSNorm equals LayerNorm" in out
    sessions = [record.RunFolder(path).read_run()["sessions"] for path in record.find_runs(results)]
    assert {len(one) for one in sessions} == {1}  # no run was begun twice


@pytest.mark.minutes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_takes_its_workers_with_it(number: signal.Signals, tmp_path: Path) -> None:
    folder = Path(write_config(tmp_path / "configs", runs=RUNS | {"schedule.steps": 20_000}))
    with start(folder, tmp_path / "results") as command:
        deadline = time.monotonic() + 200
        while not (busy := running(tmp_path / "results")) and time.monotonic() < deadline:
            time.sleep(0.1)
        command.send_signal(number)
        command.wait(60)
    assert command.returncode in (-number, 128 + number)
    deadline = time.monotonic() + 60
    while any(run.is_locked() for run in busy) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(busy) == 2
    assert not any(run.is_locked() for run in busy)


def test_a_worker_reports_a_mistake_by_its_exit_status(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Here Hydra's basic launcher, which starts workers in this process, one after the other."""
    folder = write_config(tmp_path / "configs")
    argv = ["tiny", "--config-dir", folder, f"results={tmp_path / 'results'}", "hydra/launcher=basic", "--jobs", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rmsexp"])
        patch.setattr("rmsexp.work.worker.Worker.work", lambda worker: worker.failed.update(x="no data"))
        assert main(argv) == 1
    err = capfd.readouterr().err
    assert err == "".join(f"rmsexp: [{n}] 1 run failed; repeat the command to try them again\n" for n in (1, 2))
