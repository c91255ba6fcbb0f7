"""Seconds per 1k steps, unpaired savings, and the reasons for missing savings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records.frames import speed
from rmsexp.report.tables import summary as summary_table

CLEAR = {
    "contention": {"state": "clear"},
    "device": "A",
    "threads": 1,
    "code": "sha",
    "versions": {"torch": "2.15.0"},
}


def test_time_per_1k_steps_and_unpaired_saving(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.15, "ln+impl=fused": 0.1, "rms+impl=fused": 0.09}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    table = summary(tmp_path)
    assert table["seconds_per_1k_steps"].to_dict() == pytest.approx(
        {"ln": 200, "ln+impl=fused": 100, "rms": 150, "rms+impl=fused": 90}
    )
    assert table.loc["rms", "saving_vs_ln"] == pytest.approx(0.25)
    assert table.loc["rms+impl=fused", "saving_vs_ln"] == pytest.approx(0.1)
    assert table["saving_note"].tolist() == ["reference", "reference", "unpaired", "unpaired"]
    assert table.loc["rms", "seconds_train"] == pytest.approx(400 * 0.15 * 0.75)


def test_contended_runs_are_excluded_from_times(tmp_path: Path) -> None:
    write_run(tmp_path, "ln", seconds_per_step=0.2)
    write_run(tmp_path, "rms", 0, seconds_per_step=0.1)
    write_run(tmp_path, "rms", 1, seconds_per_step=0.9, contention="contended")
    write_run(tmp_path, "bn", seconds_per_step=0.3, contention="unknown")
    table = summary(tmp_path)
    assert table.loc["rms", "seconds_per_1k_steps"] == pytest.approx(100)
    assert table.loc["rms", "time_state"] == "1 clear, 1 contended"
    assert table.loc["bn", "seconds_per_1k_steps"] == pytest.approx(300)
    assert math.isnan(table.loc["bn", "saving_vs_ln"])
    assert table.loc["bn", "saving_note"] == "time excluded (1 unknown)"


def test_an_untrained_run_has_no_saving(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "rms", steps=0)
    assert summary(tmp_path).loc["rms", "saving_note"] == "time excluded (nothing timed yet)"


@pytest.mark.parametrize(
    ("ln", "reason"),
    [
        (None, "no LN run of this impl"),
        (CLEAR | {"contention": {"state": "contended"}}, "LN's time excluded (1 contended)"),
        (CLEAR | {"device": "B"}, "not known to have LN's machine"),
        (CLEAR | {"threads": 2}, "not known to have LN's threads"),
        (CLEAR | {"code": "other"}, "not known to have LN's code"),
        (CLEAR | {"code": None}, "not known to have LN's code"),
        (CLEAR | {"machine": {"id": "3f"}}, "not known to have LN's machine"),
    ],
)
def test_savings_need_a_reference_of_the_same_machine_threads_and_code(tmp_path: Path, ln: object, reason: str) -> None:
    write_run(tmp_path, "rms", sessions=[CLEAR])
    if ln:
        write_run(tmp_path, "ln", sessions=[ln])
    assert summary(tmp_path).loc["rms", "saving_note"] == reason


def test_times_are_averaged_over_the_clock_of_most_series(tmp_path: Path) -> None:
    sessions = {
        "a": CLEAR,
        "b": CLEAR | {"device": "B", "code": "other"},
        "waiting": CLEAR | {"contention": {"state": "contended"}},
    }
    for series, seed, clock in (
        ("ln", 0, "a"),
        ("ln", 1, "b"),
        ("ln", 2, "b"),
        ("rms", 0, "a"),
        ("bn", 0, "waiting"),
    ):
        write_run(tmp_path, series, seed, sessions=[sessions[clock]])
    runs = load(tmp_path).runs
    states = speed.states_on_one_clock(runs).groupby([runs["series"], runs["seed"]]).first()
    assert states.to_dict() == {
        ("bn", 0): "contended",
        ("ln", 0): "clear",
        ("ln", 1): "different machine, code",
        ("ln", 2): "different machine, code",
        ("rms", 0): "clear",
    }


def test_the_summary_averages_times_of_one_clock(tmp_path: Path) -> None:
    for series in ("ln", "rms"):
        write_run(tmp_path, series, sessions=[CLEAR])
    write_run(tmp_path, "ln", 1, sessions=[CLEAR | {"device": "B"}], seconds_per_step=0.5)
    table = summary(tmp_path)
    assert table.loc["ln", "seconds_per_1k_steps"] == pytest.approx(100)
    assert table.loc["ln", "seconds_train"] == table.loc["rms", "seconds_train"]
    assert table.loc["rms", "saving_vs_ln"] == pytest.approx(0)


def test_times_of_0_are_not_timed(tmp_path: Path) -> None:
    for series in ("ln", "rms"):
        write_run(tmp_path, series, seconds_per_step=0.0)
    table = summary(tmp_path)
    assert table["seconds_per_1k_steps"].isna().all()
    assert table.loc["rms", "saving_note"] == "time excluded (nothing timed yet)"


def test_a_time_says_what_differs_from_the_times_of_other_series(tmp_path: Path) -> None:
    write_run(tmp_path, "ln", sessions=[CLEAR])
    write_run(tmp_path, "rms", sessions=[CLEAR | {"threads": 2}])
    table = summary(tmp_path)
    assert table["clock"].to_dict() == {"ln": "threads 1", "rms": "threads 2"}
    cells = summary_table.readable(table.reset_index())["seconds per 1k steps, median (quartiles)"]
    assert cells.str.endswith(("threads 1)", "threads 2)")).all()


@pytest.mark.parametrize(
    ("longest", "unit"),
    [
        (300, ("seconds", 1)),
        (301, ("minutes", 60)),
        (3 * 3600, ("minutes", 60)),
        (3 * 3600 + 1, ("hours", 3600)),
    ],
)
def test_unit_of_times_up_to_a_limit(longest: float, unit: tuple[str, float]) -> None:
    assert speed.time_unit(longest) == unit
