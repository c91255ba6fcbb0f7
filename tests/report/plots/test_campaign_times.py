"""The times of the norms of campaigns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import Campaign
from helpers.records import write_timing as write_record

from rmsexp.campaign import results as campaign_results
from rmsexp.compare import load
from rmsexp.records.frames import timing_records
from rmsexp.report.plots import verdicts
from rmsexp.report.plots.verdicts import Timed
from rmsexp.system import atomic, readers


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
    write_record(tmp_path, {"ln+impl=fused": 1.0, "rms+impl=fused": [0.9] * processes}, **place)
    write_record(tmp_path, {f"ln{impl}": 1.0, f"rms{impl}": 0.8}, number=1, **place, **other)
    timed = times_of(tmp_path)
    assert timed is not None
    assert timed.seconds == pytest.approx({"ln": 0.05, "rms": 0.05 * used}, rel=1e-3)


def test_times_of_the_plain_setting_are_not_those_of_runs_with_options(tmp_path: Path) -> None:
    """What the runs change about a step counts; rates, schedules and evaluations do not change a step."""
    Campaign(setting="small+batch_size=8").write(tmp_path)
    place, newer = {"task": "cifar10", "setting": "small"}, {"session": {"code": "newer"}}
    write_record(tmp_path, {"ln": 1.0, "rms": [0.5, 0.5]}, number=1, **place, **newer)
    found = []
    for number in range(2):
        if number:
            write_record(tmp_path, {"ln": 1.0, "rms": [0.9, 0.9]}, task="cifar10", setting="small+batch_size=8")
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
    write_record(tmp_path, {"ln": 1.0, "rms": 0.9}, task="cifar10", setting="small")
    timed = times_of(tmp_path)
    assert timed is not None
    assert set(timed.seconds) == {"ln", "rms"}
