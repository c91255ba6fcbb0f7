"""What is shown after a run: the command that is suggested, and curves that cannot be drawn."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from rmsexp import config
from rmsexp.commands import outcomes


def test_options_of_the_norm_are_left_out_of_the_suggested_command(tmp_path: Path) -> None:
    job = config.job(["norm=prms", "++norm.p=0.25", f"results={tmp_path}"])
    job.setting_folder.mkdir(parents=True)
    assert outcomes.next_command(job, None) == f"python -m rmsexp results={tmp_path} norm=ln"


@pytest.mark.parametrize(
    ("own", "norms"), [([], outcomes.PAPER_NORMS), (["norm.impl=fused"], ("ln", "rms", "none", "prms", "wn"))]
)
def test_norms_are_suggested_until_all_have_runs(own: list[str], norms: Sequence[str], tmp_path: Path) -> None:
    """After a fused run, those that have a fused form."""
    words = [f"results={tmp_path}", *own]
    job = config.job([*words, "norm=rms"])
    for norm in norms:
        job.setting_folder.mkdir(parents=True, exist_ok=True)
        assert outcomes.next_command(job, None) == f"python -m rmsexp {' '.join(words)} norm={norm}"
        config.job([*words, f"norm={norm}"]).folder.mkdir(parents=True)
    expected = f"python -m rmsexp -m {' '.join(words)} norm={','.join(norms)} seed=0,1,2"
    assert outcomes.next_command(job, None) == expected


def test_curves_that_cannot_be_drawn_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rmsexp.report.draw", Mock(side_effect=ValueError("Out of range float values")))
    assert outcomes.draw(config.job([])) is None
    assert capsys.readouterr().err == "rmsexp: the curves cannot be drawn: Out of range float values\n"
