"""The quantities of a setting, and its caveats: what has no value, what is left out, and on what it was measured."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers.comparisons import summary as by_series
from helpers.records import make_row, write_run

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import quantities
from rmsexp.records.frames.caveats import caveats
from rmsexp.report.plots import setting_curves
from rmsexp.rules.quantities import Quantity, error, loss

WER = Quantity("valid", "wer", "word error rate", "%", log=True)  # of a task that this package does not have
NAMED = (loss("train", "bits"), error("train"), WER)


def write(root: Path, series: str, values: list[float], **run: Any) -> None:
    """Write a run whose task names ``NAMED``, with these word error rates at steps 0, 40, …"""
    folder = write_run(root, series, quantities=[asdict(quantity) for quantity in NAMED], **run)
    rows = [make_row(40 * i, None, "valid") | {"wer": value} for i, value in enumerate(values)]
    record.RunFolder(folder).append(rows)


def test_the_quantities_are_those_that_the_task_names(tmp_path: Path) -> None:
    write(tmp_path, "rms", [0.9, 0.002])
    records = load(tmp_path)
    assert quantities.recorded(records) == list(NAMED)
    assert [panel.y.title for panel in setting_curves.chart(records, NAMED).panels[::2]] == [
        *("training loss (bits)", "training error (%)", "validation word error rate (%)"),
    ]


def test_unit_and_logarithmic_axis_belong_to_the_quantity(tmp_path: Path) -> None:
    write(tmp_path, "rms", [0.9, 0.002])
    panel, _ = setting_curves.chart(load(tmp_path), [WER]).panels
    assert list(panel.marks[-1].y) == pytest.approx([90, 0.2])
    assert panel.y.log
    unscaled, _ = setting_curves.chart(load(tmp_path), [Quantity("valid", "wer", "word error rate")]).panels
    assert not unscaled.y.log


def test_older_records_have_the_loss_and_the_target_metric(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", target={"split": "test", "metric": "bleu", "mode": "max", "selection": "valid"})
    assert [one.name for one in quantities.named(load(tmp_path))] == [
        *("train_loss", "valid_loss", "valid_bleu", "test_bleu"),
    ]


def test_a_quantity_without_a_value_is_left_out_with_a_note(tmp_path: Path) -> None:
    write(tmp_path, "rms", [])
    assert [one.name for one in quantities.recorded(load(tmp_path))] == ["train_loss", "train_error"]
    note = "without a recorded value, so not drawn: validation word error rate"
    assert note in caveats(load(tmp_path))
    write(tmp_path, "ln", [0.9])
    assert len(quantities.recorded(load(tmp_path))) == 3
    assert f"{note} of RMSNorm" in caveats(load(tmp_path))
    write(tmp_path, "rms", [0.8], seed=1)
    assert quantities.missing(load(tmp_path)) == ""


def test_diverged_runs_are_listed_and_not_averaged(results: Path) -> None:
    row = by_series(results).loc["none"]
    assert row["status"] == "1 finished, 1 diverged at step 120"
    assert math.isnan(row["final_sd"])
    assert any("diverged" in line and "no norm seed 1 (at step 120)" in line for line in caveats(load(results)))


def test_caveats_name_data_machine_and_excluded_runs(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", steps=120, contention="disturbed")
    path = write_run(tmp_path, "ln") / "run.json"
    path.write_text(path.read_text().replace('"dirty": false', '"dirty": true'))
    text = "\n".join(caveats(load(tmp_path)))
    assert "built-in data (shapes); the paper's setting is scale=paper" in text
    assert "impl eager; device AMD EPYC; threads 2; torch 2.15.0" in text
    assert "RMSNorm seed 0 (finished, 120 of 400 steps)" in text
    assert "RMSNorm seed 0 (disturbed)" in text
    assert "alone: LayerNorm seed 0 (commit abc)" in text
