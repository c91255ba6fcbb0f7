"""The tables of savings, from timing records and from separate runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.comparisons import setting
from helpers.records import load_timings, write_run, write_timing

from rmsexp.compare import load
from rmsexp.report.tables import savings as savings_table
from rmsexp.report.tables.savings import Table


def tables(root: Path) -> list[Table]:
    return savings_table.tables(setting(root), load_timings(root))


def kinds(table: Table) -> dict[str, str]:
    return table.numbers.set_index("series")["kind"].to_dict()


def test_interleaved_and_unpaired_savings_are_in_different_tables(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8]})
    paired, unpaired = tables(tmp_path)
    assert kinds(paired) == {"ln": "reference", "rms": "paired"}
    assert kinds(unpaired) == {"ln": "reference", "rms": "unpaired", "wn": "unpaired"}
    assert "(interleaved, eager, 1 thread, AMD EPYC, torch 2.15.0, 2 processes)" in paired.title
    assert "unpaired savings relative to LayerNorm (eager, 2 threads, AMD EPYC, torch 2.15.0, code" in unpaired.title
    text = savings_table.readable(paired.numbers, "cifar10").set_index("norm")
    assert text.loc["RMSNorm", "saving vs LayerNorm"].startswith("20.0 % (")
    assert text.loc["RMSNorm", "saving, paper"] == "20.5 % (Theano (Lasagne), Table 10)"
    assert text.loc["RMSNorm", "processes, rounds"] == "2 processes, 60 rounds"
    text = savings_table.readable(unpaired.numbers, "cifar10").set_index("norm")
    assert text.loc["WeightNorm", "saving vs LayerNorm"] == "25.0 %, unpaired"
    assert paired.caption
    assert not unpaired.caption  # drawn only where nothing was interleaved


def test_separate_runs_of_different_clocks_are_in_different_tables(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "rms")
    session = {"contention": {"state": "clear"}, "device": "AMD EPYC", "threads": 1, "code": "sha"}
    session |= {"versions": {"torch": "2.15.0"}, "machine": {"id": "3f", "name": "AMD EPYC"}}
    write_run(tmp_path, "ln", 1, sessions=[session])
    write_run(tmp_path, "wn", sessions=[session])
    found = {tuple(kinds(table).items()) for table in tables(tmp_path)}
    assert found == {(("ln", "reference"), ("rms", "unpaired")), (("ln", "reference"), ("wn", "unpaired"))}


@pytest.mark.parametrize(
    "ln", [{"contention": "contended"}, {"sessions": [{"contention": {"state": "clear"}, "threads": 1}]}]
)
def test_separate_runs_without_a_clear_time_of_layernorm_on_their_clock_have_no_table(
    tmp_path: Path, ln: dict[str, Any]
) -> None:
    write_run(tmp_path, "ln", **ln)
    write_run(tmp_path, "rms")
    assert tables(tmp_path) == []


def test_contended_runs_are_in_no_table_of_times(tmp_path: Path) -> None:
    for series in ("ln", "rms"):
        write_run(tmp_path, series)
    write_run(tmp_path, "wn", contention="contended")
    (table,) = tables(tmp_path)
    assert kinds(table) == {"ln": "reference", "rms": "unpaired"}
    assert table.caption[0].startswith("eager, 2 threads")


def test_fused_norms_have_tables_of_their_own_without_the_papers_numbers(tmp_path: Path) -> None:
    write_run(tmp_path, "ln", contention="contended")
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5, "rms+impl=fused": 0.45})
    eager, fused, both = tables(tmp_path)
    assert [set(table.numbers["impl"]) for table in (eager, fused, both)] == [{"eager"}, {"fused"}, {"eager", "fused"}]
    text = savings_table.readable(fused.numbers, "cifar10").set_index("norm")
    assert text.loc["RMSNorm", "saving vs LayerNorm"].startswith("10.0 %")
    assert not [name for name in text if "paper" in str(name)]
    text = savings_table.readable(both.numbers, "cifar10").set_index("norm")
    assert text.loc["LayerNorm (fused)", "saving vs the eager norm"].startswith("50.0 %")


def test_norm_layers_alone_have_a_table_of_their_own_without_the_papers_numbers(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.7}, kind="layers")
    steps, layers = savings_table.tables(load(tmp_path), load_timings(tmp_path))
    assert steps.title.startswith("Time per step, and savings relative to LayerNorm (interleaved, eager, 1 thread")
    assert layers.title.startswith("Time of the norm layers in a step alone, and savings relative to LayerNorm (inter")
    text = savings_table.readable(layers.numbers, "cifar10").set_index("norm")
    assert text.loc["RMSNorm", "saving vs LayerNorm"].startswith("30.0 %")
    assert not [name for name in text if "paper" in str(name)]
    assert not layers.caption  # its figure would look like that of steps
    assert savings_table.timing_table(load_timings(tmp_path))["record"].tolist() == ["steps0", "layers0"]


def test_a_timing_record_without_layernorm_gives_no_saving(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    write_timing(tmp_path, {"none": 1.0, "rms": 1.2})
    assert tables(tmp_path) == []
    write_timing(tmp_path, {"rms": 1.0, "rms+impl=fused": 0.7}, number=1)
    lonely, fused = savings_table.timing_table(load_timings(tmp_path)).to_dict("records")
    assert (lonely["record"], lonely["in the tables above"]) == ("steps0", "no: LayerNorm was not timed")
    assert (fused["record"], fused["impl"], fused["in the tables above"]) == ("steps1", "eager and fused", "yes")


def test_each_timing_record_is_listed_with_its_savings_and_why_it_is_not_used(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8]}, session={"git": {"commit": "0123456789", "dirty": True}})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.7}, number=1, state="contended", session={"code": "newer"})
    newer, older = savings_table.timing_table(load_timings(tmp_path)).to_dict("records")
    assert newer["record"] == "steps1"
    assert re.fullmatch(r"RMSNorm 30\.0 % \(29\.\d to 30\.\d %\)", newer["saving vs LayerNorm (95 % interval)"])
    assert (newer["processes, rounds"], newer["time state"]) == ("one process, not replicated, 30 rounds", "contended")
    assert newer["in the tables above"] == "no: made by other code"
    assert (older["commit"], older["processes, rounds"]) == (
        "0123456 with uncommitted changes",
        "2 processes, 60 rounds",
    )
    assert (older["machine, threads"], older["in the tables above"]) == ("AMD EPYC, 1 thread", "yes")
