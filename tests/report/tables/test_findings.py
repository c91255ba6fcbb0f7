"""The sentences that compare training losses, as in the paper's Figure 1."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import evaluated, setting, training, write_rows
from helpers.records import write_run

from rmsexp.report.tables import findings


def write_losses(root: Path, series: str, slope: float, **run: object) -> None:
    """Write a run of 200 steps whose training loss is ``10 - slope * step``, with a training row every 10 steps."""
    folder = write_run(root, series, steps=200, **run)
    rows = [training(step, 10 - slope * step, 0.1) for step in range(10, 201, 10)]
    write_rows(folder, [*rows, evaluated(200, 0.5)])


def test_the_sentence_of_figure_1_is_computed(tmp_path: Path) -> None:
    write_losses(tmp_path, "none", 0.01)
    write_losses(tmp_path, "ln", 0.02)
    write_losses(tmp_path, "rms", 0.02)
    sentence, method = findings.figure_1(setting(tmp_path))
    # losses are means of the rows at steps 190 and 200, since the trailing window has 20 steps
    assert sentence == (
        "When LayerNorm reaches training loss 6.100 (at step 200), the model without norm is at 8.050 after the same "
        "steps; RMSNorm is at 6.100 after the same steps."
    )
    assert "trailing mean over 10 % of the baseline's steps" in method
    assert method.endswith("seeds: no norm 1, LayerNorm 1, RMSNorm 1.")


def test_fused_norms_are_compared_where_there_are_no_eager_ones(tmp_path: Path) -> None:
    write_losses(tmp_path, "ln+impl=fused", 0.02)
    write_losses(tmp_path, "rms+impl=fused", 0.02)
    sentence, _ = findings.figure_1(setting(tmp_path))
    assert sentence.startswith("When LayerNorm impl=fused reaches training loss 6.100")
    assert "RMSNorm impl=fused is at 6.100 after the same steps" in sentence


@pytest.mark.parametrize(
    ("baseline", "reason"), [("diverged", "diverged, failed or was not started"), (None, "is missing")]
)
def test_the_model_without_norm_is_the_baseline_if_ln_failed(tmp_path: Path, baseline: str | None, reason: str) -> None:
    if baseline:
        write_losses(tmp_path, "ln", 0.01, status=baseline)
    write_losses(tmp_path, "none", 0.02)
    write_losses(tmp_path, "rms", 0.03, contention="contended")
    sentence, method = findings.figure_1(setting(tmp_path))
    assert sentence.startswith(
        "When the model without norm reaches training loss 6.100 (at step 200), RMSNorm is at 4.15"
    )
    assert f"the model without norm is the baseline, since LayerNorm {reason}" in method


def test_a_baseline_that_ended_before_another_ones_first_row_gives_no_sentence(tmp_path: Path) -> None:
    write_losses(tmp_path, "ln", 0.02)
    write_losses(tmp_path, "rms", 0.02)
    short = write_run(tmp_path, "ln", seed=1, steps=200)
    write_rows(short, [training(step, 10 - 0.02 * step, 0.2) for step in (2, 4)])
    assert findings.figure_1(setting(tmp_path)) == []
