"""Which times stand in one table, and which of several timing records of one thing comes first in it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.records import load_timings, write_timing
from scipy import stats

from rmsexp.records.frames import comparable, timing_records
from rmsexp.records.frames.comparable import Comparison

EIGHT = {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5, "rms+impl=fused": 0.45}


def compared(root: Path) -> list[Comparison]:
    return comparable.comparisons(load_timings(root))


def only(root: Path) -> Comparison:
    (comparison,) = compared(root)
    return comparison


def ratios(comparison: Comparison) -> dict[str, float]:
    return dict(zip(comparison.rows["series"], comparison.rows["ratio"].round(3), strict=True))


def left_out(comparison: Comparison) -> dict[str, str]:
    return {Path(row["folder"]).name: row["left_out"] for row in comparison.records.to_dict("records")}


def test_a_copy_of_a_record_does_not_count(tmp_path: Path) -> None:
    folder = write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.9]})
    copy = shutil.copytree(folder, folder.with_name("steps0-backup"))
    problems: list[str] = []
    assert timing_records.load(tmp_path, problems=problems)["folder"].unique().tolist() == [str(folder)]
    assert problems == [f"{copy}/timing.json: timing record ignored: it is a copy of {folder}/timing.json"]


def test_records_of_the_same_code_and_machine_are_pooled(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.80, 0.84]})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.82, 0.83]}, number=1)
    comparison = only(tmp_path)
    row = comparison.rows.set_index("series").loc["rms"]
    logarithms = np.log([0.80, 0.84, 0.82, 0.83])
    interval = stats.t.interval(0.95, 3, logarithms.mean(), stats.sem(logarithms))
    assert [row["ratio"], row["low"], row["high"]] == pytest.approx(np.exp([logarithms.mean(), *interval]), rel=1e-3)
    assert (row["processes"], row["rounds"]) == (4, 120)
    assert row["estimates"] == pytest.approx((0.80, 0.84, 0.82, 0.83), rel=1e-3)
    assert left_out(comparison) == {"steps1": "", "steps0": ""}
    assert comparable.clock(comparison) == "interleaved, eager, 1 thread, AMD EPYC, torch 2.15.0, 4 processes"


MACHINE = {"machine": {"id": "3f", "name": "AMD EPYC"}}


@pytest.mark.parametrize(
    ("session", "shown"),
    [
        ({"threads": 2}, "eager, 2 threads, AMD EPYC, torch 2.15.0, one"),
        ({"device": "Intel"}, "1 thread, Intel, torch"),
        (MACHINE, "1 thread, AMD EPYC (3f), torch"),
        (MACHINE | {"device": "NVIDIA H100", "device_type": "cuda"}, "1 thread, NVIDIA H100 (3f), torch"),
        ({"versions": {"torch": "2.9"}}, "AMD EPYC, torch 2.9, one"),
    ],
)
def test_times_of_different_clocks_are_not_in_one_table(tmp_path: Path, session: dict[str, object], shown: str) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, number=1, session=session)
    newer, older = compared(tmp_path)
    assert (ratios(newer)["rms"], ratios(older)["rms"]) == (0.9, 0.8)
    assert [shown in comparable.clock(comparison) for comparison in (newer, older)] == [True, False]


def series_with(workload: str) -> dict[str, Any]:
    each = {"impl": "eager", "workload": workload, "parts": {}, "peak_bytes": 0}
    return {"series": [{"series": name, **each} for name in ("ln", "rms")]}


CONTENDED = {"contention": {"state": "disturbed", "waited": 0.5, "steal": 0.0}}
OTHER_DATA = {"dataset": {"name": "shapes", "digest": "1", "builtin": True}}


@pytest.mark.parametrize(
    ("best", "other", "reason"),
    [  # of each record the number of its ratios, and what it has; the best is the older one
        ((2, {}), (1, {}), timing_records.replication(1)),
        ((2, {}), (1, {"session": {"code": "newer"}}), comparable.OTHER_CODE),
        ((1, {}), (1, {"rounds": 19}), "fewer than 20 rounds"),
        ((1, {}), (1, {"rounds": 19, "session": {"code": "newer"}}), comparable.OTHER_CODE),
        ((1, {"rounds": 10}), (1, {"rounds": 10, "session": CONTENDED}), "disturbed"),
        ((1, {}), (1, {"session": CONTENDED | {"code": "newer"}}), comparable.OTHER_CODE),
    ],
)
def test_a_worse_record_does_not_come_first(
    tmp_path: Path, best: tuple[int, dict[str, Any]], other: tuple[int, dict[str, Any]], reason: str
) -> None:
    for number, (processes, more) in enumerate((best, other)):
        write_timing(tmp_path, {"ln": 1.0, "rms": [0.8 - 0.1 * number] * processes}, number=number, **more)
    comparison = only(tmp_path)
    assert ratios(comparison)["rms"] == 0.8
    assert left_out(comparison) == {"steps1": reason, "steps0": ""}
    listed = comparison.records.set_index("folder")["ratios"][comparison.records["folder"].iloc[0]]
    assert listed["rms"].low < 0.7 < listed["rms"].high


@pytest.mark.parametrize(
    ("older", "newest", "reason"),
    [
        ({"session": {"code": "older"}}, {}, comparable.OTHER_CODE),
        (OTHER_DATA, {}, comparable.OTHER_WORK),
        (series_with("b"), series_with("a"), comparable.OTHER_WORK),
    ],
)
def test_of_equal_records_the_newest_comes_first_and_others_of_its_code_and_work_are_pooled(
    tmp_path: Path, older: dict[str, Any], newest: dict[str, Any], reason: str
) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.7}, **older)
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8}, number=1, **newest)
    comparison = only(tmp_path)
    assert ratios(comparison)["rms"] == 0.8
    assert left_out(comparison) == {"steps1": "", "steps0": reason}


def test_times_are_those_of_the_processes_that_are_compared(tmp_path: Path) -> None:
    """The second group's processes were disturbed, and have other numbers of rounds."""
    groups = [["ln", "rms"], ["ln", "ln+impl=fused", "rms+impl=fused"]]
    write_timing(tmp_path, EIGHT, groups=groups, sessions=[{}, CONTENDED])
    eager, fused = compared(tmp_path)
    for comparison, state, disturbed in ((eager, "undisturbed", 0), (fused, "disturbed", 1)):
        assert comparison.rows["time_state"].unique().tolist() == [state]
        assert comparison.rows["processes"].unique().tolist() == [1]
        assert comparison.rows["rounds"].unique().tolist() == [30]
        assert comparison.records[["measured", "disturbed"]].iloc[0].tolist() == [1, disturbed]
    (against_eager,) = comparable.fused_against_eager(load_timings(tmp_path))
    assert against_eager.rows.set_index("series")["quotient"].to_dict() == {
        "ln": False,
        "rms": False,
        "ln+impl=fused": False,
        "rms+impl=fused": True,
    }


def test_eager_norms_of_other_processes_do_not_stand_beside_fused_ones(tmp_path: Path) -> None:
    times = {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5}
    write_timing(tmp_path, times, groups=[["ln", "rms"], ["ln", "ln+impl=fused"]])
    (comparison,) = comparable.fused_against_eager(load_timings(tmp_path))
    assert comparison.rows["series"].tolist() == ["ln", "ln+impl=fused"]


@pytest.mark.parametrize(
    ("states", "dirty"), [((False, False), False), ((False, True), True), ((True, None), True), ((False, None), None)]
)
def test_a_record_is_dirty_if_one_of_its_processes_is(
    tmp_path: Path, states: tuple[bool | None, ...], dirty: bool | None
) -> None:
    sessions = [{"git": {"commit": "abc", "dirty": state}} for state in states]
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8] * 2}, sessions=sessions)
    assert set(load_timings(tmp_path)["dirty"]) == {dirty}


def test_fused_norms_are_compared_with_the_same_eager_norms_in_a_table_of_their_own(tmp_path: Path) -> None:
    write_timing(tmp_path, EIGHT)
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8}, number=1)  # without fused norms
    (comparison,) = comparable.fused_against_eager(load_timings(tmp_path))
    found = dict(zip(comparison.compared["series"], comparison.compared["ratio"], strict=True))
    assert found == pytest.approx({"ln+impl=fused": 0.5, "rms+impl=fused": 0.45 / 0.8}, rel=1e-3)
    assert comparison.rows["processes"].unique().tolist() == [1]


def test_series_of_different_processes_are_compared_through_the_reference(tmp_path: Path) -> None:
    fused = {"ln": 1.0, "ln+impl=fused": [0.5, 0.52], "rms+impl=fused": [0.45, 0.494]}
    groups = [["ln", "ln+impl=fused"], ["ln", "rms+impl=fused"]] * 2
    write_timing(tmp_path, fused, groups=groups)
    (comparison,) = compared(tmp_path)
    row = comparison.rows.set_index("series").loc["rms+impl=fused"]
    assert row["estimates"] == pytest.approx((0.9, 0.95), rel=1e-3)
    assert comparable.replication(comparison) == "2 processes"


def test_the_reference_of_a_record_does_not_matter(tmp_path: Path) -> None:
    write_timing(tmp_path, {"none": 1.0, "ln": 2.0, "rms": 1.5})
    write_timing(tmp_path, {"none": 1.0, "rms": 1.5}, number=1)  # without LayerNorm
    comparison = only(tmp_path)
    assert ratios(comparison) == {"none": 0.5, "ln": 1.0, "rms": 0.75}
    assert left_out(comparison) == {"steps0": ""}
