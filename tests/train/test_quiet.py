"""The stored reference of the quiet machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmsexp.train import quiet
from rmsexp.train.probe import WORK, Times


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(quiet, "FOLDER", tmp_path / "machines")
    return tmp_path


def reference() -> quiet.Reference:
    return quiet.Reference(quiet.machine_id(), WORK, "2025-01-01T00:00:00+00:00", 5, 400, 0.001, 0.002)


def test_what_was_written_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert quiet.read() is None
    path = quiet.write(reference())
    assert path.parent.name == quiet.machine_id()
    assert quiet.read() == reference()
    assert reference().times == Times(arithmetic=0.001, memory=0.002)
    assert capsys.readouterr().err == ""


def change(**changes: Any) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps(reference().content() | changes))


def of_one_process(path: Path) -> None:
    content = reference().content()
    del content["processes"]
    path.write_text(json.dumps(content))


def test_a_reference_is_used_whatever_the_umask(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o002)
    try:
        quiet.write(reference())
    finally:
        os.umask(before)
    assert quiet.read() == reference()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("{"), "is not JSON"),
        (lambda path: path.write_text("{}"), "it has no machine"),
        (of_one_process, "it has no processes"),
        (change(memory=0.0), "memory is 0.0"),
        (change(memory="0.1"), "memory is '0.1'"),
        (change(arithmetic=float("nan")), "arithmetic is nan"),
        (change(machine="another"), "is of another machine or of an older probe"),
        (change(work="more"), "is of another machine or of an older probe"),
        (lambda path: path.chmod(0o666), "other users can change"),
    ],
)
def test_a_reference_that_cannot_be_used_is_reported(
    damage: Callable[[Path], None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(quiet.write(reference()))
    assert quiet.read() is None
    (notice,) = capsys.readouterr().err.splitlines()
    assert message in notice
    assert "python -m rmsexp.timing --calibrate" in notice
