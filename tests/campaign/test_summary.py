"""What a campaign prints: its plan, how its pilot went, and its verdicts."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from helpers.campaign_runs import ask, do, write_run

from rmsexp.campaign import plan, registration, runs
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.campaign.time_left import Cost
from rmsexp.commands import summary
from rmsexp.work import cost

pytestmark = pytest.mark.usefixtures("quick_folders")


def value(job: Job) -> float:
    return 20 - abs(math.log2(job.rate / 2e-3)) + (0.01 * job.seed + 1) * (job.norm == "rms")


def test_a_plan_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """6 runs of tuning are planned, 8 more follow, then 4 final ones, each of which takes 2 hours, or 2.5 with test."""
    asked = ask(tmp_path, "pilot.rate=1e-3")
    monkeypatch.setattr(cost, "trial", lambda *_: Cost(7200, 600))
    summary.print_plan(CampaignRuns(asked))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{asked.name}: Is RMSNorm as good as LayerNorm?"
    assert out[1].split()[:2] == ["pilot", "missing"]
    assert [line.split()[0] for line in out[1:9]] == ["pilot"] * 2 + ["tune"] * 6
    assert out[10:13] == [
        "  pilot  done   0, 0.00 h; left   2, 4.00 h",
        "  tune   done   0, 0.00 h; left  14, 28.00 h",
        "  final  done   0, 0.00 h; left   4, 10.00 h",
    ]
    expected = "all 4 seeds and best rates at its edge extend the grid by 2 rates"
    assert out[13] == f"  left up to 28, 60.00 h, if the spread of scores asks for {expected}"
    assert out[-2] == f"plan    {asked.folder / 'campaign.json'}"
    assert out[-1] == (
        f"next    python -m rmsexp.campaign tiny results={asked.results} pilot.rate=1e-3 "
        f"--config-dir {asked.config_dir}"
    )


def test_a_plan_before_the_number_of_seeds_is_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The final runs of the first look are planned. Each takes 120 s, as tuning runs did. Two more seeds may come."""
    asked = ask(tmp_path)
    do(asked, value, {"tune": 9, "final": 0})
    summary.print_plan(CampaignRuns(asked))
    out = capsys.readouterr().out.splitlines()
    assert "  final  done   0, 0.00 h; left   4, 0.13 h" in out
    assert "  left up to 8, 0.27 h, if the spread of scores asks for all 4 seeds" in out


def test_a_plan_whose_claims_need_no_more_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only claim is of superiority, so the spread of the scores decides nothing."""
    better = {"claim": "RMSNorm is better than LayerNorm", "test": "superiority", "a": "rms", "b": "ln"}
    monkeypatch.setattr(cost, "trial", lambda *_: Cost(7200, 600))
    summary.print_plan(CampaignRuns(ask(tmp_path, claims=[better])))
    out = capsys.readouterr().out.splitlines()
    assert "  left up to 22, 46.00 h, if best rates at its edge extend the grid by 2 rates" in out


def test_a_plan_after_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is tried: the data may be on another machine."""
    asked = ask(tmp_path, "pilot.rate=1e-3")
    do(asked, value)
    monkeypatch.setattr(cost, "trial", lambda *_: pytest.fail("a trial"))
    summary.print_plan(CampaignRuns(asked))
    out = capsys.readouterr().out.splitlines()
    assert "  tune   done  14, 0.47 h; left   0, 0.00 h" in out  # 120 s each
    assert "left up to" not in "".join(out)
    moved = "it gained 0 in the last fifth of the steps; half of the smallest margin is 2.5"
    assert f"pilot ln: image_recall 19 at first, 19 % at the end; {moved}" in out
    assert out[-1] == f"next    python -m rmsexp.report {asked.results}"


def test_a_pilot_with_a_metric_that_is_not_finite(tmp_path: Path) -> None:
    asked = ask(tmp_path, "pilot.rate=1e-3")
    campaign, _ = plan.update(asked)
    pilots = [job for job in campaign.jobs if job.stage == "pilot"]
    files = write_run(asked, pilots[0])
    files.metrics_path.write_text(files.metrics_path.read_text().replace("0.2,", "null,"))
    write_run(asked, pilots[1], math.nan)
    campaign, results = plan.update(asked)
    assert runs.pilot(campaign, results, asked) == [
        "pilot ln: image_recall nan at first, nan % at the end; it gained nan in the last fifth of the steps; "
        "half of the smallest margin is 2.5",
        f"pilot rms: diverged at step {asked.recipe.config.schedule.steps // 2}",
    ]


@pytest.mark.parametrize(("mode", "moved"), [("max", "it gained 3.6"), ("min", "it lost 3.6")])
def test_the_gain_of_a_pilot_is_a_difference_of_means_of_three(tmp_path: Path, mode: str, moved: str) -> None:
    """A single evaluation far from its neighbours changes it by a third."""
    campaign = dataclasses.replace(plan.update(ask(tmp_path))[0], mode=mode)
    values = [1.0, *[20.0] * 16, 20.6, 26.6, 23.6]
    ends = f"1 at first, 23.6 % at the end; {moved} in the last fifth of the steps"
    assert runs._movement(campaign, values) == f"{ends}; half of the smallest margin is 2.5: longer runs may differ"
    assert runs._movement(dataclasses.replace(campaign, claims=()), values) == ends


def test_verdicts_have_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(tmp_path)
    with plan.locked(asked):
        registration.register(asked, {"commit": "abc", "code": "x"})
    do(asked, value)
    summary.print_verdicts(CampaignRuns(asked))
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["rate of ln: 0.002", "rate of rms: 0.002"]
    assert out[2].startswith(
        "supported†, but better: RMSNorm equals LayerNorm: +1.00 (+0.97 to +1.04) points, 2 seeds; the 90 % interval"
    )
    assert out[3:] == [f"next    python -m rmsexp.report {asked.results}"]


def test_what_is_not_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(tmp_path)
    do(asked, value, {"tune": 1})
    write_run(asked, plan.update(asked)[0].jobs[-1], status="failed")
    summary.print_verdicts(CampaignRuns(asked))
    out = capsys.readouterr().out
    assert "not decided yet: no final runs, 6 of the 14 tuning runs planned so far" in out
    assert "next    python -m rmsexp.campaign tiny results=" in out


def test_all_norms_diverge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left to do, so the campaign's command is not suggested."""
    asked = ask(tmp_path)
    do(asked, lambda _: math.nan)
    summary.print_verdicts(CampaignRuns(asked))
    out = capsys.readouterr().out
    assert "rate of ln: none: it diverged at every rate" in out
    assert "next    python -m rmsexp.report" in out
    summary.print_plan(CampaignRuns(asked))
    out = capsys.readouterr().out
    assert "  final  done   0, 0.00 h; left   0, 0.00 h" in out
    assert "next    python -m rmsexp.report" in out
