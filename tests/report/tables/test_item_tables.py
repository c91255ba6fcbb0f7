"""Tables in the paper's own layout, from synthetic records."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.records import load_timings, write_run, write_timing

from rmsexp.campaign import item_file as items
from rmsexp.campaign.item_file import Found, Part
from rmsexp.compare import load
from rmsexp.records.frames import comparable
from rmsexp.report.tables import formats
from rmsexp.report.tables import items as item_tables
from rmsexp.report.tables.markup import Table

SERIES = {"Baseline": "none", "BatchNorm": "bn", "WeightNorm": "wn"}
SERIES |= {"LayerNorm": "ln", "RMSNorm": "rms", "pRMSNorm": "prms"}
DASH = formats.NO_VALUE
ITEM = items.read("table10")


def part(root: Path, missing: tuple[str, ...] = ()) -> Part:
    records = load(root)
    (comparison,) = comparable.comparisons(load_timings(root)) or [None]
    return Part(ITEM.groups[0], Found("cifar10/demo", SERIES, records, list(missing), comparison))


def cells(sheet: Table, row: str) -> list[str]:
    (found,) = (list(values) for values in sheet.readable.to_numpy().tolist() if row in values)
    return found[1:]


def test_rows_and_columns_are_the_papers_with_our_values_beside(tmp_path: Path) -> None:
    for series in ("none", "ln", "rms"):
        write_run(tmp_path, series)
    write_run(tmp_path, "prms", status="diverged")
    write_timing(tmp_path, {"ln": 1.0, "none": [0.5, 0.54], "rms": [0.8, 0.84]})
    sheet = item_tables.table(ITEM, [part(tmp_path)])
    assert [row[0] for row in sheet.readable.to_numpy().tolist()] == list(SERIES)
    assert sheet.readable.columns.tolist() == [
        *("Model", "Test error (%), here", "Time (s), here", "Test error (%), paper", "Time (s), paper")
    ]
    errors = load(tmp_path).metrics.query("split == 'test' and step == 400").set_index("series")["error"]
    assert cells(sheet, "LayerNorm") == [f"{100 * errors['ln']:.2f}", "25 ± 0", "10.49", "39 ± 0.4"]
    assert cells(sheet, "RMSNorm")[:2] == [f"{100 * errors['rms']:.2f}", "20.5 ± 0.707 (18.0 %)"]
    assert cells(sheet, "RMSNorm")[2:] == ["8.83", "31 ± 0.5 (20.5 %)"]
    assert cells(sheet, "Baseline")[1] == "13 ± 0.707"  # the paper prints savings of RMSNorm and pRMSNorm only
    assert cells(sheet, "pRMSNorm")[:2] == ["diverged", DASH]
    assert cells(sheet, "WeightNorm")[:2] == [DASH, DASH]


def test_layernorms_time_is_that_of_the_processes_that_are_compared(tmp_path: Path) -> None:
    groups = [["ln", "rms"], ["ln", "ln+impl=fused"]]
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5}, groups=groups)
    time = item_tables.table(ITEM, [part(tmp_path)]).numbers.set_index(["row", "column"])["number"]
    assert (time["LayerNorm", "Time (s)"], time["RMSNorm", "Time (s)"]) == (1, 1)


def test_numbers_have_what_the_text_leaves_out(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "ln", 1)
    write_run(tmp_path, "rms")
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.84]})
    numbers = item_tables.table(ITEM, [part(tmp_path)]).numbers.set_index(["row", "column"])
    time = numbers.loc["RMSNorm", "Time (s)"]
    assert time["saving"] == pytest.approx(0.18, abs=1e-3)
    assert time["low"] < time["saving"] < time["high"]
    assert time[["number", "paper", "paper_saving"]].tolist() == [2, 31, 0.205]
    error = numbers.loc["LayerNorm", "Test error (%)"]
    assert (error["number"], error["here_sd"] > 0, math.isnan(error["saving"])) == (2, True, True)


def test_notes_name_what_is_behind_the_values(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "ln", 1)
    found = part(tmp_path, missing=("cifar10/demo/rms/seed0",))
    (source,) = item_tables.sources("demo", [found])
    assert source == "Here: scale=demo, built-in synthetic data shapes, seeds 0, 1, AMD EPYC."
    lines = item_tables.notes(ITEM, [found])
    assert lines[:2] == [
        "not done yet: cifar10/demo/rms/seed0",
        "values of the last evaluation; ± is the standard deviation over seeds",
    ]
    assert "the time of training steps has not been measured yet" in lines
    assert "paper's numbers, Table 10: printed per epoch of 500 steps, test pass included" in lines
    assert [line for line in lines if line.startswith("paper's numbers, Table 10, rms: the text says")]
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8})
    assert item_tables.TIME_NOTE in item_tables.notes(ITEM, [part(tmp_path)])
