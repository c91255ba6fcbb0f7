"""The paper's numbers and curves, and its items: their files, and tables and figures of synthetic records."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.campaigns import Campaign
from helpers.records import load_timings, write_run, write_timing
from matplotlib.figure import Figure
from scipy import stats

from rmsexp import config
from rmsexp.campaign import item_file as items
from rmsexp.campaign.item_file import Found, Part
from rmsexp.compare import load
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.frames import comparable, names
from rmsexp.report import paper
from rmsexp.report.plots import paper_figures, style
from rmsexp.report.tables import formats
from rmsexp.report.tables import items as item_tables
from rmsexp.report.tables.markup import Table
from rmsexp.rules import quantities
from rmsexp.rules.quantities import Quantity

NUMBERS = paper.numbers()
COUNTS = (("figure", 7), ("table", 10))
DERIVED = ("image_recall", "caption_recall")  # means of printed numbers
NAMES = items.options()
TABLES = [name for name in NAMES if items.read(name).draw == "table"]
SERIES = {"Baseline": "none", "BatchNorm": "bn", "WeightNorm": "wn"}
SERIES |= {"LayerNorm": "ln", "RMSNorm": "rms", "pRMSNorm": "prms"}
DASH = formats.NO_VALUE
ITEM = items.read("table10")
CONTENT = """\
title: Figure 5
caption: Error rate.
draw: curves
groups:
  - runs: {task: cifar10}
    norms: {Baseline: none, LayerNorm: ln}
panels:
"""


def test_printed_savings_follow_from_printed_times() -> None:
    times = NUMBERS[NUMBERS["metric"] == "seconds_per_1k_steps"].set_index(["task", "framework", "norm"])["value"]
    savings = NUMBERS[NUMBERS["metric"] == "saving_vs_ln"]
    assert len(savings) == 14  # rms and prms, in the seven columns of tables 2, 3 (two), 4, 6, 8 and 10
    for row in savings.itertuples():
        column = (row.task, row.framework)
        assert row.value == pytest.approx(1 - times[*column, row.norm] / times[*column, "ln"], abs=6e-4)
        assert row.norm in ("rms", "prms")


def test_names_and_units_are_ours() -> None:
    assert set(NUMBERS["task"]) == {*filter(config.papers_scale, config.options("task")), "invariance"}
    assert {names.norm_of(norm) for norm in NUMBERS["norm"]} <= {*config.options("norm"), ""}
    fractions = NUMBERS[NUMBERS["unit"] == "fraction"]
    assert fractions["value"].between(0, 1).all()
    assert set(fractions["metric"]) >= {"error", "saving_vs_ln", "image_r1", "image_recall"}
    assert len(NUMBERS) == NUMBERS["value"].count() == 225
    assert (NUMBERS["spread"].dropna() >= 0).all()
    assert not NUMBERS.duplicated(["table", "task", "framework", "norm", "metric", "data", "note"]).any()


def test_a_sample_of_numbers_is_as_printed() -> None:
    times = NUMBERS[NUMBERS["metric"] == "seconds_per_1k_steps"].set_index(["table", "norm"])["value"]
    assert [times[key] for key in (("Table 2", "ln"), ("Table 6", "rms"), ("Table 8", "prms"))] == [665, 3330, 43.4]
    assert times["Table 10", "bn"] == 76  # 38 s per epoch of 500 steps
    errors = paper.select("cifar10", "error").set_index("norm")["value"]
    assert (errors["rms"], errors["prms"]) == (0.0883, 0.1037)
    recall = paper.select("order_embedding", "image_recall").set_index(["framework", "norm"])["value"]
    assert recall["Theano", "rms"] == pytest.approx((0.390 + 0.748 + 0.863) / 3)
    bleu = paper.select("rnnsearch", "bleu").set_index(["table", "framework", "norm", "data"])["value"]
    assert bleu["Table 3", "Theano Nematus", "prms", "newstest2017"] == 24.0


def test_every_table_and_figure_of_the_paper_is_an_item() -> None:
    figures, tables = ([f"{kind}{number}" for number in range(1, last + 1)] for kind, last in COUNTS)
    assert ["appendix_wn", *figures, *tables] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_runs_of_an_item_compose(name: str) -> None:
    """The first and the last of each group; composing takes a tenth of a second."""
    for group in items.read(name).groups:
        norms = [] if group.absent else list(group.norms.values())
        for norm in {*norms[:1], *norms[-1:]}:
            words = [f"{key}={value}" for key, value in group.runs.items()]
            assert config.job([*words, *config.norm_words(norm)])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_shows_all_numbers_of_the_paper(name: str) -> None:
    item = items.read(name)
    cells = item_tables.table(item, [Part(group, None) for group in item.groups]).numbers
    numbers = NUMBERS[(NUMBERS["table"] == item.title) & ~NUMBERS["metric"].isin(DERIVED)]
    is_saving = numbers["metric"] == "saving_vs_ln"
    dashes = numbers["note"].str.startswith(item_tables.PRINTED_AS_DASH).sum()
    assert cells["paper"].count() == len(numbers) - is_saving.sum() - dashes > 0
    assert sorted(cells["paper_saving"].dropna()) == sorted(numbers.loc[is_saving, "value"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: T\ncaption: C\ndraw: tabel", "draw"),
        ("title: T\ncaption: C\ngroups: [{norm: ln}]", r"groups\[0\] has no norms"),
        ("title: T\ncaption: C\npanels: 3", "panels"),
        ("caption: C", "title"),
        ("[]", "does not consist of keys and values"),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "item").mkdir()
    (tmp_path / "item/mine.yaml").write_text(text)
    with pytest.raises(config.ConfigError, match=f"^item mine: .*{message}"):
        items.read("mine", str(tmp_path))


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


def item(root: Path, panels: str) -> items.Item:
    (root / "item").mkdir(exist_ok=True)
    (root / "item/mine.yaml").write_text(panels if panels.startswith("title") else CONTENT + panels)
    return items.read("mine", str(root))


def figure(root: Path, panels: str, **run: Any) -> Figure:
    """Return the figure of an item with a run of no norm alone; its other row has none."""
    write_run(root / "results", "none", **run)
    found = Found("cifar10/demo", {"Baseline": "none", "LayerNorm": "ln"}, load(root / "results"), [], None)
    return paper_figures.curves(item(root, panels), found, ["scale=demo"])


def test_panels_have_the_quantity_of_the_task_or_the_papers_name(tmp_path: Path) -> None:
    panels = "  - {quantity: test error}\n  - {quantity: train error, x: epoch, label: error rate}\n"
    panels += "  - {quantity: train loss, x: time, steps: 100}\n"
    drawn = figure(tmp_path, panels, quantities=[asdict(Quantity("test", "error", "mistakes", "%"))])
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn.axes] == [
        ("step", "test mistakes (%)"),
        ("epoch", "training error rate"),
        ("time in training (seconds)", "training loss (nats)"),
    ]
    assert max(drawn.axes[0].lines[-1].get_xdata()) == 400
    assert max(drawn.axes[1].lines[-1].get_ydata()) < 1
    assert max(drawn.axes[2].lines[-1].get_xdata()) == pytest.approx(10)  # of 100 steps
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["Baseline", "LayerNorm (no run)"]
    assert drawn.texts[1].get_text().splitlines()[:2] == ["Error rate.", "scale=demo"]


def test_the_papers_curves_have_panels_beside_ours(tmp_path: Path) -> None:
    panels = "  - {title: (a), quantity: train loss}\n  - {title: (b), quantity: train loss, x: time}\n"
    drawn = figure(tmp_path, CONTENT.replace("Figure 5", "Figure 1") + panels, task="rnnsearch")
    assert [axes.get_title(loc="left").splitlines()[0] for axes in drawn.axes] == [
        *("(a) here", "(b) here"),
        *("(a) in the paper, at its own setting", "(b) in the paper, at its own setting"),
    ]
    assert [axes.get_xlabel() for axes in drawn.axes[2:]] == ["step", "time in training (minutes)"]
    baseline, layernorm = drawn.axes[2].lines
    assert max(layernorm.get_xdata()) == 10_000
    assert [line.get_color() for line in (baseline, layernorm)] == [style.LOOKS[norm].colour for norm in ("none", "ln")]
    assert paper_figures.of_paper("Figure 2", quantities.loss("train"), "step", style.looks(["ln"])) is None


def test_curves_of_runs_with_a_score_are_of_the_validation_sample(tmp_path: Path) -> None:
    """They evaluate the whole validation split at their last steps only."""
    Campaign(level={"none": 20.0}, best={"none": 0.004}, grid=(0.004,), seeds=1, claims=()).write(tmp_path)
    records = load(tmp_path).select("cifar10", "small+evaluation=scored+optim.lr=0.004")
    found = Found("cifar10/small", {"Baseline": "none"}, records, [], None)
    (axes,) = paper_figures.curves(item(tmp_path, "  - {quantity: valid error}\n"), found, []).axes
    assert axes.get_ylabel() == "validation error (%, 256 examples)"
    assert len(axes.lines[0].get_xdata()) == score.EVALUATIONS


def test_quality_against_p_has_points_means_and_intervals(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / "results", "prms+p=0.5", seed, status="diverged" if seed == 3 else "finished")
    (write_run(tmp_path / "results", "prms") / record.CONFIG).write_text("norm:\n  p: 0.0625\n")
    write_run(tmp_path / "results", "prms", 1)  # p is unknown without a config
    records = load(tmp_path / "results")
    found = Found("cifar10/demo", {"Baseline": "prms"}, records, [], None)
    (axes,) = paper_figures.against_p(item(tmp_path, "  - {title: (a), quantity: test error}\n"), found, []).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("p (% of the units)", "test error (%), last")
    assert axes.get_title(loc="left") == "(a)"
    final = records.metrics.query("split == 'test' and step == 400").set_index(["series", "seed"])["error"] * 100
    of_half = final["prms+p=0.5"][[0, 1, 2]]
    points, mean = axes.lines
    assert sorted(points.get_xdata()) == [6.25, 50, 50, 50]
    assert list(mean.get_xdata()) == [6.25, 50]
    assert list(mean.get_ydata()) == pytest.approx([final["prms", 0], of_half.mean()])
    (band,) = axes.collections[0].get_paths()
    interval = stats.ttest_1samp(of_half, 0).confidence_interval(0.95)
    assert {*np.round(interval, 6)} <= {*np.round(band.vertices[:, 1], 6)}
