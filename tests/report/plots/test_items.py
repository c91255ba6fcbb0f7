"""The figures of the paper's items, from their files and records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from helpers.records import write_run
from matplotlib.figure import Figure

from rmsexp.campaign import item_file as items
from rmsexp.campaign.item_file import Found
from rmsexp.compare import load
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.report.plots import items as item_plots
from rmsexp.rules.quantities import Quantity

CONTENT = """\
title: Figure 5
caption: Error rate.
draw: curves
groups:
  - runs: {task: cifar10}
    norms: {Baseline: none, LayerNorm: ln}
panels:
"""


def item(root: Path, panels: str) -> items.Item:
    (root / "item").mkdir(exist_ok=True)
    (root / "item/mine.yaml").write_text(CONTENT + panels)
    return items.read("mine", str(root))


def figure(root: Path, panels: str) -> Figure:
    named = [asdict(Quantity("test", "error", "mistakes", "%"))]
    for series in ("none", "ln"):
        write_run(root / "results", series, quantities=named)
    found = Found("cifar10/demo", {"Baseline": "none", "LayerNorm": "ln"}, load(root / "results"), [], None)
    return item_plots.curves(item(root, panels), found, ["scale=demo"])


def test_panels_have_the_quantity_of_the_task_or_the_papers_name(tmp_path: Path) -> None:
    panels = "  - {quantity: test error, per: 100}\n  - {quantity: train error, x: epoch, label: error rate}\n"
    panels += "  - {quantity: train loss, x: time}\n"
    drawn = figure(tmp_path, panels)
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn.axes] == [
        ("step / 100", "test mistakes (%)"),
        ("epoch", "train error rate"),
        ("time in training (seconds)", "train loss (nats)"),
    ]
    legend = drawn.axes[-1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["Baseline", "LayerNorm"]
    caption = drawn.texts[1].get_text().splitlines()
    assert caption[:2] == ["Error rate.", "scale=demo"]


def test_curves_of_runs_with_a_score_are_of_their_interim_evaluations(tmp_path: Path) -> None:
    """They evaluate the whole validation split at their last steps only."""
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    points = score.steps(400)
    for series in ("none", "ln"):
        folder = record.RunFolder(write_run(tmp_path / "results", series, evaluation="scored", target=target))
        rows = [row for row in folder.read_metrics()[0] if row["split"] == "train"]
        shared = {key: rows[0][key] for key in ("epoch", "examples", "seconds")}
        for number, step in enumerate(points):
            splits = ["interim", "valid", "test"] if number >= len(points) - score.SCORED else ["interim"]
            rows += [shared | {"step": step, "split": split, "loss": 0.5, "error": 0.5} for split in splits]
        folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = Found("cifar10/demo", {"Baseline": "none", "LayerNorm": "ln"}, load(tmp_path / "results"), [], None)
    drawn = item_plots.curves(item(tmp_path, "  - {quantity: valid error}\n"), found, ["scale=demo"])
    assert drawn.axes[0].get_ylabel() == "valid, 256 examples: error (%)"
    assert len(drawn.axes[0].lines[0].get_xdata()) == score.EVALUATIONS


def test_a_sweep_of_p_has_the_papers_ticks_and_range(tmp_path: Path) -> None:
    for p in ("0.1", "1.0"):
        write_run(tmp_path / "results", f"prms+p={p}", scale="paper", setting="paper")
    records = load(tmp_path / "results")
    found = Found("cifar10/paper", {"10 %": "prms+p=0.1", "100 %": "prms+p=1.0"}, records, [], None)
    for y_range in ([10, 40], [22, 25]):  # the errors are about 17 %
        drawn = item(tmp_path, f"  - {{quantity: test error, y_range: {y_range}}}\n")
        (axes,) = item_plots.against_p(drawn, found, ["scale=paper"]).axes
        assert axes.get_xticks().tolist() == [20, 40, 60, 80, 100]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("p (% of the units)", "test error (%), last")
        assert axes.lines[-1].get_xdata().tolist() == [10, 100]
        assert (axes.get_ylim() == tuple(y_range)) == (y_range == [10, 40])
