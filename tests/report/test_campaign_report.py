"""The report of a results folder with campaigns."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from helpers.campaigns import EQUAL, Campaign, three
from helpers.records import load_timings, write_run, write_timing

from rmsexp.campaign import results as campaign_results
from rmsexp.commands import report
from rmsexp.compare import load
from rmsexp.report import campaign_report, setting_report
from rmsexp.report.page import answer


@pytest.fixture(scope="module", autouse=True)
def no_figures_of_settings() -> Iterator[None]:
    """Draw only the figures of campaigns; those of settings take most of the time of a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setting_report, "canvas", Mock())
        yield


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with three campaigns and its report; tests must not change it."""
    root = tmp_path_factory.mktemp("results")
    for campaign in three():
        campaign.write(root)
    write_timing(root, {"ln+impl=fused": 1.0, "rms+impl=fused": 0.9}, setting="small")
    report.run(root)
    return root


def test_verdicts_come_first(reported: Path) -> None:
    text = (reported / "report/report.md").read_text()
    first = "RMSNorm against LayerNorm: equal within the margin on 1 of 2 tasks; saves 10.0 %"
    assert text.startswith(f"# Report\n\n## Norms compared\n\n{first}")
    assert text.index("## Verdicts\n") < text.index("## cifar10")
    assert "| RMSNorm equals LayerNorm | supported: -0.11 (-0.25 to +0.03) points, 8 seeds |" in text
    for name in ("differences", "rates", "equal_time"):
        assert f"]({name}.png)" in text
        assert (reported / f"report/{name}.png").stat().st_size > 10_000
        assert (reported / f"report/{name}.svg").exists()
    page = (reported / "report/report.html").read_text()
    assert page.index('class="answer"') < page.index('class="campaigns"') < page.index('class="setting"')
    assert '<b data-outcome="refuted">refuted</b>' in page


def test_settings_with_only_tuning_runs_are_left_out_and_counted(reported: Path) -> None:
    page = (reported / "report/report.html").read_text()
    assert 'data-name="small+evaluation=validation' not in page
    assert 'data-name="small+evaluation=scored' in page
    settings = {Path(job.folder).parents[1] for campaign in three() for job in campaign.tune()}
    assert f"pilot or tuning runs of campaigns, or for stable ranges: {len(settings)}" in page
    assert not (reported / "report/cifar10/small+evaluation=validation+optim.lr=0.004").exists()


@pytest.mark.usefixtures("unwritten_figures")
def test_a_tuning_setting_with_another_run_is_reported(tmp_path: Path) -> None:
    Campaign().write(tmp_path)
    setting = "small+evaluation=validation+optim.lr=0.004"
    write_run(tmp_path, "prms", setting=setting)
    report.run(tmp_path)
    assert (tmp_path / "report/cifar10" / setting / "report.md").exists()


@pytest.mark.usefixtures("unwritten_figures")
def test_norms_of_all_campaigns_that_supersede_one_are_left_out_of_its_panel_at_equal_time(tmp_path: Path) -> None:
    newer, best = {"supersedes": "quality_cifar10"}, {"ln": 0.004, "rms": 0.004}
    two = Campaign(name="two", level={"ln": 16.0, "rms": 16.1}, best=best, claims=[EQUAL], changes=newer)
    for campaign in (Campaign(), Campaign(name="all", changes=newer), two):
        campaign.write(tmp_path)
    write_timing(tmp_path, {"ln+impl=fused": 1.0, "rms+impl=fused": 0.9, "none+impl=fused": 0.8}, setting="small")
    states, timings = campaign_results.load_all(tmp_path, problems=[]), load_timings(tmp_path)
    charts = campaign_report.write(states, load(tmp_path), timings, 0, tmp_path / "report").charts
    assert [panel.title for panel in charts["equal_time"].panels] == ["CIFAR-10 (all)", "CIFAR-10 (two)"]


@pytest.mark.usefixtures("unwritten_figures")
def test_campaigns_of_one_name_are_told_apart_by_their_root(tmp_path: Path) -> None:
    for root in ("a", "b"):
        Campaign().write(tmp_path / root)
    states, timings = campaign_results.load_all(tmp_path, problems=[]), load_timings(tmp_path)
    reported = campaign_report.write(states, load(tmp_path), timings, 0, tmp_path / "report")
    names = [f"quality_cifar10 ({tmp_path / root})" for root in ("a", "b")]
    assert list(reported.tables) == [f"Tuning of optim.lr, by valid error: {name}" for name in names]
    assert all(name in " ".join(reported.questions) and name in reported.matrix["cifar10"][0] for name in names)
    savings = pd.DataFrame(columns=["series", "task", "setting", "ratio", "too_wide"]).astype({"too_wide": bool})
    runs = answer.answer([], reported.numbers, dict.fromkeys(answer.TIMES, savings)).table["runs"]
    assert set(runs) == {f"campaign {name}" for name in names}
    (panel,) = reported.charts["differences"].panels
    assert all(f"[{names[0][:15]}" in " ".join(text.lines) for text in panel.texts)
