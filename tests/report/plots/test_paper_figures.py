"""The figures of the paper's items, from their files and records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers.records import write_run
from matplotlib.figure import Figure

from rmsexp.campaign import item_file
from rmsexp.campaign.item_file import Found
from rmsexp.compare import load
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.report.plots import paper_figures, style
from rmsexp.rules import quantities
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


def item(root: Path, panels: str) -> item_file.Item:
    (root / "item").mkdir(exist_ok=True)
    (root / "item/mine.yaml").write_text(panels if panels.startswith("title") else CONTENT + panels)
    return item_file.read("mine", str(root))


def figure(root: Path, panels: str, **run: Any) -> Figure:
    """Return the figure of an item with runs of no norm alone; its other row has none."""
    if not (root / "results").exists():
        write_run(root / "results", "none", **run)
    found = Found("cifar10/demo", {"Baseline": "none", "LayerNorm": "ln"}, load(root / "results"), [], None)
    return paper_figures.curves(item(root, panels), found, ["scale=demo"])


def test_panels_have_the_quantity_of_the_task_or_the_papers_name(tmp_path: Path) -> None:
    panels = "  - {quantity: test error, per: 100}\n  - {quantity: train error, x: epoch, label: error rate}\n"
    panels += "  - {quantity: train loss, x: time, steps: 100}\n"
    drawn = figure(tmp_path, panels, quantities=[asdict(Quantity("test", "error", "mistakes", "%"))])
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn.axes] == [
        ("step / 100", "test mistakes (%)"),
        ("epoch", "train error rate"),
        ("time in training (seconds)", "train loss (nats)"),
    ]
    assert max(drawn.axes[0].lines[-1].get_xdata()) == 4  # of 400 steps
    assert max(drawn.axes[1].lines[-1].get_ydata()) < 1
    assert max(drawn.axes[2].lines[-1].get_xdata()) == pytest.approx(10)  # of 100 steps
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["Baseline", "LayerNorm (no run)"]
    assert drawn.texts[1].get_text().splitlines()[:2] == ["Error rate.", "scale=demo"]


def test_the_papers_curves_have_panels_beside_ours(tmp_path: Path) -> None:
    panels = "  - {title: (a), quantity: train loss, per: 100}\n  - {title: (b), quantity: train loss, x: time}\n"
    drawn = figure(tmp_path, CONTENT.replace("Figure 5", "Figure 1") + panels, task="rnnsearch")
    assert [axes.get_title(loc="left").splitlines()[0] for axes in drawn.axes] == [
        *("(a) here", "(b) here"),
        *("(a) in the paper, at its own setting", "(b) in the paper, at its own setting"),
    ]
    assert [axes.get_xlabel() for axes in drawn.axes[2:]] == ["step / 100", "time in training (minutes)"]
    baseline, layernorm = drawn.axes[2].lines
    assert max(layernorm.get_xdata()) == 100  # of 10,000 steps
    assert [line.get_color() for line in (baseline, layernorm)] == [style.LOOKS[norm].colour for norm in ("none", "ln")]
    assert paper_figures.of_paper("Figure 2", quantities.loss("train"), "step", style.looks(["ln"])) is None


def test_curves_of_runs_with_a_score_are_of_their_interim_evaluations(tmp_path: Path) -> None:
    """They evaluate the whole validation split at their last steps only."""
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    points = score.steps(400)
    folder = record.RunFolder(write_run(tmp_path / "results", "none", evaluation="scored", target=target))
    rows = [row for row in folder.read_metrics()[0] if row["split"] == "train"]
    shared = {key: rows[0][key] for key in ("epoch", "examples", "seconds")}
    for number, step in enumerate(points):
        splits = ["interim", "valid", "test"] if number >= len(points) - score.SCORED else ["interim"]
        rows += [shared | {"step": step, "split": split, "loss": 0.5, "error": 0.5} for split in splits]
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = figure(tmp_path, "  - {quantity: valid error}\n")
    assert drawn.axes[0].get_ylabel() == "valid, 256 examples: error (%)"
    assert len(drawn.axes[0].lines[0].get_xdata()) == score.EVALUATIONS


def test_a_sweep_of_p_has_the_papers_ticks(tmp_path: Path) -> None:
    for p in ("0.1", "1.0"):
        write_run(tmp_path / "results", f"prms+p={p}")
    found = Found("cifar10/demo", {"10 %": "prms+p=0.1", "100 %": "prms+p=1.0"}, load(tmp_path / "results"), [], None)
    drawn = item(tmp_path, "  - {quantity: test error}\n")
    (axes,) = paper_figures.against_p(drawn, found, ["scale=paper"]).axes
    assert axes.get_xticks().tolist() == [0, 20, 40, 60, 80, 100]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("p (% of the units)", "test error (%), last")
    assert list(axes.lines[-1].get_xdata()) == [10, 100]
