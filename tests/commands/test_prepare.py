"""``python -m rmsexp.prepare``: a signal during a download."""

import signal
import subprocess
import sys
from pathlib import Path

STOPPED_WHILE_RECEIVING = """
import contextlib, email.message, os, sys
from types import SimpleNamespace
import torch.hub
from rmsexp.commands import prepare

def receive(size):
    os.kill(os.getpid(), int(sys.argv[1]))
    return b""

response = SimpleNamespace(info=email.message.Message, read=receive)
torch.hub.urlopen = lambda request: contextlib.nullcontext(response)
sys.exit(prepare.main(sys.argv[2:]))
"""


def test_a_signal_during_a_download_leaves_no_temporary_files(tmp_path: Path) -> None:
    words = ["task=rnnsearch", "scale=small", f"data.root={tmp_path}"]
    command = [sys.executable, "-c", STOPPED_WHILE_RECEIVING, str(int(signal.SIGHUP)), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signal.SIGHUP, done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]
