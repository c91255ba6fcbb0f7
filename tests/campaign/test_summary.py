"""What a campaign prints: its plan and its verdicts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.campaigns import ask, do, write_run

from rmsexp.campaign import question
from rmsexp.campaign.campaign_file import Job
from rmsexp.commands import summary
from rmsexp.work import cost

pytestmark = pytest.mark.usefixtures("quick_folders")


def value(job: Job) -> float:
    return 20 - abs(math.log2(job.rate / 2e-3)) + (0.01 * job.seed + 1) * (job.norm == "rms")


def test_a_plan_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """6 runs of tuning are planned, 8 more follow, then 4 final ones, each of which takes 2 hours."""
    asked = ask(tmp_path, "pilot.rate=1e-3")
    monkeypatch.setattr(cost, "trial", lambda *_: 7200.0)
    summary.print_plan(asked)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"{asked.folder.name}: Is RMSNorm as good as LayerNorm?"
    assert lines[1].split()[:2] == ["pilot", "missing"]
    assert [line.split()[0] for line in lines[1:9]] == ["pilot"] * 2 + ["tune"] * 6
    assert lines[10:13] == [
        "  pilot  done   0, 0.00 h; left   2, 4.00 h",
        "  tune   done   0, 0.00 h; left  14, 28.00 h",
        "  final  done   0, 0.00 h; left   4, 8.00 h",
    ]
    assert lines[-2:] == [
        f"plan    {asked.folder / 'campaign.json'}",
        f"next    python -m rmsexp.campaign tiny results={asked.results} pilot.rate=1e-3 "
        f"--config-dir {asked.config_dir}",
    ]
    assert err.count("trying 20 steps") == 2  # of each norm


def test_a_plan_after_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is tried: the data may be on another machine."""
    asked = ask(tmp_path)
    do(asked, value)
    monkeypatch.setattr(cost, "trial", lambda *_: pytest.fail("a trial"))
    summary.print_plan(asked)
    out = capsys.readouterr().out.splitlines()
    assert "  tune   done  14, 0.47 h; left   0, 0.00 h" in out  # 120 s each
    assert out[-1] == f"next    python -m rmsexp.report {asked.results}"


def test_verdicts_have_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ask(tmp_path)
    monkeypatch.setattr(question, "code", lambda: {"commit": "abc", "code": "x"})
    asked.register()
    do(asked, value)
    summary.print_verdicts(asked)
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["rate of ln: 0.002", "rate of rms: 0.002"]
    assert out[2].startswith(
        "supported†, but better: RMSNorm equals LayerNorm: +1.00 (+0.97 to +1.04) points, 2 seeds; the 90 % interval"
    )
    assert out[3:] == [f"next    python -m rmsexp.report {asked.results}"]


def test_what_is_not_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(tmp_path)
    do(asked, value, {"tune": 1})
    write_run(asked, asked.update().jobs[-1], status="failed")
    summary.print_verdicts(asked)
    out = capsys.readouterr().out
    assert "not decided yet: no final runs, 6 of the 14 tuning runs planned so far" in out
    assert "next    python -m rmsexp.campaign tiny results=" in out


def test_all_norms_diverge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left to do, so the campaign's command is not suggested."""
    asked = ask(tmp_path)
    do(asked, lambda _: math.nan)
    summary.print_verdicts(asked)
    out = capsys.readouterr().out
    assert "rate of ln: none: it diverged at every rate" in out
    assert "next    python -m rmsexp.report" in out
    summary.print_plan(asked)
    out = capsys.readouterr().out
    assert "  final  done   0, 0.00 h; left   0, 0.00 h" in out
    assert "next    python -m rmsexp.report" in out
