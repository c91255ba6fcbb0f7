"""The tables of savings, from timing records."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.records import load_timings, write_run, write_timing

from rmsexp.report.tables import savings as savings_table
from rmsexp.report.tables.markup import Table


def tables(root: Path) -> list[Table]:
    """Return the tables of savings of the only setting, without the list of its records."""
    return [table for table in savings_table.tables(load_timings(root), "cifar10") if table.name != "timings"]


def test_savings_are_interleaved(tmp_path: Path) -> None:
    """Times of separate runs have no table."""
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    assert tables(tmp_path) == []
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8]})
    (table,) = tables(tmp_path)
    assert table.numbers.set_index("series")["kind"].to_dict() == {"ln": "reference", "rms": "paired"}
    assert "(interleaved, eager, 1 thread, AMD EPYC, torch 2.15.0, 2 processes)" in table.title
    text = table.readable.set_index("norm")
    assert text.loc["RMSNorm", "saving vs LayerNorm"].startswith("20.0 % (")
    assert text.loc["RMSNorm", "saving, paper"] == "20.5 % (Theano (Lasagne), Table 10)"
    assert text.loc["RMSNorm", "processes, rounds"] == "2 processes, 60 rounds"


def test_norm_layers_alone_have_a_table_of_their_own_without_the_papers_numbers(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.7}, kind="layers")
    steps, layers = tables(tmp_path)
    assert (set(steps.numbers["timed"]), set(layers.numbers["timed"])) == ({"steps"}, {"layers"})
    text = layers.readable.set_index("norm")
    assert text.loc["RMSNorm", "saving vs LayerNorm"].startswith("30.0 %")
    assert not [name for name in text if "paper" in str(name)]
    assert savings_table.timing_table(load_timings(tmp_path))["record"].tolist() == ["steps0", "layers0"]


def test_a_timing_record_without_layernorm_gives_no_saving(tmp_path: Path) -> None:
    write_timing(tmp_path, {"none": 1.0, "rms": 1.2})
    assert tables(tmp_path) == []
    write_timing(tmp_path, {"rms": 1.0, "rms+impl=fused": 0.7}, number=1)
    lonely, fused = savings_table.timing_table(load_timings(tmp_path)).to_dict("records")
    assert (lonely["record"], lonely["in the tables above"][:13]) == ("steps0", "no: LayerNorm")
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
