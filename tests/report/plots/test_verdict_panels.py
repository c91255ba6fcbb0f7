"""The panels of the figures of campaigns, and their drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import BETTER, EQUAL, STEPS, Campaign, three, write_timing
from helpers.records import write_timing as write_record

from rmsexp.campaign import results as campaign_results
from rmsexp.compare import load
from rmsexp.records.frames import timing_records
from rmsexp.report import campaign_times
from rmsexp.report.plots import verdict_panels
from rmsexp.system import atomic, readers


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaigns")
    for campaign in three():
        campaign.write(folder)
    write_timing(folder, "cifar10")
    return folder


@pytest.fixture(scope="module")
def states(root: Path) -> list[campaign_results.Campaign]:
    return campaign_results.load_all(root, [])


def test_differences_with_intervals_and_margins(states: list[campaign_results.Campaign]) -> None:
    cifar, retrieval = verdict_panels.differences(states)  # the third campaign is not decided
    assert (cifar.title, cifar.x_title) == ("cifar10", "advantage in test error (points)")
    equal, better = cifar.marks
    verdict = states[0].verdicts[0]
    assert (equal.kind, equal.x, equal.low, equal.high) == (
        *("interval", [verdict.difference]),
        *([verdict.low], [verdict.high]),
    )
    assert (better.kind, better.x) == ("right", [cifar.x_range[1]])  # 7.9 points are far beyond the margins of 1.5
    assert [(band.low, band.high) for band in cifar.bands] == [(-1.5, 1.5)]
    assert [(band.low, band.high) for band in retrieval.bands] == [(-0.75, 0.75), (-0.75, retrieval.x_range[1])]
    assert cifar.texts[0].lines == ["RMSNorm equals LayerNorm: supported, -0.11"]
    heights = [entry.y[0] for entry in retrieval.marks]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("no_norm", [17.75, 19.5])  # 1.1 and 2.3 margins worse than RMSNorm
def test_the_whole_interval_of_a_difference_in_the_panel_is_drawn(no_norm: float, tmp_path: Path) -> None:
    Campaign(level={"none": no_norm, "ln": 16.0, "rms": 16.1}, claims=(EQUAL, BETTER | {"seeds": 4})).write(tmp_path)
    (state,) = campaign_results.load_all(tmp_path, [])
    (panel,) = verdict_panels.differences([state])
    for mark, verdict in zip(panel.marks, state.verdicts, strict=True):
        assert (mark.kind, mark.low, mark.high) == ("interval", [verdict.low], [verdict.high])
        assert panel.x_range[0] < verdict.low < verdict.high < panel.x_range[1]


def test_a_difference_without_interval_is_a_point(tmp_path: Path) -> None:
    Campaign(claims=[BETTER], diverged={("none", 1)}).write(tmp_path)
    ((mark,),) = (panel.marks for panel in verdict_panels.differences(campaign_results.load_all(tmp_path, [])))
    assert (mark.kind, mark.low) == ("points", ())


def test_quality_against_the_rate(states: list[campaign_results.Campaign]) -> None:
    panel = verdict_panels.rates(states)[0]
    assert list(panel.ticks) == [0.001, 0.002, 0.004, 0.008]
    kinds = {(entry.norm, entry.kind): entry for entry in panel.marks}
    assert kinds["ln", "line"].x == [0.001, 0.002, 0.002828, 0.003364, 0.004, 0.004757, 0.005657, 0.008]
    assert kinds["ln", "chosen"].x == [0.004]
    assert len(kinds["ln", "points"].x) == 14
    assert kinds["ln", "line"].y[kinds["ln", "line"].x.index(0.004)] == pytest.approx(15.85, abs=0.01)
    assert panel.y_title == "valid error (%)"


def test_diverged_runs_are_crosses_at_the_worse_edge(tmp_path: Path) -> None:
    path = Campaign().write(tmp_path)
    for job in campaign_results.load(path).jobs:
        if job.stage == "tune" and job.rate == 0.008 and job.norm != "ln":
            (tmp_path / job.folder / "status.json").write_text('{"status": "diverged", "step": 9, "error": null}')
    (panel,) = verdict_panels.rates(campaign_results.load_all(tmp_path, []))
    crosses = [entry for entry in panel.marks if entry.kind == "cross"]
    assert [(entry.norm, entry.x) for entry in crosses] == [("none", [0.008]), ("rms", [0.008])]
    highest = max(y for entry in panel.marks if entry.kind == "points" for y in entry.y)
    assert panel.y_range[1] > crosses[0].y[0] > crosses[1].y[0] > highest - 0.5


def test_quality_at_equal_time(root: Path, states: list[campaign_results.Campaign]) -> None:
    records, timings = load(root), timing_records.load(root)
    times = {str(state.path): campaign_times.timed(state, records, timings) for state in states}
    assert [found is not None for found in times.values()] == [True, False, False]
    found = times[str(states[0].path)]
    assert found is not None
    assert found.seconds == pytest.approx({"ln": 0.12, "rms": 0.11, "none": 0.10})
    clock = "interleaved, fused, 1 thread, AMD EPYC, torch 2.15.0, one process, not replicated, only 4 rounds"
    assert found.source == f"{clock}; small; 2026-11-22"
    (panel,) = verdict_panels.equal_time(states, records, {str(states[0].path): found})
    ends = {entry.norm: entry.x[-1] for entry in panel.marks}
    assert ends == pytest.approx({"ln": 0.12 * STEPS, "rms": 0.11 * STEPS, "none": 0.10 * STEPS})
    assert panel.y_title == "valid, 256 examples: error (%)"
    assert all(len(entry.low) == len(entry.x) == 20 for entry in panel.marks)


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, True), ({"scale": "paper"}, False), ({"kind": "layers"}, False), ({"series": []}, False)],
)
def test_a_timing_record_of_another_kind_of_run_is_not_used(
    tmp_path: Path, changes: dict[str, object], found: bool
) -> None:
    Campaign().write(tmp_path)
    write_timing(tmp_path, "cifar10", **changes)
    (state,) = campaign_results.load_all(tmp_path, [])
    timed = campaign_times.timed(state, load(tmp_path), timing_records.load(tmp_path))
    assert (timed is not None) == found


@pytest.mark.parametrize(
    ("impl", "other", "processes", "used"),
    [
        ("+impl=fused", {"session": {"code": "newer"}}, 1, 0.8),  # the newest
        ("+impl=fused", {"session": {"code": "newer"}}, 2, 0.9),  # of several processes come before those of one
        ("", {"session": {"code": "newer"}}, 1, 0.9),  # not of the implementation of the runs
        ("+impl=fused", {"session": {"device": "Intel"}}, 1, 0.9),  # not on the machine of the runs
        ("+impl=fused", {"session": {"code": "newer", "threads": 8}}, 1, 0.9),  # not with the threads of the runs
        ("+impl=fused", {"session": {"code": "newer"}, "state": "contended"}, 1, 0.9),
        ("+impl=fused", {"session": {"code": "newer"}, "rounds": 10}, 1, 0.9),
    ],
)
def test_the_times_of_campaigns_are_of_their_implementation_and_machine(
    tmp_path: Path, impl: str, other: dict[str, Any], processes: int, used: float
) -> None:
    Campaign().write(tmp_path)
    place = {"task": "cifar10", "setting": "small"}
    write_record(tmp_path, {"ln+impl=fused": 1.0, "rms+impl=fused": [0.9] * processes}, **place)
    write_record(tmp_path, {f"ln{impl}": 1.0, f"rms{impl}": 0.8}, number=1, **place, **other)
    (state,) = campaign_results.load_all(tmp_path, [])
    timed = campaign_times.timed(state, load(tmp_path), timing_records.load(tmp_path))
    assert timed is not None
    assert timed.seconds == pytest.approx({"ln": 0.05, "rms": 0.05 * used}, rel=1e-3)


def test_times_of_other_settings_come_last_and_are_named_as_such(tmp_path: Path) -> None:
    Campaign().write(tmp_path)
    newer = {"session": {"code": "newer"}}
    write_record(tmp_path, {"ln": 1.0, "rms": 0.5}, task="cifar10", setting="small+batch_size=8", number=1, **newer)
    found = []
    for number in range(2):
        if number:
            write_record(tmp_path, {"ln": 1.0, "rms": 0.9}, task="cifar10", setting="small")
        (state,) = campaign_results.load_all(tmp_path, [])
        timed = campaign_times.timed(state, load(tmp_path), timing_records.load(tmp_path))
        assert timed is not None
        found.append((round(timed.seconds["rms"], 3), "not the setting of the runs" in timed.source))
    assert found == [(0.025, True), (0.045, False)]


def test_times_of_the_plain_setting_are_not_those_of_runs_with_options(tmp_path: Path) -> None:
    """What the runs change about a step counts; rates, schedules and evaluations do not change a step."""
    Campaign(setting="small+batch_size=8").write(tmp_path)
    place, newer = {"task": "cifar10", "setting": "small"}, {"session": {"code": "newer"}}
    write_record(tmp_path, {"ln": 1.0, "rms": [0.5, 0.5]}, number=1, **place, **newer)
    found = []
    for number in range(2):
        if number:
            write_record(tmp_path, {"ln": 1.0, "rms": [0.9, 0.9]}, task="cifar10", setting="small+batch_size=8")
        (state,) = campaign_results.load_all(tmp_path, [])
        timed = campaign_times.timed(state, load(tmp_path), timing_records.load(tmp_path))
        assert timed is not None
        found.append((round(timed.seconds["rms"], 3), "not the setting of the runs" in timed.source))
    assert found == [(0.025, True), (0.045, False)]


def test_a_norm_with_an_option_of_the_model_has_no_times(tmp_path: Path) -> None:
    """The runs of rms+model.qk_norm=true have the series of rms, and a setting of their own."""
    path = Campaign().write(tmp_path)
    stored = readers.read_json(path)
    for job in stored["jobs"]:
        if job["norm"] == "none":
            job["norm"], job["folder"] = "rms+model.qk_norm=true", job["folder"].replace("/none/", "/rms/")
            job["folder"] = job["folder"].replace("small+", "small+model.qk_norm=true+")
    norms = ["rms+model.qk_norm=true" if norm == "none" else norm for norm in stored["norms"]]
    atomic.write_json(path, stored | {"norms": norms, "claims": stored["claims"][:1]})
    write_record(tmp_path, {"ln": 1.0, "rms": 0.9}, task="cifar10", setting="small")
    (state,) = campaign_results.load_all(tmp_path, [])
    timed = campaign_times.timed(state, load(tmp_path), timing_records.load(tmp_path))
    assert timed is not None
    assert set(timed.seconds) == {"ln", "rms"}
