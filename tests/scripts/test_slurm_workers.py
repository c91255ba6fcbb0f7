"""A campaign's worker as a job of SLURM: ``scripts/slurm_workers.sh``.

SLURM and the worker are simulated.
"""

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
        assert shell.stdout.readline() == "ready\n"
        if stop is None:
            (folder / "end").touch()
        else:
            shell.send_signal(stop)
    return shell.returncode, (folder / "log").read_text().splitlines()


STARTED = "-m rmsexp.campaign quality data.root=a folder"
ARRAY = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("stop", "status", "job", "expected"),
    [
        pytest.param(signal.SIGUSR2, 0, ARRAY, (0, "saved", "scontrol requeue 7_3"), id="before its time is over"),
        pytest.param(signal.SIGUSR2, 0, {"SLURM_JOB_ID": "9"}, (0, "saved", "scontrol requeue 9"), id="no array"),
        pytest.param(signal.SIGTERM, 0, {}, (143, "saved"), id="preempted: SLURM itself queues the job again"),
        *(pytest.param(None, status, {}, (status,), id=f"ended with {status}") for status in (0, 1)),
    ],
)
def test_a_worker_is_saved_and_queued_again(
    stop: signal.Signals | None, status: int, job: dict[str, str], expected: tuple[int | str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "a path with blanks"
    folder.mkdir()
    ended, *lines = expected
    assert work(folder, stop, status, **job) == (ended, [STARTED, *lines])
