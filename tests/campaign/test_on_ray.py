"""The runs of a campaign as tasks of Ray. ``scripts/disturb.py ray_node_lost`` loses a node of a cluster."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import disturb
import pytest
from helpers.campaign_runs import RUNS, ask, write_file
from helpers.stopping import in_training

from rmsexp.campaign import registration
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.commands.campaign import main
from rmsexp.records import record
from rmsexp.system import lock
from rmsexp.system.command_line import ReportedError
from rmsexp.work import on_ray
from rmsexp.work.on_ray import Done, RayWorker
from rmsexp.work.runner import Outcome


@pytest.mark.minutes
def test_ctrl_c_saves_the_runs(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the command and to all its processes. Ray starts a cluster on this machine."""
    # so long that no run ends between the moment when it is seen and the signal
    runs = RUNS | {"schedule.steps": 300, "log_every": 5, "checkpoint_every": 300}
    folder = write_file(tmp_path / "configs", runs=runs, final={"seeds": {"look": 2, "most": 2}})
    command = [sys.executable, "-m", "rmsexp.campaign", "tiny", "--config-dir", folder]
    environment = os.environ | {"TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"}  # paths of sockets must be short
    undisturbed, results = tmp_path / "undisturbed" / "results", tmp_path / "stopped" / "results"
    subprocess.run([*command, f"results={undisturbed}"], env=environment, check=True)
    command += [f"results={results}", "--on", "ray=local"]
    with subprocess.Popen(command, env=environment, process_group=0) as stopped:
        while not in_training(results, 10) and stopped.poll() is None:
            time.sleep(0.02)
        os.killpg(stopped.pid, signal.SIGINT)
    assert stopped.returncode == 130
    statuses = [record.RunFolder(path).read_status() for path in record.find_runs(results)]
    saved = [status for status in statuses if status["status"] == "interrupted"]
    assert any(10 <= status["checkpoint"] == status["step"] < 300 for status in saved)
    assert "running" not in [status["status"] for status in statuses]
    subprocess.run(command, env=environment, check=True)
    assert disturb.not_continued(results) == []
    assert any(len(steps) > 1 for steps in disturb.starts(results).values())
    assert disturb.differences(*map(disturb.campaign_content, (undisturbed, results))) == []


@pytest.mark.usefixtures("quick_folders")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, "Ray did not start on this machine (timed out)"),
        ("10.0.0.1:1", "Ray has no cluster at 10.0.0.1:1 (timed out)"),
    ],
)
def test_a_line_says_why_there_is_no_cluster(
    address: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise Exception("timed out\nin raylet")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(ReportedError) as raised, on_ray._cluster(address):
        pass
    assert str(raised.value) == expected


def test_without_ray_a_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def without_ray(name: str, *arguments: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    assert main(["tiny", "--config-dir", write_file(tmp_path), f"results={tmp_path}", "--on", "ray"]) == 1
    assert capsys.readouterr().err == "rmsexp: --on ray needs Ray: pip install 'rmsexp[ray]'\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "slurm"], "argument --on: 'slurm' is neither ray nor ray=ADDRESS"),
        (["--on", "ray", "--jobs", "2"], "--jobs does not go with --on ray"),
        (["--plan", "--jobs", "2"], "--plan and --register do no runs, so --jobs and --on do not go with them"),
        (["--plan", "--on", "ray"], "--plan and --register do no runs, so --jobs and --on do not go with them"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["quality", *words])
    assert message in capsys.readouterr().err


@pytest.fixture
def worker(tmp_path: Path, quick_folders: None) -> RayWorker:  # noqa: ARG001
    return RayWorker(CampaignRuns(ask(tmp_path)), 1, [].append)


HERE = {"commit": "here", "code": "digest"}


class Failure(Exception):
    """Stands for ray.exceptions.RayError."""


@pytest.mark.parametrize(
    ("done", "failed"),
    [
        (Done(Outcome("finished", 20), "node"), []),
        (Done(Outcome("interrupted", 3, "stopped by SIGTERM", 15), "node"), []),  # by a node that is shut down
        (Done(None, "node"), []),  # another process has the run locked
        (Done(Outcome("failed", 3, "no data"), "node"), ["no data"]),
        (Failure("traceback\nthe node died"), ["the node died"]),
    ],
)
def test_how_a_task_ended(done: Done | Failure, failed: list[str], worker: RayWorker) -> None:
    def get(task: str) -> Done:  # noqa: ARG001
        if isinstance(done, Failure):
            raise done
        return done

    (job, *_) = worker.runs.left()
    worker._tasks["task"] = job
    worker._take(SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Failure)), "task")
    assert worker._tasks == {}
    assert list(worker.failed.values()) == failed


def node(alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "gpu", "found"),
    [
        ([node(), node(CPU=2.0), node(CPU=5.0), node(alive=False, CPU=16.0)], 0, 2),
        ([node(CPU=8.0), node(CPU=2.0, GPU=1.0)], 1, 1),
        ([node(CPU=64.0, GPU=3.0), node(CPU=64.0)], 1, 3),
        ([node(CPU=1.0), node(alive=False, CPU=2.0)], 0, "no node of the cluster has 2 CPUs; add"),
        ([node(CPU=8.0), node(CPU=1.0, GPU=1.0)], 1, "has 2 CPUs and a GPU; add"),
    ],
)
def test_a_node_must_have_what_a_run_needs(
    nodes: list[dict[str, Any]], gpu: int, found: int | str, worker: RayWorker
) -> None:
    """Ray would wait for ever for a node that has it."""
    begun: list[tuple[Any, ...]] = []
    (job, *_) = worker.runs.left()
    run = SimpleNamespace(config=SimpleNamespace(threads=2, device="auto"), overrides=[])
    runs = {"begin": lambda _: run, "headline": lambda job: job.folder, "results": Path()}
    worker.runs = SimpleNamespace(**runs)  # type: ignore[assignment]
    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *words: begun.append(words)))
    ray = SimpleNamespace(cluster_resources=lambda: {"GPU": gpu}, nodes=lambda: nodes, remote=lambda _: task)
    worker._submit(ray, [job])
    if isinstance(found, int):
        assert begun[0][-1] == found
    else:
        assert found in worker.failed[job]
        assert begun == []


def test_a_task_waits_for_the_process_that_did_its_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def execute() -> Outcome:
        tries.append(0)
        if len(tries) < 3:
            raise lock.RunLockedError("locked")
        return Outcome("finished", 20)

    monkeypatch.setattr("threading.Event.wait", lambda *_: False)
    assert on_ray._when_unlocked(execute) == Outcome("finished", 20)
    tries.clear()
    monkeypatch.setattr(on_ray, "LOCKED_SECONDS", 2.0)
    assert on_ray._when_unlocked(execute) is None


def test_a_node_with_other_code_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registration, "code", lambda: HERE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="has another version of rmsexp; install the same one on all nodes"):
        on_ray._do([], None, str(tmp_path), "token", {"commit": "there", "code": "digest"}, 1)


def test_a_node_without_the_folder_of_results_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run would be recorded where nobody looks for it, and done again and again."""
    monkeypatch.setattr(registration, "code", lambda: HERE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"does not have the folder .*elsewhere; all nodes must share it"):
        on_ray._do([], None, str(tmp_path), str(tmp_path / "elsewhere" / "token"), HERE, 1)


def test_nodes_recognise_the_folder_of_results(worker: RayWorker) -> None:
    with worker._marked():
        assert worker._token.parent == worker.runs.results
        assert worker._token.exists()
    assert not worker._token.exists()
