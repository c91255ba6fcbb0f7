"""``python -m rmsexp.prepare``: a signal during a download."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STOPPED_WHILE_RECEIVING = """
import os, sys
from contextlib import nullcontext
from rmsexp.commands import prepare
from rmsexp.data import download

def receive(response, path, name):
    path.write_bytes(b"a part")
    os.kill(os.getpid(), int(sys.argv[1]))

download.urllib.request.urlopen = lambda url, timeout: nullcontext()
download._receive = receive
sys.exit(prepare.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("signum", "task"), [pytest.param(15, "cifar10", marks=pytest.mark.minutes), (1, "rnnsearch")])
def test_a_signal_during_a_download_leaves_no_temporary_files(tmp_path: Path, signum: int, task: str) -> None:
    words = [f"task={task}", "scale=small", f"data.root={tmp_path}"]
    command = [sys.executable, "-c", STOPPED_WHILE_RECEIVING, str(signum), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signum, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert list(tmp_path.rglob(".download-*")) == []
