"""Comparisons from synthetic records: what is read, what is computed, what is drawn."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from helpers.records import make_row, write_run
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.console import Console

from rmsexp import record
from rmsexp.compare import draw, load
from rmsexp.compare.plots import panels, setting_curves, style
from rmsexp.compare.records import caveats, curves, names, statistics
from rmsexp.compare.tables import summary as summary_table

SERIES = ("none", "ln", "rms", "prms", "bn", "wn")


def write_setting(tmp_path: Path) -> Path:
    """Six norms: one run contended, one diverged."""
    for series in SERIES:
        write_run(tmp_path, series, 0)
    for series in SERIES[1:4]:
        write_run(tmp_path, series, 1)
    write_run(tmp_path, "wn", 1, contention="contended")
    write_run(tmp_path, "none", 1, steps=120, status="diverged")
    return tmp_path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_setting(tmp_path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, drawn; not to be changed."""
    results = write_setting(tmp_path_factory.mktemp("drawn"))
    draw(results, "cifar10", "demo")
    return results


def summary(results: Path, setting: str = "demo") -> pd.DataFrame:
    return summary_table.table(load(results), "cifar10", setting).set_index("series")


# reading


def test_load_gives_one_row_a_run_and_one_an_event(results: Path) -> None:
    records = load(results)
    assert len(records.runs) == 11
    assert records.problems == []
    run = records.runs.set_index(["series", "seed"]).loc[("rms", 1)]
    assert (run["task"], run["setting"], run["impl"], run["status"], run["step"]) == (
        ("cifar10", "demo", "eager", "finished", 400)
    )
    rows = records.metrics.query("series == 'rms' and seed == 1 and split == 'train'")
    assert list(rows["step"]) == list(range(4, 401, 4))
    np.testing.assert_allclose(rows["time"], rows["step"] * 0.1)
    np.testing.assert_allclose(rows["time"], rows["seconds_data"] + rows["seconds_train"])


def test_nothing_to_load_is_an_empty_record(tmp_path: Path) -> None:
    records = load(tmp_path / "missing")
    assert records.runs.empty
    assert records.metrics.empty
    assert {"folder", "time_state"} <= set(records.runs)
    assert {"step", "split", "time"} <= set(records.metrics)


@pytest.mark.parametrize("name", [record.METRICS, record.STATUS])
def test_a_missing_file_is_a_problem_and_no_more(results: Path, name: str) -> None:
    path = results / "cifar10/demo/rms/seed0" / name
    path.unlink()
    records = load(results)
    assert records.problems == [f"{path} is missing"]
    assert len(records.runs) == 11


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"target": 3}', b"\xff\xfe"])
@pytest.mark.parametrize("name", [record.METRICS, record.STATUS, record.RUN])
def test_a_damaged_file_is_a_problem_and_no_more(results: Path, name: str, content: bytes) -> None:
    path = results / "cifar10/demo/rms/seed0" / name
    path.write_bytes(content)
    records = load(results)
    assert len(records.problems) == (0 if name == record.METRICS and not content else 1)
    assert all(str(path) in problem for problem in records.problems)
    run = records.runs.set_index(["series", "seed"]).loc[("rms", 0)]
    assert (run["task"], run["setting"]) == ("cifar10", "demo")
    assert summary(results).loc["rms", "seeds"] == 2


def test_a_half_written_last_line_is_left_out(results: Path) -> None:
    path = results / "cifar10/demo/rms/seed0" / record.METRICS
    whole = len(load(results).metrics)
    path.write_bytes(path.read_bytes()[:-20])
    records = load(results)
    assert len(records.metrics) == whole - 1
    assert len(records.problems) == 1
    assert str(path) in records.problems[0]


def test_a_metric_that_was_not_finite_is_nan(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rms", steps=40)
    row = {"step": 44, "split": "train", "loss": None, "seconds": {"data": 1.0, "train": None}}
    record.RunFolder(folder).append([row])
    last = load(tmp_path).metrics.iloc[-1]
    assert math.isnan(last["loss"])
    assert math.isnan(last["time"])


@pytest.mark.parametrize(
    ("sessions", "state"),
    [
        ([{"contention": {"state": "clear"}, "comparable": True}] * 2, "clear"),
        ([{"contention": {"state": "clear"}}, {"contention": {"state": "contended"}}], "contended"),
        ([{"contention": {"state": "clear"}}, {"contention": {"state": "clear"}, "comparable": False}], "mixed"),
        ([{"contention": {"state": "clear"}}, {}], "unknown"),
        ([], "unknown"),
    ],
)
def test_time_counts_only_where_every_session_does(tmp_path: Path, sessions: list[object], state: str) -> None:
    write_run(tmp_path, "rms", sessions=sessions)
    assert load(tmp_path).runs["time_state"].tolist() == [state]


# arithmetic


def test_interval_from_three_seeds_on() -> None:
    assert statistics.estimate(np.array([1.0, 3.0])) == (
        2.0,
        pytest.approx(math.sqrt(2)),
        pytest.approx(math.nan, nan_ok=True),
    )
    mean, sd, interval = statistics.estimate(np.array([1.0, 2.0, 3.0, math.nan]))
    assert (mean, sd) == (2.0, 1.0)
    assert interval == pytest.approx(4.302653 / math.sqrt(3))  # t of 2 degrees of freedom at 97.5 %


def test_seeds_are_put_on_one_grid_before_averaging() -> None:
    first = np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])
    second = np.array([1.0, 3.0, 6.0]), np.array([2.0, 4.0, 7.0])
    mean = curves.mean_curve([first, second])
    assert mean["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert mean["mean"].tolist() == [1.5, 2.5, 3.5, 4.5]
    assert mean["low"].isna().all()
    assert curves.mean_curve([first, first, first])["high"].tolist() == [0.0, 2.0, 4.0]


def test_tables_compare_at_the_last_step_that_all_have(results: Path) -> None:
    write_run(results, "rms+eps=0.1", steps=200, status="interrupted")
    records = load(results).select("cifar10", "demo")
    assert statistics.common_step(records) == 200  # the diverged run, which ended at 120, does not hold the others back
    row = summary(results).loc["ln"]
    at_200 = records.metrics.query("series == 'ln' and split == 'test' and step == 200")["error"]
    assert row["final"] == pytest.approx(at_200.mean())
    assert row["final_sd"] == pytest.approx(at_200.std())
    assert row["compared_at_step"] == 200


def test_best_is_chosen_on_the_selection_split(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    folder = write_run(tmp_path, "rms", target=target)
    valid = [{"step": step, "split": "valid", "error": abs(step - 80) / 1000} for step in range(0, 401, 40)]
    record.RunFolder(folder).append(valid)
    tests = load(tmp_path).metrics.query("split == 'test'").set_index("step")["error"]
    row = summary(tmp_path).loc["rms"]
    assert row["best_on_valid"] == tests[80]
    assert row["final"] == tests[400]


def test_no_best_where_the_selection_split_was_never_evaluated(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", target={"split": "test", "metric": "error", "mode": "min", "selection": "valid"})
    assert math.isnan(summary(tmp_path).loc["rms", "best_on_valid"])


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


def test_contended_runs_are_left_out_of_time(tmp_path: Path) -> None:
    write_run(tmp_path, "ln", seconds_per_step=0.2)
    write_run(tmp_path, "rms", 0, seconds_per_step=0.1)
    write_run(tmp_path, "rms", 1, seconds_per_step=0.9, contention="contended")
    write_run(tmp_path, "bn", seconds_per_step=0.3, contention="unknown")
    table = summary(tmp_path)
    assert table.loc["rms", "seconds_per_1k_steps"] == pytest.approx(100)
    assert table.loc["rms", "time_state"] == "1 clear, 1 contended"
    assert table.loc["bn", "seconds_per_1k_steps"] == pytest.approx(300)
    assert math.isnan(table.loc["bn", "saving_vs_ln"])
    assert table.loc["bn", "saving_note"] == "time does not count (1 unknown)"


def test_a_run_that_has_not_trained_yet_has_no_saving(tmp_path: Path) -> None:
    write_run(tmp_path, "ln")
    write_run(tmp_path, "rms", steps=0)
    assert summary(tmp_path).loc["rms", "saving_note"] == "time does not count (nothing timed yet)"


@pytest.mark.parametrize(
    ("ln", "reason"),
    [
        (None, "no LN run of this impl"),
        ({"contention": {"state": "contended"}, "device": "A"}, "LN's time does not count (1 contended)"),
        ({"contention": {"state": "clear"}, "device": "B"}, "not all on one machine"),
    ],
)
def test_no_saving_without_a_reference_of_the_same_machine(tmp_path: Path, ln: object, reason: str) -> None:
    write_run(tmp_path, "rms", sessions=[{"contention": {"state": "clear"}, "device": "A"}])
    if ln:
        write_run(tmp_path, "ln", sessions=[ln])
    assert summary(tmp_path).loc["rms", "saving_note"] == reason


# tables


def test_diverged_runs_are_named_and_not_averaged(results: Path) -> None:
    row = summary(results).loc["none"]
    assert row["status"] == "1 finished, 1 diverged at step 120"
    assert math.isnan(row["final_sd"])
    assert any("diverged" in line and "no norm seed 1 (at step 120)" in line for line in caveats.caveats(load(results)))


def test_a_setting_where_all_diverged_has_a_table_and_curves(tmp_path: Path) -> None:
    write_run(tmp_path, "none", steps=120, status="diverged")
    assert math.isnan(summary(tmp_path).loc["none", "final"])
    records = load(tmp_path)
    assert thick(setting_curves.draw(records, panels.quantities(records)), 0) == [style.colour("none")]


def test_notes_say_what_a_reader_must_know(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", steps=120, contention="contended")
    text = "\n".join(caveats.caveats(load(tmp_path)))
    assert "built-in data (shapes twin); the paper's setting: scale=paper" in text
    assert "impl eager; device AMD EPYC; threads 2; torch 2.15.0" in text
    assert "RMSNorm seed 0 (finished, 120 of 400 steps)" in text
    assert "RMSNorm seed 0 (contended)" in text


def test_the_same_numbers_in_every_form(drawn: Path) -> None:
    folder = drawn / "cifar10/demo/comparison"
    written = pd.read_csv(folder / "summary.csv")
    assert written["series"].tolist() == list(SERIES)
    percent = f"{written.loc[2, 'final']:.2%}".removesuffix("%")
    markdown = (folder / "summary.md").read_text()
    assert "| RMSNorm | 2 finished | 400 | " + percent in markdown
    console = Console(file=StringIO(), width=200, record=True)
    console.print(summary_table.for_terminal(written))
    assert percent in console.export_text()


# figures


def thick(figure: Figure, panel: int) -> list[str]:
    return [to_hex(line.get_color()) for line in figure.axes[panel].lines if line.get_linewidth() == style.THICK]


def test_a_figure_has_a_thin_line_a_run_and_a_thick_one_a_series(results: Path) -> None:
    records = load(results)
    shown = panels.quantities(records)
    figure = setting_curves.draw(records, shown)
    assert [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes] == [
        (title, x)
        for title in ("train loss (nats)", "test loss (nats)", "test error (%)")
        for x in ("step", "time in training (seconds)")
    ]
    for panel, axes in enumerate(figure.axes):
        assert thick(figure, panel) == [style.colour(series).lower() for series in SERIES]
        assert sum(line.get_linewidth() == style.THIN for line in axes.lines) == 11
        assert sum(line.get_marker() == "x" for line in axes.lines) == 1
    assert figure.axes[4].get_ylim()[1] > 50  # percent


def test_a_task_has_its_own_unit_of_loss_and_its_recalls_are_in_percent(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "image_recall", "mode": "max", "selection": "valid", "loss_unit": "per pair"}
    folder = write_run(tmp_path, "rms", target=target)
    for split in ("valid", "test"):
        record.RunFolder(folder).append([make_row(400, 0.5, split) | {"image_recall": 0.4321}])
    records = load(tmp_path)
    assert records.runs["target_loss_unit"].tolist() == ["per pair"]
    shown = panels.quantities(records)
    assert [one.title for one in shown] == [
        "train loss (per pair)",
        "valid loss (per pair)",
        "test image recall@1,5,10 (%)",
    ]
    assert [one.name for one in shown] == ["train_loss", "valid_loss", "test_image_recall"]
    (axes, _) = setting_curves.draw(records, shown[2:]).axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[43.21]] * 2
    table = summary_table.table(records, "cifar10", "demo")
    assert table["final"].tolist() == table["best_on_valid"].tolist() == [0.4321]
    assert summary_table.readable(table).loc[0, "test image recall@1,5,10 at step 400"] == "43.21 %"


@pytest.mark.parametrize("name", ["caption_r1", "image_r10", "caption_recall", "error"])
def test_shares_are_in_percent_and_ranks_are_not(name: str) -> None:
    assert names.scale_and_unit(name) == (100, "%")
    assert names.scale_and_unit("image_median_rank") == (1, "")


def test_contended_runs_are_dashed_against_time_alone(results: Path) -> None:
    figure = setting_curves.draw(load(results), panels.quantities(load(results))[:1])
    by_step, by_time = ([line for line in axes.lines if line.is_dashed()] for axes in figure.axes)
    assert by_step == []
    assert [to_hex(line.get_color()) for line in by_time] == [style.colour("wn").lower()]


def test_band_from_three_seeds_on(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "rms", seed)
    write_run(tmp_path, "rms+eps=0.1")
    records = load(tmp_path)
    figure = setting_curves.draw(records, panels.quantities(records)[:1])
    assert len(figure.axes[0].collections) == 1
    assert thick(figure, 0) == [style.colour("rms").lower()] * 2
    plain, variant = (line for line in figure.axes[0].lines if line.get_linewidth() == style.THICK)
    assert not plain.is_dashed()
    assert variant.is_dashed()


def test_colours_are_distinct_and_stable() -> None:
    assert set(names.NAMES) == set(style.COLOURS)
    assert len({*style.COLOURS.values(), *style.OTHER_COLOURS}) == len(style.COLOURS) + len(style.OTHER_COLOURS)
    assert style.colour("dyt") == "#000000"  # of its name alone, in every process
    assert names.in_order(["zz", "wn", "rms+eps=0.1", "rms", "ln", "rms"]) == ["ln", "rms", "rms+eps=0.1", "wn", "zz"]


def test_draw_writes_every_file_and_they_can_be_read(drawn: Path) -> None:
    folder = drawn / "cifar10/demo/comparison"
    names = ["curves", "test_error", "test_loss", "train_loss"]
    expected = {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")} | {"summary.csv", "summary.md"}
    assert {path.name for path in folder.iterdir()} == expected
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
        svg = ElementTree.fromstring((folder / f"{name}.svg").read_text())
        assert any("RMSNorm" in (element.text or "") for element in svg.iter())
    assert len(load(drawn).runs) == 11  # its own output is no run


def test_the_same_records_give_the_same_figure(drawn: Path) -> None:
    first = (drawn / "cifar10/demo/comparison/curves.svg").read_bytes()
    assert (draw(drawn, "cifar10", "demo") / "curves.svg").read_bytes() == first


def test_a_run_without_metrics_is_tolerated_and_a_setting_without_any_is_an_error(tmp_path: Path) -> None:
    (write_run(tmp_path, "ln") / record.METRICS).unlink()
    with pytest.raises(ValueError, match="no run has any metrics yet") as error:
        draw(tmp_path, "cifar10", "demo")
    assert "\n" not in str(error.value)
    write_run(tmp_path, "rms")
    assert (draw(tmp_path, "cifar10", "demo") / "curves.png").exists()


def test_an_error_with_dollars_and_newlines_is_only_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rms", steps=120, status="failed")
    stored = json.loads((folder / record.STATUS).read_text()) | {"error": "OSError: $HOME/$x_\n" + "long " * 100}
    record.write_json(folder / record.STATUS, stored)
    records = load(tmp_path)
    figure = setting_curves.draw(records, panels.quantities(records)[:1])
    figure.canvas.draw()  # would raise, if it took the dollars for a formula
    assert any("OSError: $HOME/$x_" in text.get_text() for text in figure.texts)


def test_comparing_needs_no_torch() -> None:
    code = "import sys, rmsexp.compare.overview, rmsexp.compare.setting_report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
