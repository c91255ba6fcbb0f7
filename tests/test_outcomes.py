"""What is shown after a run: the command that is suggested, and curves that cannot be drawn."""

from pathlib import Path
from typing import NoReturn

import pytest

from rmsexp import config
from rmsexp.commands import outcomes


def test_options_of_the_norm_are_left_out_of_the_suggested_command(tmp_path: Path) -> None:
    job = config.job(["norm=prms", "++norm.p=0.25", f"results={tmp_path}"])
    job.setting_folder.mkdir(parents=True)
    assert outcomes.next_command(job, None) == f"python -m rmsexp results={tmp_path} norm=ln"


@pytest.mark.parametrize(
    ("words", "norms"),
    [
        (["task=language_model"], "ln,rms,none,prms,bn,wn"),
        (["task=language_model", "model.qk_norm=true"], "ln,rms,prms,bn"),
    ],
)
def test_norms_are_suggested_until_all_have_runs_and_none_that_is_refused(
    words: list[str], norms: str, tmp_path: Path
) -> None:
    job = config.job([*words, f"results={tmp_path}", "norm=rms"])
    typed = " ".join([*words, f"results={tmp_path}"])
    for norm in norms.split(","):
        job.setting_folder.mkdir(parents=True, exist_ok=True)
        assert outcomes.next_command(job, None) == f"python -m rmsexp {typed} norm={norm}"
        (job.setting_folder / norm).mkdir()
    assert outcomes.next_command(job, None) == f"python -m rmsexp -m {typed} norm={norms} seed=0,1,2"


def test_curves_that_cannot_be_drawn_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ValueError("Out of range float values")

    monkeypatch.setattr("rmsexp.report.draw", fail)
    assert outcomes.draw(config.job([])) is None
    assert capsys.readouterr().err == "rmsexp: the curves cannot be drawn: Out of range float values\n"
