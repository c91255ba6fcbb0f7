"""What is shown after a run: the command that is suggested, and curves that cannot be drawn."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from rmsexp import config
from rmsexp.commands import outcomes


def test_options_of_the_norm_are_left_out_of_the_suggested_command(tmp_path: Path) -> None:
    job = config.job(["norm=prms", "++norm.p=0.25", f"results={tmp_path}"])
    job.setting_folder.mkdir(parents=True)
    assert outcomes.next_command(job, None) == f"python -m rmsexp results={tmp_path} norm=ln"


def test_norms_are_suggested_until_all_have_runs(tmp_path: Path) -> None:
    job = config.job([f"results={tmp_path}", "norm=rms"])
    for norm in outcomes.PAPER_NORMS:
        job.setting_folder.mkdir(parents=True, exist_ok=True)
        assert outcomes.next_command(job, None) == f"python -m rmsexp results={tmp_path} norm={norm}"
        (job.setting_folder / norm).mkdir()
    norms = ",".join(outcomes.PAPER_NORMS)
    assert outcomes.next_command(job, None) == f"python -m rmsexp -m results={tmp_path} norm={norms} seed=0,1,2"


def test_curves_that_cannot_be_drawn_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rmsexp.report.draw", Mock(side_effect=ValueError("Out of range float values")))
    assert outcomes.draw(config.job([])) is None
    assert capsys.readouterr().err == "rmsexp: the curves cannot be drawn: Out of range float values\n"
