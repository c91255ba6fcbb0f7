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


def test_after_a_fused_run_the_next_norms_are_fused_too(tmp_path: Path) -> None:
    words = [f"results={tmp_path}", "norm.impl=fused"]
    for norm in ("ln", "rms", "none", "prms", "wn"):
        job = config.job([*words, "norm=rms"])
        job.setting_folder.mkdir(parents=True, exist_ok=True)
        assert outcomes.next_command(job, None) == f"python -m rmsexp {' '.join(words)} norm={norm}"
        config.job([*words, f"norm={norm}"]).folder.mkdir(parents=True)  # the norm has a fused form
    with pytest.raises(config.ConfigError, match="no fused form"):
        config.job([*words, "norm=bn"])
    norms = "ln,rms,none,prms,wn"
    assert outcomes.next_command(job, None) == f"python -m rmsexp -m {' '.join(words)} norm={norms} seed=0,1,2"


def test_curves_that_cannot_be_drawn_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rmsexp.report.draw", Mock(side_effect=ValueError("Out of range float values")))
    assert outcomes.draw(config.job([])) is None
    assert capsys.readouterr().err == "rmsexp: the curves cannot be drawn: Out of range float values\n"
