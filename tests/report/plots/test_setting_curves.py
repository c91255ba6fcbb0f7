"""The curves of a setting as matplotlib figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

from helpers.comparisons import SERIES, summary, write_rows
from helpers.records import make_row, write_run
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import quantities
from rmsexp.report.plots import panels, setting_curves, style
from rmsexp.report.tables import summary as summary_table


def test_a_setting_whose_runs_all_diverged_has_a_table_and_curves(tmp_path: Path) -> None:
    write_run(tmp_path, "none", steps=120, status="diverged")
    assert math.isnan(summary(tmp_path).loc["none", "final"])
    records = load(tmp_path)
    assert thick(setting_curves.draw(records, quantities.recorded(records)), 0) == [style.colour("none")]


def thick(figure: Figure, panel: int) -> list[str]:
    """Return the colours of the thick lines of a panel."""
    return [to_hex(line.get_color()) for line in figure.axes[panel].lines if line.get_linewidth() == style.THICK]


def thin(axes: Axes) -> list[LineCollection]:
    """Return the lines of the seeds of each series."""
    return [found for found in axes.collections if isinstance(found, LineCollection)]


def test_a_figure_has_a_thin_line_per_run_and_a_thick_line_per_series(results: Path) -> None:
    records = load(results)
    figure = setting_curves.draw(records, quantities.recorded(records))
    assert [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes] == [
        (title, x)
        for title in ("train loss (nats)", "test loss (nats)", "test error (%)")
        for x in ("step", "time in training (seconds)")
    ]
    for panel, axes in enumerate(figure.axes):
        assert thick(figure, panel) == [style.colour(series).lower() for series in SERIES]
        assert sum(len(seeds.get_segments()) for seeds in thin(axes)) == 11
        assert sum(line.get_marker() == "x" for line in axes.lines) == 1
    assert figure.axes[4].get_ylim()[1] > 50  # percent


def test_losses_have_the_unit_of_the_task_and_recalls_are_in_percent(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "image_recall", "mode": "max", "selection": "valid", "loss_unit": "per pair"}
    folder = write_run(tmp_path, "rms", target=target)
    for split in ("valid", "test"):
        record.RunFolder(folder).append([make_row(400, 0.5, split) | {"image_recall": 0.4321}])
    records = load(tmp_path)
    assert records.runs["target_loss_unit"].tolist() == ["per pair"]
    found = quantities.recorded(records)
    assert list(map(quantities.title, found)) == [
        *("train loss (per pair)", "valid loss (per pair)"),
        *("valid image recall@1,5,10 (%)", "test image recall@1,5,10 (%)"),
    ]
    assert [one.name for one in found] == ["train_loss", "valid_loss", "valid_image_recall", "test_image_recall"]
    (axes, _) = setting_curves.draw(records, found[3:]).axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[43.21]] * 2
    table = summary_table.table(records, "cifar10", "demo")
    assert table["final"].tolist() == table["best_on_valid"].tolist() == [0.4321]
    assert summary_table.readable(table).loc[0, "test image recall@1,5,10 at step 400"] == "43.21 %"


def test_contended_runs_are_dashed_only_against_time(results: Path) -> None:
    figure = setting_curves.draw(load(results), quantities.recorded(load(results))[:1])
    by_step, by_time = ([dashed(seeds) for seeds in thin(axes)] for axes in figure.axes)
    assert sum(by_step) == 0
    assert not any(line.is_dashed() for axes in figure.axes for line in axes.lines)
    assert dict(zip(SERIES, by_time, strict=True)) == dict.fromkeys(SERIES, 0) | {"wn": 1}


def dashed(seeds: LineCollection) -> int:
    return sum(dashes is not None for _, dashes in seeds.get_linestyles())


def test_bands_need_three_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "rms", seed)
    write_run(tmp_path, "rms+eps=0.1")
    records = load(tmp_path)
    figure = setting_curves.draw(records, quantities.recorded(records)[:1])
    assert len(figure.axes[0].collections) == len(thin(figure.axes[0])) + 1
    assert thick(figure, 0) == [style.colour("rms").lower()] * 2
    plain, variant = (line for line in figure.axes[0].lines if line.get_linewidth() == style.THICK)
    assert not plain.is_dashed()
    assert variant.is_dashed()


def test_names_with_dollars_are_drawn_as_text(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", dataset={"name": "$HOME/$x_ " + "long " * 100, "digest": "0", "builtin": True})
    records = load(tmp_path)
    figure = setting_curves.draw(records, quantities.recorded(records)[:1])
    figure.canvas.draw()  # raises if the dollar signs are parsed as a formula
    assert any("data: $HOME/$x_" in text.get_text() for text in figure.texts)


def test_a_curve_of_a_single_point_is_drawn_as_a_dot(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rms")
    rows = [line for line in (folder / record.METRICS).read_text().splitlines() if json.loads(line)["split"] == "train"]
    (folder / record.METRICS).write_text(rows[0] + "\n")
    records = load(tmp_path)
    figure = setting_curves.draw(records, [quantities.recorded(records)[0]])
    assert [[line.get_marker() for line in axes.lines] for axes in figure.axes] == [
        [style.marker("rms")] * 2
    ] * 2  # seed and mean


def test_bands_have_possible_values_and_spikes_are_marked(tmp_path: Path) -> None:
    for seed in range(3):
        folder = write_run(tmp_path, "rms", seed)
        rows, _ = record.RunFolder(folder).read_metrics()
        for row in rows:
            row["loss"] = 500.0 if row["step"] == 200 and seed == 0 else 0.1 + 0.4 * (seed == 1)
            if "error" in row:
                row["error"] = 0.99 - 0.6 * (seed == 1)
        write_rows(folder, rows)
    setting = panels.setting(load(tmp_path), quantities.recorded(load(tmp_path)), setting_curves.LIMITS)
    loss, _, error = setting.charts
    curve = loss.panels["step"].curves[0]
    assert curve.mean["low"].min() == 0
    assert error.panels["step"].curves[0].mean["high"].max() == 100
    assert loss.limits.high < 10
    assert [(point.x, point.y) for point in loss.panels["step"].beyond] == [(200, 500)]
    axes = setting_curves.draw_setting(setting).axes[0]
    assert any("500" in text.get_text() for text in axes.texts)
    assert axes.get_ylim()[1] < 10


def legends(figure: Figure) -> list[list[str]]:
    """Return the texts of each legend, without the part before the parentheses."""
    return [[text.get_text().partition(" ")[2] for text in legend.get_texts()] for legend in figure.legends]


def test_the_legend_counts_the_seeds_of_each_mean(tmp_path: Path) -> None:
    for seed, state in enumerate(["clear", "contended", "clear"]):
        write_run(tmp_path, "ln", seed, contention=state)
        write_run(tmp_path, "rms", seed, status="diverged" if seed == 2 else "finished")
    records = load(tmp_path)
    figure = setting_curves.draw(records, quantities.recorded(records))
    assert legends(figure)[0][:2] == ["(3 seeds; against time: 2)", "(2 of 3 seeds)"]
    assert len(figure.legends) == 1
    rows = records.metrics[(records.metrics["split"] == "train") & (records.metrics["step"] == 400)]
    losses = rows.set_index(["series", "seed"])["loss"]
    for axes, seeds in zip(figure.axes[:2], ([0, 1, 2], [0, 2]), strict=True):
        thick_ln = next(line for line in axes.lines if line.get_linewidth() == style.THICK)
        assert math.isclose(thick_ln.get_ydata()[-1], losses["ln"][seeds].mean())
