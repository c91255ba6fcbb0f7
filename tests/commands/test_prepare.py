"""``python -m rmsexp.prepare``: a signal during a download."""

import contextlib
import signal
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.hub

from rmsexp.commands import prepare


def test_a_signal_during_a_download_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    response = SimpleNamespace(info=Message, read=lambda _: signal.raise_signal(signal.SIGHUP))
    monkeypatch.setattr(torch.hub, "urlopen", lambda _: contextlib.nullcontext(response))
    with pytest.raises(SystemExit) as ended:
        prepare.main(["task=rnnsearch", "scale=small", f"data.root={tmp_path}"])
    assert ended.value.code == 128 + signal.SIGHUP
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]
