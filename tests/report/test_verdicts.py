"""The tables and the panels of campaigns."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.campaigns import BETTER, EQUAL, STEPS, Campaign, three
from helpers.records import write_timing

from rmsexp import compare
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.results import Campaign as Held
from rmsexp.records.frames import timing_records
from rmsexp.report.page import answer
from rmsexp.report.plots import style
from rmsexp.report.plots import verdicts as panels
from rmsexp.report.plots.verdicts import Timed
from rmsexp.report.tables import verdicts
from rmsexp.system import atomic, readers

load = cache(compare.load)  # once for each folder
LOOKS = style.looks(["none", "ln", "rms", "prms+p=0.5"])


def written(root: Path, *campaigns: Campaign) -> list[Held]:
    """Write campaigns, and return them with the results of their runs; there must be no problem."""
    for campaign in campaigns:
        campaign.write(root)
    problems: list[str] = []
    found = campaign_results.load_all(root, problems=problems)
    assert problems == []
    return found


def newest(campaigns: Sequence[Held]) -> pd.DataFrame:
    return verdicts.newest(verdicts.table(campaigns), campaigns)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaigns")
    written(folder, *three())
    write_timing(folder, {"ln+impl=fused": 1.0, "rms+impl=fused": 0.9, "none+impl=fused": 0.8}, setting="small")
    return folder


@pytest.fixture(scope="module")
def states(root: Path) -> list[Held]:
    return campaign_results.load_all(root, problems=[])


def test_differences_with_intervals_and_margins(states: list[Held]) -> None:
    cifar, retrieval = panels.differences(newest(states), LOOKS)  # the third campaign is not decided
    assert (cifar.title, cifar.x.title, cifar.line) == ("CIFAR-10", "advantage in test error (points)", 0)
    equal, better = cifar.marks
    verdict = states[0].verdicts[0]
    assert (equal.kind, equal.x) == ("interval", [verdict.difference])
    assert (equal.low, equal.high) == ([verdict.low], [verdict.high])
    ends = [panel.x.range[1] for panel in (cifar, retrieval) if panel.x.range]
    assert (better.kind, better.x) == ("edge", ends[:1])  # 7.9 points are far beyond the margins of 1.5
    assert [(shade.low, shade.high) for shade in cifar.shades] == [(-1.5, 1.5)]
    assert [(shade.low, shade.high) for shade in retrieval.shades] == [(-0.75, 0.75), (-0.75, ends[1])]
    assert cifar.texts[0].lines == ["RMSNorm equals LayerNorm: supported, -0.11"]
    heights = [mark.y[0] for mark in retrieval.marks]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("no_norm", [17.75, 19.5])  # 1.1 and 2.3 margins worse than RMSNorm
def test_the_whole_interval_of_a_difference_in_the_panel_is_drawn(no_norm: float, tmp_path: Path) -> None:
    level = {"none": no_norm, "ln": 16.0, "rms": 16.1}
    (state,) = written(tmp_path, Campaign(level=level, claims=(EQUAL, BETTER | {"seeds": 4})))
    (panel,) = panels.differences(newest([state]), LOOKS)
    for mark, verdict in zip(panel.marks, state.verdicts, strict=True):
        assert (mark.kind, mark.low, mark.high) == ("interval", [verdict.low], [verdict.high])
        assert panel.x.range[0] < verdict.low < verdict.high < panel.x.range[1]


def test_a_difference_without_interval_is_hollow(tmp_path: Path) -> None:
    states = written(tmp_path, Campaign(claims=[BETTER], diverged={("none", 1)}))
    ((mark,),) = (panel.marks for panel in panels.differences(newest(states), LOOKS))
    assert (mark.kind, mark.low) == ("hollow", ())


def test_quality_against_the_rate(states: list[Held]) -> None:
    panel = panels.rates(states[0], LOOKS)
    assert list(panel.x.ticks or ()) == [0.001, 0.002, 0.004, 0.008]
    points, line, ring = (mark for mark in panel.marks if mark.label.startswith("LayerNorm"))
    assert line.x == [0.001, 0.002, 0.002828, 0.003364, 0.004, 0.004757, 0.005657, 0.008]
    assert (ring.kind, ring.x) == ("ring", [0.004])
    assert len(points.x) == 14
    assert line.y[line.x.index(0.004)] == pytest.approx(15.85, abs=0.01)
    assert panel.y.title == "validation error (%)"


def test_diverged_runs_are_crosses_at_the_worse_edge(tmp_path: Path) -> None:
    path = Campaign().write(tmp_path)
    for job in campaign_results.load(path).jobs:
        if job.stage == "tune" and job.rate == 0.008 and job.norm != "ln":
            (tmp_path / job.folder / "status.json").write_text('{"status": "diverged", "step": 9, "error": null}')
    panel = panels.rates(campaign_results.load(path), LOOKS)
    none, rms = (mark for mark in panel.marks if mark.kind == "cross")
    assert (none.x, none.look, rms.x, rms.look) == ([0.008], LOOKS["none"], [0.008], LOOKS["rms"])
    low, high = panel.y.range
    assert high > none.y[0] > rms.y[0] > high - 0.2 * (high - low)


def test_quality_at_equal_time(root: Path, states: list[Held]) -> None:
    records, timings = load(root), timing_records.load(root)
    found = [panels.timed(state, records, timings) for state in states]
    timed, *others = found
    assert others == [None, None]
    assert timed.seconds == pytest.approx({"ln": 0.05, "rms": 0.045, "none": 0.04}, rel=1e-3)
    panel = panels.equal_time(states[0], records, timed, LOOKS)
    ends = {mark.series: mark.x[-1] for mark in panel.marks}
    assert ends == pytest.approx({norm: STEPS * seconds for norm, seconds in timed.seconds.items()})
    assert panel.y.title == "validation error (%, 256 examples)"
    assert all(len(mark.low) == len(mark.x) == 20 for mark in panel.marks)
    clock = "interleaved, fused, 1 thread, AMD EPYC, torch 2.15.0, one process, not replicated"
    assert panel.note == f"{clock}; small; 2026-11-20"
    without = timed._replace(seconds={norm: seconds for norm, seconds in timed.seconds.items() if norm != "rms"})
    panel = panels.equal_time(states[0], records, without, LOOKS)
    assert panel.note.endswith("; RMSNorm has no time")


def times_of(root: Path) -> Timed:
    """Return the times of the only campaign in a folder."""
    (state,) = campaign_results.load_all(root, problems=[])
    return panels.timed(state, load(root), timing_records.load(root))


NEWER = {"session": {"code": "newer"}}


@pytest.mark.parametrize(
    ("impl", "other", "processes", "used"),
    [
        ("+impl=fused", NEWER, 1, 0.8),  # the newest
        ("+impl=fused", NEWER, 2, 0.9),  # of several processes come before those of one
        ("", NEWER, 1, 0.9),  # not of the implementation of the runs
        ("+impl=fused", {"session": {"device": "Intel"}}, 1, 0.9),  # not on the machine of the runs
        ("+impl=fused", {"session": {"code": "newer", "threads": 8}}, 1, 0.9),  # not with the threads of the runs
        ("+impl=fused", NEWER | {"state": "disturbed"}, 1, 0.9),
        ("+impl=fused", NEWER | {"rounds": 10}, 1, 0.9),
    ],
)
def test_the_times_of_campaigns_are_of_their_implementation_and_machine(
    tmp_path: Path, impl: str, other: dict[str, Any], processes: int, used: float, root: Path, states: list[Held]
) -> None:
    place = {"task": "cifar10", "setting": "small"}
    write_timing(tmp_path, {"ln+impl=fused": 1.0, "rms+impl=fused": [0.9] * processes}, **place)
    write_timing(tmp_path, {f"ln{impl}": 1.0, f"rms{impl}": 0.8}, number=1, **place, **other)
    timed = panels.timed(states[0], load(root), timing_records.load(tmp_path))
    assert timed.seconds == pytest.approx({"ln": 0.05, "rms": 0.05 * used}, rel=1e-3)


def test_times_of_the_plain_setting_are_not_those_of_runs_with_options(tmp_path: Path) -> None:
    """What the runs change about a step counts; rates, schedules and evaluations do not change a step."""
    Campaign(setting="small+batch_size=8").write(tmp_path)
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.5, 0.5]}, number=1, task="cifar10", setting="small", **NEWER)
    assert times_of(tmp_path).seconds["rms"] == pytest.approx(0.025, rel=0.02)
    assert "not the setting of the runs" in times_of(tmp_path).source
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.9, 0.9]}, task="cifar10", setting="small+batch_size=8")
    assert times_of(tmp_path).seconds["rms"] == pytest.approx(0.045, rel=0.02)
    assert "not the setting of the runs" not in times_of(tmp_path).source


@pytest.mark.parametrize("option", ["model.qk_norm=true", "optim.name=muon"])
def test_a_norm_with_an_option_of_the_model_or_another_optimiser_has_no_times(option: str, tmp_path: Path) -> None:
    """The runs of rms+model.qk_norm=true have the series of rms, and a setting of their own."""
    path = Campaign().write(tmp_path)
    stored = readers.read_json(path)
    for job in stored["jobs"]:
        if job["norm"] == "none":
            job["norm"], job["folder"] = f"rms+{option}", job["folder"].replace("/none/", "/rms/")
            job["folder"] = job["folder"].replace("small+", f"small+{option}+")
    norms = [f"rms+{option}" if norm == "none" else norm for norm in stored["norms"]]
    atomic.write_json(path, stored | {"norms": norms, "claims": stored["claims"][:1]})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, task="cifar10", setting="small")
    assert set(times_of(tmp_path).seconds) == {"ln", "rms"}


def test_a_claim_that_one_task_refutes_is_refuted_on_every_task(tmp_path: Path) -> None:
    worse = Campaign(level=Campaign().level | {"rms": 30.0})
    campaigns = written(tmp_path, worse, three()[2])
    matrix = verdicts.matrix(newest(campaigns), campaigns).set_index("claim")
    expected = "refuted: 0 of 1 verdicts supported, 1 refuted, 1 of 2 campaigns not finished"
    assert matrix.loc[EQUAL["claim"], "every task"] == expected


def test_what_stands_beside_an_outcome(tmp_path: Path) -> None:
    """A campaign without a margin says nothing about one; a refuted equality has seen a difference."""
    (state,) = written(tmp_path / "a", Campaign(claims=[BETTER]))
    assert verdicts.qualified(verdicts.table([state]).iloc[0].to_dict()) == "supported"
    (state,) = written(tmp_path / "b", Campaign(level={"none": 16.0, "ln": 16.0, "rms": 30.0}, claims=[EQUAL]))
    row = verdicts.table([state]).iloc[0].to_dict()
    assert (row["blind"], verdicts.qualified(row)) == (True, "refuted")
    claims = [EQUAL | {"untrained": 15.0, "b": "none"}]
    (state,) = written(
        tmp_path / "c",
        Campaign(level=Campaign().level | {"prms": 16.0}, best=Campaign().best | {"prms": 0.004}, claims=claims),
    )
    assert [verdict.outcome for verdict in state.verdicts[1:]] == ["inconclusive"]


def test_a_campaign_that_names_the_implementation_counts_and_has_times(tmp_path: Path) -> None:
    level = {"ln+impl=fused": 16.0, "rms+impl=fused": 16.1}
    claims = [EQUAL | {"a": "rms+impl=fused", "b": "ln+impl=fused"}]
    found = verdicts.table(written(tmp_path, Campaign(level=level, best=dict.fromkeys(level, 0.004), claims=claims)))
    saved = {"series": "rms+impl=fused", "task": "cifar10", "setting": "small", "ratio": 0.9, "too_wide": False}
    first = answer.answer([], found, dict.fromkeys(answer.TIMES, pd.DataFrame([saved])))
    assert first.table[answer.TIMES["fused"]].tolist() == ["10.0 % (1 timing)"]
    assert "RMSNorm against LayerNorm: equal within the margin on 1 of 1 tasks; saves 10.0 %" in first.sentences[0]


def test_a_task_on_which_one_campaign_refutes_equality_is_not_equal(tmp_path: Path) -> None:
    level = Campaign().level | {"rms": 17.0}
    strict = Campaign(name="strict", level=level, claims=[EQUAL | {"margin": 0.5}])
    found = verdicts.table(written(tmp_path, Campaign(level=level), strict))
    assert list(found[found["claim"] == EQUAL["claim"]]["outcome"]) == ["supported", "refuted"]
    counted = "equal within the margin on 0 of 1 tasks (not counted: 1 on which another campaign does not say so)"
    assert answer._sentence("rms", found, {"eager": []}) == f"RMSNorm against LayerNorm: {counted}."


def test_superseded_verdicts_are_left_out_also_of_several_results(tmp_path: Path) -> None:
    for root in ("a", "b"):
        for campaign in (Campaign(), Campaign(name="again", changes={"supersedes": "quality_cifar10"})):
            campaign.write(tmp_path / root)
    campaigns = campaign_results.load_all(tmp_path / "a", tmp_path / "b", problems=[])
    left = newest(campaigns)
    assert set(left["campaign"]) == {f"again ({tmp_path / root})" for root in ("a", "b")}
