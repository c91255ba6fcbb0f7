"""The panels of the figures of campaigns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import BETTER, EQUAL, STEPS, Campaign, three
from helpers.records import write_timing

from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.results import Campaign as Held
from rmsexp.compare import load
from rmsexp.records.frames import timing_records
from rmsexp.report.plots import style, verdicts
from rmsexp.report.plots.verdicts import Timed
from rmsexp.system import atomic, readers

LOOKS = style.looks(["none", "ln", "rms"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaigns")
    for campaign in three():
        campaign.write(folder)
    ratios = {"ln+impl=fused": 1.0, "rms+impl=fused": 0.9, "none+impl=fused": 0.8}
    write_timing(folder, ratios, setting="small")
    return folder


@pytest.fixture(scope="module")
def states(root: Path) -> list[Held]:
    return campaign_results.load_all(root, [])


def looks(states: list[Held]) -> dict[str, style.Look]:
    return style.looks(norm for state in states for norm in state.every_arm)


def test_differences_with_intervals_and_margins(states: list[Held]) -> None:
    cifar, retrieval = verdicts.differences(states, looks(states))  # the third campaign is not decided
    assert (cifar.title, cifar.x.title, cifar.line) == ("cifar10", "advantage in test error (points)", 0)
    equal, better = cifar.marks
    verdict = states[0].verdicts[0]
    assert (equal.kind, equal.x, equal.low, equal.high) == (
        *("interval", [verdict.difference]),
        *([verdict.low], [verdict.high]),
    )
    assert cifar.x.range is not None
    assert retrieval.x.range is not None
    assert (better.kind, better.x) == ("edge", [cifar.x.range[1]])  # 7.9 points are far beyond the margins of 1.5
    assert [(shade.low, shade.high) for shade in cifar.shades] == [(-1.5, 1.5)]
    assert [(shade.low, shade.high) for shade in retrieval.shades] == [(-0.75, 0.75), (-0.75, retrieval.x.range[1])]
    assert cifar.texts[0].lines == ["RMSNorm equals LayerNorm: supported, -0.11"]
    heights = [mark.y[0] for mark in retrieval.marks]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("no_norm", [17.75, 19.5])  # 1.1 and 2.3 margins worse than RMSNorm
def test_the_whole_interval_of_a_difference_in_the_panel_is_drawn(no_norm: float, tmp_path: Path) -> None:
    Campaign(level={"none": no_norm, "ln": 16.0, "rms": 16.1}, claims=(EQUAL, BETTER | {"seeds": 4})).write(tmp_path)
    (state,) = campaign_results.load_all(tmp_path, [])
    (panel,) = verdicts.differences([state], LOOKS)
    assert panel.x.range is not None
    for mark, verdict in zip(panel.marks, state.verdicts, strict=True):
        assert (mark.kind, mark.low, mark.high) == ("interval", [verdict.low], [verdict.high])
        assert panel.x.range[0] < verdict.low < verdict.high < panel.x.range[1]


def test_a_difference_without_interval_is_hollow(tmp_path: Path) -> None:
    Campaign(claims=[BETTER], diverged={("none", 1)}).write(tmp_path)
    ((mark,),) = (panel.marks for panel in verdicts.differences(campaign_results.load_all(tmp_path, []), LOOKS))
    assert (mark.kind, mark.low) == ("hollow", ())


def test_quality_against_the_rate(states: list[Held]) -> None:
    panel = verdicts.rates(states[0], looks(states))
    assert list(panel.x.ticks or ()) == [0.001, 0.002, 0.004, 0.008]
    points, line, ring = (mark for mark in panel.marks if mark.label.startswith("LayerNorm"))
    assert line.x == [0.001, 0.002, 0.002828, 0.003364, 0.004, 0.004757, 0.005657, 0.008]
    assert (ring.kind, ring.x) == ("ring", [0.004])
    assert len(points.x) == 14
    assert line.y[line.x.index(0.004)] == pytest.approx(15.85, abs=0.01)
    assert panel.y.title == "valid error (%)"


def test_diverged_runs_are_crosses_at_the_worse_edge(tmp_path: Path) -> None:
    path = Campaign().write(tmp_path)
    for job in campaign_results.load(path).jobs:
        if job.stage == "tune" and job.rate == 0.008 and job.norm != "ln":
            (tmp_path / job.folder / "status.json").write_text('{"status": "diverged", "step": 9, "error": null}')
    (panel,) = (verdicts.rates(state, LOOKS) for state in campaign_results.load_all(tmp_path, []))
    none, rms = (mark for mark in panel.marks if mark.kind == "cross")
    assert (none.x, none.look, rms.x, rms.look) == ([0.008], LOOKS["none"], [0.008], LOOKS["rms"])
    highest = max(y for mark in panel.marks if mark.kind == "points" for y in mark.y)
    assert panel.y.range is not None
    assert panel.y.range[1] > none.y[0] > rms.y[0] > highest - 0.5


def test_quality_at_equal_time(root: Path, states: list[Held]) -> None:
    records, timings = load(root), timing_records.load(root)
    found = [verdicts.timed(state, records, timings) for state in states]
    assert [times is not None for times in found] == [True, False, False]
    timed = found[0]
    assert timed is not None
    assert timed.seconds == pytest.approx({"ln": 0.05, "rms": 0.045, "none": 0.04}, rel=1e-3)
    panel = verdicts.equal_time(states[0], records, timed, looks(states))
    ends = {mark.series: mark.x[-1] for mark in panel.marks}
    assert ends == pytest.approx({norm: STEPS * seconds for norm, seconds in timed.seconds.items()})
    assert panel.y.title == "valid, 256 examples: error (%)"
    assert all(len(mark.low) == len(mark.x) == 20 for mark in panel.marks)
    clock = "interleaved, fused, 1 thread, AMD EPYC, torch 2.15.0, one process, not replicated"
    assert panel.note == f"{clock}; small; 2026-11-20"
    without = timed._replace(seconds={norm: seconds for norm, seconds in timed.seconds.items() if norm != "rms"})
    panel = verdicts.equal_time(states[0], records, without, looks(states))
    assert panel.note.endswith("; RMSNorm has no time")


def times_of(root: Path) -> Timed | None:
    """Return the times of the only campaign in a folder."""
    (state,) = campaign_results.load_all(root, [])
    return verdicts.timed(state, load(root), timing_records.load(root))


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
    write_timing(tmp_path, {"ln+impl=fused": 1.0, "rms+impl=fused": [0.9] * processes}, **place)
    write_timing(tmp_path, {f"ln{impl}": 1.0, f"rms{impl}": 0.8}, number=1, **place, **other)
    timed = times_of(tmp_path)
    assert timed is not None
    assert timed.seconds == pytest.approx({"ln": 0.05, "rms": 0.05 * used}, rel=1e-3)


def test_times_of_the_plain_setting_are_not_those_of_runs_with_options(tmp_path: Path) -> None:
    """What the runs change about a step counts; rates, schedules and evaluations do not change a step."""
    Campaign(setting="small+batch_size=8").write(tmp_path)
    place, newer = {"task": "cifar10", "setting": "small"}, {"session": {"code": "newer"}}
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.5, 0.5]}, number=1, **place, **newer)
    found = []
    for number in range(2):
        if number:
            write_timing(tmp_path, {"ln": 1.0, "rms": [0.9, 0.9]}, task="cifar10", setting="small+batch_size=8")
        timed = times_of(tmp_path)
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
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, task="cifar10", setting="small")
    timed = times_of(tmp_path)
    assert timed is not None
    assert set(timed.seconds) == {"ln", "rms"}
