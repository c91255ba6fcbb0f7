"""Savings of time: the tables of a setting, the charts of all tasks, and precisions that stay apart."""

from pathlib import Path

import pytest
from helpers.records import load_timings, write_run, write_timing

from rmsexp.records.frames import comparable
from rmsexp.report.plots import canvas, savings
from rmsexp.report.plots.chart import Chart
from rmsexp.report.tables import savings as savings_table
from rmsexp.report.tables.markup import Table


def chart(root: Path, impl: str = "eager") -> Chart:
    return savings.chart(savings.rows(load_timings(root), impl), impl, load_timings(root))


def test_the_chart_has_the_savings_of_all_tasks_beside_the_papers(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.97, "none": 0.9}, task="transformer")
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, session={"code": "older"})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8], "prms": [0.7, 0.7]}, number=1)
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.2}, number=2, kind="layers")
    write_timing(tmp_path, {"none": 1.0, "rms": 1.5}, task="rnnsearch")
    rows = savings.rows(load_timings(tmp_path), "eager")
    assert list(zip(rows["task"], rows["series"], rows["ratio"].round(2), strict=True)) == [
        ("cifar10", "rms", 0.8),
        ("cifar10", "prms", 0.7),
        ("transformer", "rms", 0.97),
    ]
    found = chart(tmp_path)
    (panel,) = found.panels
    of_rows = [("CIFAR-10", "RMSNorm"), ("CIFAR-10", "pRMSNorm"), ("Transformer", "RMSNorm")]
    labels = [label.replace("\n", " ") for label in panel.y.labels]
    assert labels == [f"{task}, scale demo: {norm}" for task, norm in of_rows]
    ours = [mark for mark in panel.marks if mark.series]
    assert [mark.x[0] for mark in ours] == pytest.approx([20, 30, 3], abs=0.1)
    assert [mark.kind for mark in ours] == ["interval", "interval", "hollow"]  # a single process is hollow
    papers = [(mark.x[0], mark.y[0]) for mark in panel.marks if not mark.series]
    assert papers == [pytest.approx((20.5, 0)), pytest.approx((23.1, -1)), pytest.approx((6.9, -2))]
    assert [text for _, text in found.legend][-1] == "paper, each framework"
    (axes,) = canvas.draw(found).axes
    assert len(axes.containers) == 3


def test_fused_norms_have_a_chart_of_their_own_against_fused_layernorm(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8, "ln+impl=fused": 0.5, "rms+impl=fused": 0.45})
    (mark,) = chart(tmp_path, "fused").panels[0].marks
    assert mark.x == pytest.approx([10], abs=0.1)


def test_a_wide_interval_is_drawn_and_does_not_set_the_range(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.9, 0.91]})
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.7, 1.1]}, task="rnnsearch")
    rows = savings.rows(load_timings(tmp_path), "eager")
    assert rows.set_index("task")["too_wide"].to_dict() == {"cifar10": False, "rnnsearch": True}
    (panel,) = chart(tmp_path).panels
    assert len(panel.y.labels) == 2
    assert panel.x.range[0] > -20


def test_every_machine_and_number_of_threads_has_a_marker_of_its_own_in_the_legend(tmp_path: Path) -> None:
    for threads in range(1, 11):
        times = {"ln": 1.0, "rms": [0.9, 0.8]}
        write_timing(tmp_path, times, number=threads, session={"threads": threads})
    found = chart(tmp_path)
    listed = {text: look.symbol for look, text in found.legend if text.startswith("AMD EPYC, ")}
    drawn = {mark.label.rpartition("AMD EPYC")[2]: mark.look.symbol for mark in found.panels[0].marks if mark.series}
    assert listed == {f"AMD EPYC{text}": symbol for text, symbol in drawn.items()}
    assert len(set(listed.values())) == 10


def tables(root: Path) -> list[Table]:
    """Return the tables of savings of the only setting, without the list of its records."""
    return [table for table in savings_table.tables(load_timings(root)) if table.name != "timings"]


def test_savings_are_interleaved(tmp_path: Path) -> None:
    """Times of separate runs have no table."""
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    assert tables(tmp_path) == []
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8]})
    (table,) = tables(tmp_path)
    assert table.numbers.set_index("series")["kind"].to_dict() == {"ln": "reference", "rms": "paired"}
    assert "(interleaved, eager, 1 thread, AMD EPYC, torch 2.15.0, 2 processes)" in table.title
    assert table.readable.set_index("norm").loc["RMSNorm", "processes, rounds"] == "2 processes, 60 rounds"


def test_a_timing_record_without_layernorm_gives_no_saving(tmp_path: Path) -> None:
    write_timing(tmp_path, {"none": 1.0, "rms": 1.2})
    assert tables(tmp_path) == []
    write_timing(tmp_path, {"rms": 1.0, "rms+impl=fused": 0.7}, number=1)
    listed = list(savings_table.tables(load_timings(tmp_path)))[-1].numbers
    lonely, fused = listed.to_dict("records")
    assert (lonely["record"], lonely["in the tables above"][:13]) == ("steps0", "no: LayerNorm")
    assert (fused["record"], fused["impl"], fused["in the tables above"]) == ("steps1", "eager and fused", "yes")


def test_timing_records_of_two_precisions_are_in_different_tables(tmp_path: Path) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.8})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.9}, number=1, precision="bfloat16")
    clocks = sorted(comparable.clock(found) for found in comparable.comparisons(load_timings(tmp_path)))
    eager = "interleaved, eager, "
    assert [clock[:38] for clock in clocks] == [f"{eager}1 thread, AMD EPYC", f"{eager}bfloat16, 1 thread"]
    found = chart(tmp_path)
    assert {"AMD EPYC, 1 thread, bfloat16", "AMD EPYC, 1 thread"} < {text for _, text in found.legend}
