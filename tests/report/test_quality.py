"""The tables of the quality of runs: their numbers, and what they say of runs that are missing, short or diverged.

Last come runs that get a score, which is apart from their evaluations on the validation sample.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.campaigns import Campaign
from helpers.comparisons import evaluated, setting, training, write_errors, write_rows
from helpers.records import write_run
from scipy import stats as scipy_stats

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import seed_tests, time_to_target, versus_paper
from rmsexp.report.tables import summary as summary_table

SCORED = "small+evaluation=scored+optim.lr=0.004"
TUNING = "small+evaluation=validation+optim.lr=0.004"
CIFAR10 = {"name": "CIFAR-10", "digest": "0", "builtin": False}


def write(root: Path, series: str, *ends: float, **run: object) -> None:
    """Write runs of the seeds 0, 1, ... that begin at a test error of 0.9 and end at these."""
    for seed, error in enumerate(ends):
        write_errors(root, series, seed, [0.9, error], **run)


def of_ln(root: Path) -> tuple[pd.Series, str]:
    """Return the row of LN, as numbers, and its quality as text."""
    table = summary_table.table(setting(root))
    return table.iloc[0], summary_table.readable(table).iloc[0, 3]


def test_the_mean_is_beside_the_median_and_counts_the_runs_that_it_leaves_out(tmp_path: Path) -> None:
    write(tmp_path, "ln", 0.2, 0.3, 1.0)  # the last one blew up without diverging
    row, text = of_ln(tmp_path)
    assert (row["final_n"], row["seeds"], row["final_median"]) == (3, 3, pytest.approx(0.3))
    assert text == "50.00 ± 110 (sd 44, median 30.00) %"
    write_errors(tmp_path, "ln", 3, [0.9, 0.1], status="diverged")
    write_errors(tmp_path, "ln", 4, [0.9, 0.1], status="failed")
    row, text = of_ln(tmp_path)
    assert [row[name] for name in ("final_n", "seeds", "diverged", "failed")] == [3, 5, 1, 1]
    assert row["final_median"] == pytest.approx(0.65)  # of 0.2, 0.3, 1.0 and a diverged run
    assert text == "50.00 ± 110 (sd 44, median 65.00, 3 of 5 runs) %"
    write(tmp_path, "rms", 0.2)
    for seed, remark in ((1, ""), (2, "the median run diverged, ")):  # of two runs there is no median run
        write_errors(tmp_path, "rms", seed, [0.9], status="diverged")
        text = summary_table.readable(summary_table.table(setting(tmp_path))).iloc[1, 3]
        assert text == f"20.00 ({remark}1 of {seed + 1} runs) %"


def test_paired_differences_agree_with_an_independent_computation(tmp_path: Path) -> None:
    ln, rms = [0.30, 0.34, 0.31, 0.36], [0.29, 0.31, 0.32, 0.33]
    write(tmp_path, "ln", *ln)
    write(tmp_path, "rms", *rms)
    write_errors(tmp_path, "rms", 9, [0.9, 0.0])  # no LN of this seed
    write_errors(tmp_path, "ln", 8, [0.9, 0.0])
    (row,) = seed_tests.table(setting(tmp_path)).to_dict("records")
    difference = np.array(rms) - np.array(ln)
    test = scipy_stats.ttest_1samp(difference, 0)
    low, high = test.confidence_interval(0.95)
    assert (row["series"], row["n"]) == ("rms", 4)
    assert row["difference"] == pytest.approx(difference.mean())
    assert row["interval"] == pytest.approx((high - low) / 2)
    text = seed_tests.readable(seed_tests.table(setting(tmp_path))).iloc[0].tolist()
    assert text == ["RMSNorm", "4 of 6", "0 / 0 / 0", "-1.50 ± 3"]


@pytest.mark.parametrize(("seeds", "reason"), [(1, "fewer than 3 common seeds"), (2, "fewer"), (3, "± ")])
def test_no_interval_with_too_few_seeds(tmp_path: Path, seeds: int, reason: str) -> None:
    for series, first in {"ln": 0.3, "rms": 0.2}.items():
        write(tmp_path, series, *(first + seed / 100 for seed in range(seeds)))
    table = seed_tests.table(setting(tmp_path))
    assert table["difference"].tolist() == pytest.approx([-0.1])
    assert math.isnan(table["interval"].iloc[0]) == (seeds < 3)
    text = seed_tests.readable(table).iloc[0]
    assert text["seeds at which both have a value"] == f"{seeds} of {seeds}"
    assert reason in text.iloc[-1]


def test_several_series_are_corrected_together(tmp_path: Path) -> None:
    noise = {"ln": [0.0, 0.01, 0.0, 0.02], "rms": [0.11, 0.1, 0.12, 0.1], "wn": [0.0, 0.05, 0.02, 0.0]}
    for series, errors in noise.items():
        write(tmp_path, series, *(0.3 + error for error in errors))
    table = seed_tests.table(setting(tmp_path)).set_index("series")
    difference = np.subtract(noise["rms"], noise["ln"])
    low, high = scipy_stats.ttest_1samp(difference, 0).confidence_interval(0.975)
    assert table.loc["rms", "interval"] == pytest.approx((high - low) / 2)


def test_diverged_pairs_are_counted_and_not_tested(tmp_path: Path) -> None:
    lost = {"rms": {0: "diverged", 1: "diverged", 8: "diverged", 9: "failed"}, "ln": {8: "diverged"}}
    for seed in range(10):
        for series, error in {"rms": 0.4 + seed / 90, "ln": 0.3 + seed / 100}.items():
            write_errors(tmp_path, series, seed, [0.9, error], status=lost[series].get(seed, "finished"))
    (row,) = seed_tests.table(setting(tmp_path)).to_dict("records")
    assert [row[name] for name in ("n", "diverged", "ln_diverged", "both_diverged")] == [6, 2, 0, 1]
    assert math.isnan(row["interval"])
    text = seed_tests.readable(seed_tests.table(setting(tmp_path))).iloc[0]
    assert text.tolist()[:3] == ["RMSNorm", "6 of 10", "2 / 0 / 1"]
    assert "no interval: runs diverged" in text.iloc[-1]


@pytest.mark.parametrize(("status", "steps", "diverged"), [("diverged", 250, 1), ("failed", 250, 0)])
def test_a_run_that_diverged_never_reaches_the_level(tmp_path: Path, status: str, steps: int, diverged: int) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.5])
    for seed, errors in enumerate([[0.9, 0.4, 0.4, 0.4], [0.9, 0.9, 0.4, 0.4], [0.9, 0.9, 0.9, 0.4]]):
        write_errors(tmp_path, "rms", seed, errors)
    write_errors(tmp_path, "rms", 3, [0.9], status=status)
    write_errors(tmp_path, "rms", 4, [0.9, 0.9, 0.4, 0.9], status="diverged")  # after it reached the level
    write_errors(tmp_path, "rms", 5, [0.9], status=status)
    row = time_to_target.table(setting(tmp_path), "test", 0.5).set_index("series").loc["rms"]
    assert (row["runs"], row["reached"], row["diverged"]) == (6, 4, 2 * diverged)
    assert row["steps"] == steps


def steps_to(times: Sequence[Sequence[float]]) -> pd.DataFrame:
    """Return the table of series whose runs reach the level after these steps; inf: never."""
    of_all = {"status": "finished", "evaluation": None, "target_split": "test", "target_metric": "error"}
    of_all |= {"target_mode": "min", "target_selection": "test"}
    rows = [(f"{series}/{run}", str(series), step) for series, own in enumerate(times) for run, step in enumerate(own)]
    runs = pd.DataFrame(rows, columns=["folder", "series", "step"]).assign(**of_all)
    metrics = runs[np.isfinite(runs["step"])].assign(split="test", error=0.4)
    return time_to_target.table(Records(runs, metrics, []), "test", 0.5)[["steps", "steps_low", "steps_high"]]


def test_the_median_of_steps_has_an_interval_from_six_runs_on() -> None:
    times: list[list[float]] = [[7], [3, 1, 9], [4, 2, 8, 2], [100, 200, math.inf], [100, math.inf], [1, 2, 3, 4, 5]]
    table = steps_to([*times, [1, 2, 3, 4, 5, 6], [3] * 6, [2, 3, 4, 5, 6, 7, 8, math.inf]])
    assert table["steps"].tolist()[:-3] == list(map(np.median, times))
    assert table["steps_low"][:-3].isna().all()
    assert table.iloc[-3:, 1:].to_numpy().tolist() == [[1, 6], [3, 3], [2, math.inf]]


@pytest.mark.parametrize("runs", [6, 10, 16])
def test_intervals_of_steps_hold_the_median(runs: int) -> None:
    generator = np.random.default_rng(runs)
    times = np.ceil(20 * generator.lognormal(0, 0.4, (200, runs)))  # the median is 20; evaluations are at whole steps
    found = steps_to(np.where(times <= 26, times, math.inf).tolist())
    assert ((found["steps_low"] <= 20) & (found["steps_high"] >= 20)).mean() >= 0.94


@pytest.mark.parametrize("errors", [[0.5], [0.3, 0.5]])
def test_without_an_improvement_of_the_baseline_there_is_no_level(tmp_path: Path, errors: list[float]) -> None:
    write_errors(tmp_path, "ln", 0, errors)
    write_errors(tmp_path, "rms", 0, [0.9, 0.1][-len(errors) :])
    assert time_to_target.level(setting(tmp_path)) is None


def write_losses(root: Path, series: str, slope: float, **run: object) -> None:
    """Write a run of 200 steps whose training loss is ``10 - slope * step``, with a training row every 10 steps."""
    folder = write_run(root, series, steps=200, **run)
    rows = [training(step, 10 - slope * step, 0.1) for step in range(10, 201, 10)]
    write_rows(folder, [*rows, evaluated(200, 0.5)])


def test_the_loss_of_other_norms_is_that_of_the_same_step(tmp_path: Path) -> None:
    write_losses(tmp_path, "none", 0.02)
    assert versus_paper.figure_1(setting(tmp_path)) == []
    write_losses(tmp_path, "ln", 0.02)
    write_losses(tmp_path, "rms", 0.03, contention="disturbed")
    sentence, _ = versus_paper.figure_1(setting(tmp_path))
    # losses are means of the rows at steps 190 and 200, since the trailing window has 20 steps
    assert sentence.startswith("Training loss after 200 steps: LayerNorm 6.100; no norm 6.1")
    assert "RMSNorm 4.15" in sentence
    shorter = write_run(tmp_path, "rms", seed=1, steps=200)
    write_rows(shorter, [training(step, 9.0, 0.1) for step in range(10, 191, 10)])
    sentences = versus_paper.figure_1(setting(tmp_path))
    assert sentences[0] == sentence
    assert "RMSNorm 1" in sentences[1]


def test_a_run_of_the_baseline_that_has_just_begun_does_not_shorten_the_others(tmp_path: Path) -> None:
    write_losses(tmp_path, "ln", 0.02)
    short = write_run(tmp_path, "rms", steps=200)
    write_rows(short, [training(step, 10 - 0.02 * step, 0.2) for step in (2, 4)])
    assert versus_paper.figure_1(setting(tmp_path)) == []
    write_losses(tmp_path, "wn", 0.02)
    write_rows(write_run(tmp_path, "ln", seed=1, steps=200), [training(step, 9.9, 0.2) for step in (2, 4)])
    assert versus_paper.figure_1(setting(tmp_path))[0].startswith("Training loss after 200 steps: LayerNorm 6.100; ")


def test_runs_on_several_data_sets_have_no_differences(tmp_path: Path) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.11], dataset=CIFAR10)
    write_errors(tmp_path, "ln", 1, [0.9, 0.11])
    assert versus_paper.table(setting(tmp_path))["difference"].isna().all()


def test_a_second_test_set_is_compared_with_its_own_number(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "bleu", "mode": "max", "selection": "valid"}
    folder = write_run(tmp_path, "rms", steps=100, task="rnnsearch", target=target)
    splits = {"valid": 20.0, "test": 22.0, "test2017": 24.0}
    write_rows(folder, [training(100, 1.0, 0.1) | {"split": split, "bleu": bleu} for split, bleu in splits.items()])
    table = versus_paper.table(load(tmp_path))
    assert table.groupby("data")["value"].first().to_dict() == {"newstest2014": 22.0, "newstest2017": 24.0}
    assert set(table["framework"]) == {"TensorFlow Nematus", "Theano Nematus", "PyTorch"}


def test_validation_scores_are_not_set_against_test_numbers(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    folder = write_run(tmp_path, "ln", steps=100, target=target, dataset=CIFAR10, evaluation="validation")
    write_rows(folder, [training(step, 1.0, 0.1) | {"split": "valid", "error": 0.2} for step in range(1, 101)])
    records = setting(tmp_path)
    assert statistics.target(records).split == "valid"
    assert versus_paper.table(records).empty


def test_each_implementation_is_compared_with_its_own_ln(tmp_path: Path) -> None:
    for series, error in {"ln": 0.3, "rms": 0.2, "ln+impl=fused": 0.5, "rms+impl=fused": 0.6}.items():
        write_errors(tmp_path, series, 0, [0.9, error])
    table = seed_tests.table(setting(tmp_path)).set_index("series")["difference"]
    assert table.to_dict() == pytest.approx({"rms": -0.1, "rms+impl=fused": 0.1})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    Campaign().write(root)
    return root


def of(folder: str, split: str) -> list[float]:
    rows, _ = record.RunFolder(Path(folder)).read_metrics()
    return [row["error"] for row in rows if row["split"] == split]


def test_the_result_is_the_mean_of_the_last_three_evaluations(results: Path) -> None:
    scored = load(results).select("cifar10", SCORED)
    values = statistics.headline_metric(scored, statistics.common_step(scored))
    assert len(values) == 16
    for folder, value in values.items():
        assert value == pytest.approx(sum(of(str(folder), "test")) / 3)
    assert statistics.best_metric(scored, 1000).empty


def test_a_run_without_one_of_the_evaluations_has_no_score(tmp_path: Path) -> None:
    Campaign().write(tmp_path)
    folder = tmp_path / "cifar10" / SCORED / "ln/seed3"
    path = folder / record.METRICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if (row["split"], row["step"]) != ("test", 900)))
    records = load(tmp_path).select("cifar10", SCORED)
    assert str(folder) not in statistics.headline_metric(records, 1000).index


def test_tuning_runs_are_reported_on_validation(results: Path) -> None:
    records = load(results).select("cifar10", TUNING)
    assert statistics.target(records).split == "valid"
    values = statistics.headline_metric(records, statistics.common_step(records))
    folder = str(results / "cifar10" / TUNING / "ln/seed1000")
    assert values[folder] == pytest.approx(sum(of(folder, "valid")) / 3)
