"""A campaign's worker as a job of SLURM: ``scripts/slurm_workers.sh``.

SLURM and the worker are simulated.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

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
