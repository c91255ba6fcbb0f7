"""The table of differences from LayerNorm, paired by seed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers.comparisons import setting, write_errors
from scipy import stats as scipy_stats

from rmsexp.report.tables import seed_tests


def test_paired_differences_agree_with_an_independent_computation(tmp_path: Path) -> None:
    ln, rms = [0.30, 0.34, 0.31, 0.36], [0.29, 0.31, 0.32, 0.33]
    for seed, (ln_error, rms_error) in enumerate(zip(ln, rms, strict=True)):
        write_errors(tmp_path, "ln", seed, [0.9, ln_error])
        write_errors(tmp_path, "rms", seed, [0.9, rms_error])
    write_errors(tmp_path, "rms", 9, [0.9, 0.0])  # no LN of this seed
    write_errors(tmp_path, "ln", 8, [0.9, 0.0])
    (row,) = seed_tests.table(setting(tmp_path)).to_dict("records")
    difference = np.array(rms) - np.array(ln)
    test = scipy_stats.ttest_1samp(difference, 0)
    low, high = test.confidence_interval(0.95)
    assert (row["series"], row["n"]) == ("rms", 4)
    assert row["difference"] == pytest.approx(difference.mean())
    assert row["interval"] == pytest.approx((high - low) / 2)
    assert row["p"] == pytest.approx(test.pvalue)
    text = seed_tests.readable(seed_tests.table(setting(tmp_path))).iloc[0].tolist()
    assert text == ["RMSNorm", "4 of 6", "0 / 0 / 0", "-1.5 ± 3", f"{test.pvalue:.3g}"]


@pytest.mark.parametrize(("seeds", "reason"), [(1, "fewer than 3 common seeds"), (2, "fewer"), (3, "are equal")])
def test_no_test_with_too_few_seeds_or_equal_differences(tmp_path: Path, seeds: int, reason: str) -> None:
    for seed in range(seeds):
        write_errors(tmp_path, "ln", seed, [0.9, 0.3 + seed / 100])
        write_errors(tmp_path, "rms", seed, [0.9, 0.2 + seed / 100])
    table = seed_tests.table(setting(tmp_path))
    assert table["difference"].tolist() == pytest.approx([-0.1])
    assert math.isnan(table["p"].iloc[0])
    text = seed_tests.readable(table).iloc[0]
    assert text["seeds at which both have a value"] == f"{seeds} of {seeds}"
    assert "no test" in text["p, paired t-test, Bonferroni"]
    assert reason in text["p, paired t-test, Bonferroni"]


def test_each_implementation_is_compared_with_its_own_ln(tmp_path: Path) -> None:
    for series, error in {"ln": 0.3, "rms": 0.2, "ln+impl=fused": 0.5, "rms+impl=fused": 0.6}.items():
        write_errors(tmp_path, series, 0, [0.9, error])
    table = seed_tests.table(setting(tmp_path)).set_index("series")["difference"]
    assert table.to_dict() == pytest.approx({"rms": -0.1, "rms+impl=fused": 0.1})


def test_several_series_are_corrected_together(tmp_path: Path) -> None:
    noise = {"ln": [0.0, 0.01, 0.0, 0.02], "rms": [0.11, 0.1, 0.12, 0.1], "wn": [0.0, 0.05, 0.02, 0.0]}
    for series, errors in noise.items():
        for seed, error in enumerate(errors):
            write_errors(tmp_path, series, seed, [0.9, 0.3 + error])
    table = seed_tests.table(setting(tmp_path)).set_index("series")
    p = [scipy_stats.ttest_rel(noise[series], noise["ln"]).pvalue for series in ("rms", "wn")]
    assert table["p"].tolist() == pytest.approx(p)
    assert table["adjusted_p"].tolist() == pytest.approx([2 * p[0], min(1, 2 * p[1])])
    difference = np.subtract(noise["rms"], noise["ln"])
    low, high = scipy_stats.ttest_1samp(difference, 0).confidence_interval(0.975)
    assert table.loc["rms", "adjusted_interval"] == pytest.approx((high - low) / 2)
    assert f"{2 * p[0]:.3g}" in seed_tests.readable(table.reset_index()).iloc[0].tolist()


def test_diverged_pairs_are_counted_and_not_tested(tmp_path: Path) -> None:
    for seed in range(8):
        write_errors(tmp_path, "ln", seed, [0.9, 0.3 + seed / 100])
        write_errors(tmp_path, "rms", seed, [0.9, 0.4 + seed / 90], status="diverged" if seed < 2 else "finished")
    write_errors(tmp_path, "ln", 8, [0.9, 0.3], status="diverged")
    write_errors(tmp_path, "rms", 8, [0.9, 0.3], status="diverged")
    write_errors(tmp_path, "rms", 9, [0.9, 0.3], status="failed")
    write_errors(tmp_path, "ln", 9, [0.9, 0.3])
    (row,) = seed_tests.table(setting(tmp_path)).to_dict("records")
    assert [row[name] for name in ("n", "diverged", "ln_diverged", "both_diverged")] == [6, 2, 0, 1]
    assert math.isnan(row["p"])
    assert math.isnan(row["interval"])
    text = seed_tests.readable(seed_tests.table(setting(tmp_path))).iloc[0]
    assert text.tolist()[:3] == ["RMSNorm", "6 of 10", "2 / 0 / 1"]
    assert text["p, paired t-test, Bonferroni"] == "no test (diverged)"
