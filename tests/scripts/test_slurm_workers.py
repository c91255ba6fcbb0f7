"""A campaign's worker as a job of SLURM: ``scripts/slurm_workers.sh``.

SLURM is simulated, and in most tests the worker is, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.campaign_runs import RUNS, write_file
from helpers.stopping import in_training

from rmsexp.records import record

SCRIPT = Path(__file__).parents[2] / "scripts/slurm_workers.sh"
# Writes its words, and ends as a worker that saves its run.
WORKER = """#!/bin/sh
trap 'sleep 0.2; echo saved >> "{folder}/log"; exit 143' TERM
echo "$@" >> "{folder}/log"
echo ready
while [ ! -e "{folder}/end" ]; do sleep 0.05; done
exit {status}
"""
SCONTROL = """#!/bin/sh
echo scontrol "$@" >> "{folder}/log"
"""


def work(folder: Path, stop: signal.Signals | None, status: int, **job: str) -> tuple[int, list[str]]:
    """Run the script until its worker works; then stop it, or let the worker end. Return its status and its log."""
    for name, text in {"python": WORKER, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text.format(folder=folder, status=status))
        (folder / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | job
    command = [str(SCRIPT), "quality", "data.root=a folder"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        if stop is None:
            (folder / "end").touch()
        else:
            shell.send_signal(stop)
    return shell.returncode, (folder / "log").read_text().splitlines()


STARTED = "-m rmsexp.campaign quality data.root=a folder"


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3"),
        ({"SLURM_JOB_ID": "9"}, "9"),
    ],
)
def test_before_its_time_is_over_a_worker_is_saved_and_queued_again(
    job: dict[str, str], name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a path with blanks"
    folder.mkdir()
    assert work(folder, signal.SIGUSR2, 0, **job) == (0, [STARTED, "saved", f"scontrol requeue {name}"])


def test_a_preempted_worker_is_saved(tmp_path: Path) -> None:
    """SLURM itself queues the job again."""
    assert work(tmp_path, signal.SIGTERM, 0) == (143, [STARTED, "saved"])


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_is_that_of_the_worker(status: int, tmp_path: Path) -> None:
    assert work(tmp_path, None, status) == (status, [STARTED])


@pytest.mark.minutes
def test_a_real_worker_is_saved_queued_again_and_continued(tmp_path: Path) -> None:
    """The second start of the script is that of the job that SLURM has queued again."""
    runs = RUNS | {"schedule.steps": 100, "log_every": 5, "checkpoint_every": 100}
    folder = write_file(tmp_path / "configs", runs=runs, final={"seeds": {"look": 2, "most": 2}})
    results, scontrol = tmp_path / "results", tmp_path / "scontrol"
    scontrol.write_text(SCONTROL.format(folder=tmp_path))
    scontrol.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "9"}
    command = [str(SCRIPT), "tiny", "--config-dir", folder, f"results={results}"]
    with subprocess.Popen(command, env=environment) as job:
        while not in_training(results, 10) and job.poll() is None:
            time.sleep(0.02)
        job.send_signal(signal.SIGUSR2)
    assert job.returncode == 0
    assert (tmp_path / "log").read_text() == "scontrol requeue 9\n"
    (run,) = (files for files in map(record.RunFolder, record.find_runs(results)) if is_interrupted(files))
    saved = run.read_status()
    assert saved["error"] == "stopped by SIGTERM"
    assert 10 <= saved["checkpoint"] == saved["step"] < 100
    again = subprocess.run(
        command, env=environment | {"SLURM_RESTART_COUNT": "1"}, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert [session["from_step"] for session in run.read_run()["sessions"]] == [0, saved["step"]]
    statuses = [record.RunFolder(path).read_status()["status"] for path in record.find_runs(results)]
    assert set(statuses) == {"finished"}
    assert ": RMSNorm equals LayerNorm: " in again.stdout  # the verdict, which needs all runs
    assert (tmp_path / "log").read_text() == "scontrol requeue 9\n"


def is_interrupted(folder: record.RunFolder) -> bool:
    return folder.read_status()["status"] == "interrupted"
