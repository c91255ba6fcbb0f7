"""A worker of a campaign, beside others that are simulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.campaigns import RUNS, ask, write_config, write_run
from helpers.stopping import stop, terminate

from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.commands.campaign import main
from rmsexp.records import record
from rmsexp.system import lock
from rmsexp.work import runner
from rmsexp.work import worker as worker_module
from rmsexp.work.runner import Outcome
from rmsexp.work.worker import Worker


class Simulation:
    """Runs that write records at once instead of training. ``tried``: the runs, in order.

    ``behaviour``: what happens instead with some runs.
    """

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        self.tried: list[Job] = []
        self.lines: list[str] = []
        self.behaviour: dict[Job, Callable[[Job], Outcome]] = {}

    def execute(self, run: Any, conditions: object) -> Outcome:  # noqa: ARG002
        job = run.job
        self.tried.append(job)
        return self.behaviour.get(job, self.finish)(job)

    def finish(self, job: Job) -> Outcome:
        write_run(self.asked, job, 20 + 0.1 * (job.rate == 2e-3))
        return Outcome("finished", 20)

    def fail(self, job: Job) -> Outcome:
        """Fail as a run whose data are missing: it has a status, but no description."""
        message = f"no data for {job.norm} seed {job.seed} at {job.rate:g}"
        folder = record.RunFolder(self.asked.results / job.folder)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_status("failed", 0, message)
        return Outcome("failed", 0, message)

    def worker(self) -> Worker:
        return Worker(self.asked, 1, self.lines.append)

    def planned(self) -> tuple[Job, ...]:
        return self.asked.update().jobs


@pytest.fixture
def simulation(tmp_path: Path, quick_folders: None, monkeypatch: pytest.MonkeyPatch) -> Simulation:  # noqa: ARG001
    simulated = Simulation(ask(tmp_path))
    monkeypatch.setattr(Question, "begin", lambda asked, job: (asked.register(), SimpleNamespace(job=job))[1])
    monkeypatch.setattr(runner, "execute", simulated.execute)
    return simulated


def test_a_worker_does_all_runs(simulation: Simulation) -> None:
    """They are reported by number. The campaign is registered before the first of them."""
    asked, registered = simulation.asked, list[bool]()
    original = simulation.finish

    def finish(job: Job) -> Outcome:
        registered.append((asked.folder / campaign_file.REGISTRATION).exists())
        return original(job)

    simulation.finish = finish  # type: ignore[method-assign]
    worker = simulation.worker()
    assert worker.work() is None
    assert worker.failed == {}
    assert [job.stage for job in simulation.tried] == ["tune"] * 14 + ["final"] * 4
    assert all(registered)
    assert len(set(simulation.tried)) == 18
    assert simulation.lines[0] == f"tune run 1 of 6: {simulation.tried[0].folder}"
    assert simulation.lines[-1] == f"final run 4 of 4: {simulation.tried[-1].folder}"


def test_a_run_whose_files_cannot_be_used_does_not_end_the_worker(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *others = simulation.planned()
    is_locked, execute = record.RunFolder.is_locked, simulation.execute

    def refused(folder: record.RunFolder) -> bool:
        if folder.path == simulation.asked.results / first.folder:
            raise PermissionError("no lock")
        return is_locked(folder)

    def broken(run: Any, conditions: runner.Conditions) -> Outcome:
        if run.job == second:
            raise PermissionError("no status")
        return execute(run, conditions)

    monkeypatch.setattr(record.RunFolder, "is_locked", refused)
    monkeypatch.setattr(runner, "execute", broken)
    worker = simulation.worker()
    assert worker.work() is None
    assert worker.failed == {first: "no lock", second: "no status"}
    assert set(others) <= set(simulation.tried)


def test_a_locked_run_is_left_and_looked_at_again(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing else is left, the worker waits. Here the other worker finishes one run, and dies in another."""
    first, second, *others = simulation.planned()
    locks = [record.RunFolder(simulation.asked.results / job.folder).lock.held() for job in (first, second)]
    for held in locks:
        held.__enter__()
    waits: list[float] = []
    original = threading.Event.wait

    def wait(event: threading.Event, seconds: float) -> bool:
        if seconds != worker_module.POLL_SECONDS:  # of another thread, such as tqdm's
            return original(event, seconds)
        assert simulation.tried == others
        waits.append(seconds)
        if len(waits) == 2:
            write_run(simulation.asked, first, 20)
            for held in locks:
                held.__exit__(None, None, None)
        return False

    monkeypatch.setattr("threading.Event.wait", wait)
    assert simulation.worker().work() is None
    assert waits == [worker_module.POLL_SECONDS] * 2
    assert simulation.tried[len(others)] == second
    assert first not in simulation.tried


def test_a_run_that_another_worker_locks_at_this_moment(simulation: Simulation) -> None:
    first, second, *_ = simulation.planned()

    def lose(job: Job) -> Outcome:
        del simulation.behaviour[job]
        raise lock.RunLockedError("locked")

    simulation.behaviour[first] = lose
    assert simulation.worker().work() is None
    assert simulation.tried[:3] == [first, second, first]


def test_a_failed_run_is_tried_once_by_each_worker(simulation: Simulation) -> None:
    """Runs that do not depend on it are done. Its data may be missing on the machine of one worker only."""
    first, *others = simulation.planned()
    simulation.behaviour[first] = simulation.fail
    worker, other = simulation.worker(), simulation.worker()
    assert worker.work() is None
    assert simulation.tried == [first, *others]
    message = "no data for ln seed 1000 at 0.001"
    assert worker.failed == {first: message}
    assert [line for line in simulation.lines if message in line] == [f"failed: {first.folder}: {message}"]
    simulation.behaviour.clear()
    assert other.work() is None
    assert (other.failed, simulation.tried.count(first)) == ({}, 2)


@pytest.mark.parametrize("stage", ["tune", "final"])
def test_runs_without_scores_do_not_loop(stage: str, simulation: Simulation) -> None:
    def finish_without_scores(job: Job) -> Outcome:
        already = simulation.tried.count(job) > 1
        if not already:
            path = write_run(simulation.asked, job).metrics_path
            path.write_text(
                "\n".join(line for line in path.read_text().splitlines() if '"valid_sample"' in line) + "\n"
            )
        return Outcome("finished", 20, already=already)

    for norm in ("ln", "rms"):
        for rate in simulation.asked.campaign.grid:
            for seed in (0, 1, 1000):
                folder = simulation.asked.relative_folder(stage, norm, rate, seed)  # type: ignore[arg-type]
                simulation.behaviour[Job(stage, norm, rate, seed, folder)] = finish_without_scores  # type: ignore[arg-type]
    worker = simulation.worker()
    assert worker.work() is None
    assert len(set(worker.failed.values())) == 1
    assert len(simulation.tried) < 40


@pytest.mark.usefixtures("quick_folders")
def test_exit_statuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """0 if all runs have ended, 1 if some failed, and 128 + the number of a signal."""
    argv = ["tiny", "--config-dir", write_config(tmp_path), f"results={tmp_path}"]

    def result(work: Callable[[Worker], int | None]) -> tuple[int, str, str]:
        monkeypatch.setattr(Worker, "work", work)
        return main(argv), *capsys.readouterr()  # type: ignore[return-value]

    def fail(worker: Worker) -> None:
        worker.failed[Job("tune", "ln", 1e-3, 0, "x")] = "no data"

    def receive(worker: Worker) -> None:  # noqa: ARG001
        signal.raise_signal(signal.SIGTERM)

    status, out, err = result(lambda _: None)
    assert (status, err) == (0, "")
    assert "not decided yet" in out
    status, out, err = result(fail)
    assert (status, err) == (1, "rmsexp: 1 run failed; repeat the command to try them again\n")
    status, out, err = result(lambda _: signal.SIGINT)
    assert (status, out.splitlines()[1:]) == (130, ["stopped; repeat the command to continue"])
    with pytest.raises(SystemExit, match="143"):  # between two runs
        result(receive)


@pytest.mark.usefixtures("small_synthetic_data")
def test_a_signal_saves_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "a path with blanks"
    argv = ["tiny", "--config-dir", write_config(tmp_path / "its configs"), f"results={results}"]
    with pytest.MonkeyPatch.context() as patch:
        stop(patch, "_update", 3 + 7, terminate)
        assert main(argv) == 143
    (folder,) = record.find_runs(results)
    found = record.RunFolder(folder).read_status()
    assert (found["status"], found["step"], found["checkpoint"]) == ("interrupted", 7, 7)
    assert capsys.readouterr().out.endswith("stopped; repeat the command to continue\n")


# --- workers that Hydra's launchers start


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
        # as many failures as workers that share the cores
        patch.setattr("rmsexp.work.worker.Worker.work", lambda it: it.failed.update(dict.fromkeys(range(it.n_jobs))))
        assert main(argv) == 1
    err = capfd.readouterr().err
    assert err == "".join(f"rmsexp: [{n}] 1 run failed; repeat the command to try them again\n" for n in (1, 2))
