"""The sentences that compare training losses, as in the paper's Figure 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.comparisons import evaluated, setting, training, write_rows
from helpers.records import write_run

from rmsexp.records import record
from rmsexp.report.tables import findings


def write_losses(root: Path, series: str, slope: float, seconds_per_step: float, **run: object) -> None:
    """Write a run of 200 steps whose training loss is ``10 - slope * step``, with a training row every 10 steps."""
    folder = write_run(root, series, steps=200, **run)
    rows = [training(step, 10 - slope * step, seconds_per_step) for step in range(10, 201, 10)]
    write_rows(folder, [*rows, evaluated(200, 0.5)])


def test_the_sentence_of_figure_1_is_computed(tmp_path: Path) -> None:
    write_losses(tmp_path, "none", 0.01, 0.1)
    write_losses(tmp_path, "ln", 0.02, 0.2)
    write_losses(tmp_path, "rms", 0.02, 0.05)
    sentence, method = findings.figure_1(setting(tmp_path))
    # losses are means of the rows at steps 190 and 200, since the trailing window has 20 steps
    assert sentence == (
        "When LayerNorm reaches training loss 6.100 (at step 200, 40 seconds), "
        "the model without norm is at 8.050 after the same steps and at its end before that time (20 seconds); "
        "RMSNorm is at 6.100 after the same steps and at its end before that time (10 seconds)."
    )
    assert "trailing mean over 10 % of the baseline's steps" in method
    assert "unpaired" in method


def test_fused_norms_are_compared_where_there_are_no_eager_ones(tmp_path: Path) -> None:
    write_losses(tmp_path, "ln+impl=fused", 0.02, 0.2)
    write_losses(tmp_path, "rms+impl=fused", 0.02, 0.05)
    sentence, _ = findings.figure_1(setting(tmp_path))
    assert sentence.startswith("When LayerNorm impl=fused reaches training loss 6.100")
    assert "RMSNorm impl=fused is at 6.100 after the same steps" in sentence


@pytest.mark.parametrize(
    ("baseline", "reason"), [("diverged", "diverged, failed or was not started"), (None, "is missing")]
)
def test_the_model_without_norm_is_the_baseline_if_ln_failed(tmp_path: Path, baseline: str | None, reason: str) -> None:
    if baseline:
        write_losses(tmp_path, "ln", 0.01, 0.1, status=baseline)
    write_losses(tmp_path, "none", 0.02, 0.2)
    write_losses(tmp_path, "rms", 0.03, 0.1, contention="contended")
    sentence, method = findings.figure_1(setting(tmp_path))
    assert sentence.startswith(
        "When the model without norm reaches training loss 6.100 (at step 200, 40 seconds), RMSNorm is at 4.150"
    )
    assert f"the model without norm is the baseline, since LayerNorm {reason}" in method
    assert sentence.endswith("RMSNorm is at 4.150 after the same steps (its time is excluded: contended).")


def test_times_of_a_contended_baseline_are_left_out(tmp_path: Path) -> None:
    write_losses(tmp_path, "ln", 0.02, 0.2, contention="contended")
    write_losses(tmp_path, "rms", 0.03, 0.1)
    sentence, _ = findings.figure_1(setting(tmp_path))
    assert sentence == (
        "When LayerNorm reaches training loss 6.100 (at step 200, its time is excluded: contended), "
        "RMSNorm is at 4.150 after the same steps."
    )


def test_runs_without_times_are_compared_by_steps_alone(tmp_path: Path) -> None:
    for series, slope in {"ln": 0.02, "rms": 0.03}.items():
        write_losses(tmp_path, series, slope, 0.1)
        folder = tmp_path / f"cifar10/demo/{series}/seed0"
        rows = [json.loads(line) for line in (folder / record.METRICS).read_text().splitlines()]
        write_rows(folder, [{key: value for key, value in row.items() if key != "seconds"} for row in rows])
    sentence, _ = findings.figure_1(setting(tmp_path))
    assert sentence == (
        "When LayerNorm reaches training loss 6.100 (at step 200, its time is excluded: nothing timed), "
        "RMSNorm is at 4.150 after the same steps."
    )


def test_a_baseline_that_ended_before_another_ones_first_row_gives_no_sentence(tmp_path: Path) -> None:
    write_losses(tmp_path, "ln", 0.02, 0.2)
    write_losses(tmp_path, "rms", 0.02, 0.05)
    short = write_run(tmp_path, "ln", seed=1, steps=200)
    write_rows(short, [training(step, 10 - 0.02 * step, 0.2) for step in (2, 4)])
    assert findings.figure_1(setting(tmp_path)) == []
