"""What is said of a setting in numbers: paired differences, savings, times to a level, Figure 1, rates, p."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.records import write_run
from scipy import stats as scipy_stats

from rmsexp import record
from rmsexp.compare import load
from rmsexp.compare.plots import p_sweep as p_plot
from rmsexp.compare.plots import panels, paper_curves, setting_curves
from rmsexp.compare.plots import savings as savings_plot
from rmsexp.compare.records import curves, statistics, timing_records
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import findings, learning_rates, seed_tests, time_to_target, versus_paper
from rmsexp.compare.tables import p_sweep as p_table
from rmsexp.compare.tables import savings as savings_table
from rmsexp.compare.tables.formats import NO_VALUE


def write_rows(folder: Path, rows: list[record.Row]) -> None:
    (folder / record.METRICS).unlink()
    record.RunFolder(folder).append(rows)


def training(step: int, loss: float, seconds_per_step: float) -> record.Row:
    seconds = {**dict.fromkeys(record.BUCKETS, 0.0), "train": step * seconds_per_step}
    return {"step": step, "split": "train", "loss": loss, "seconds": seconds}


def evaluated(step: int, error: float, seconds_per_step: float = 0.1) -> record.Row:
    return training(step, error, seconds_per_step) | {"split": "test", "error": error}


def write_errors(root: Path, series: str, seed: int, errors: list[float], **run: object) -> Path:
    """A run whose test error at steps 0, 100, … is this."""
    folder = write_run(root, series, seed, steps=100 * (len(errors) - 1), **run)
    write_rows(folder, [evaluated(100 * number, error) for number, error in enumerate(errors)])
    return folder


def setting(root: Path) -> Records:
    return load(root).select("cifar10", "demo")


# against LayerNorm


def test_paired_differences_agree_with_an_independent_computation(tmp_path: Path) -> None:
    ln, rms = [0.30, 0.34, 0.31, 0.36], [0.29, 0.31, 0.32, 0.33]
    for seed, (one, other) in enumerate(zip(ln, rms, strict=True)):
        write_errors(tmp_path, "ln", seed, [0.9, one])
        write_errors(tmp_path, "rms", seed, [0.9, other])
    write_errors(tmp_path, "rms", 9, [0.9, 0.0])  # no LN of this seed
    (row,) = seed_tests.table(setting(tmp_path)).to_dict("records")
    difference = np.array(rms) - np.array(ln)
    test = scipy_stats.ttest_1samp(difference, 0)
    low, high = test.confidence_interval(0.95)
    assert (row["series"], row["n"]) == ("rms", 4)
    assert row["difference"] == pytest.approx(difference.mean())
    assert row["interval"] == pytest.approx((high - low) / 2)
    assert row["p"] == pytest.approx(test.pvalue)
    shown = seed_tests.readable(seed_tests.table(setting(tmp_path))).iloc[0].tolist()
    assert shown == ["RMSNorm", "4", "-1.5 ± 3", f"{test.pvalue:.3g}"]


@pytest.mark.parametrize(("seeds", "reason"), [(1, "fewer than 3 common seeds"), (2, "fewer"), (3, "are equal")])
def test_no_test_with_few_seeds_or_one_difference(tmp_path: Path, seeds: int, reason: str) -> None:
    for seed in range(seeds):
        write_errors(tmp_path, "ln", seed, [0.9, 0.3 + seed / 100])
        write_errors(tmp_path, "rms", seed, [0.9, 0.2 + seed / 100])
    table = seed_tests.table(setting(tmp_path))
    assert table["difference"].tolist() == pytest.approx([-0.1])
    assert math.isnan(table["p"].iloc[0])
    shown = seed_tests.readable(table).iloc[0]
    assert shown["common seeds"] == str(seeds)
    assert "no test" in shown["p, paired t-test"]
    assert reason in shown["p, paired t-test"]


def test_each_implementation_is_set_against_its_own_ln(tmp_path: Path) -> None:
    for series, error in {"ln": 0.3, "rms": 0.2, "ln+impl=fused": 0.5, "rms+impl=fused": 0.6}.items():
        write_errors(tmp_path, series, 0, [0.9, error])
    table = seed_tests.table(setting(tmp_path)).set_index("series")["difference"]
    assert table.to_dict() == pytest.approx({"rms": -0.1, "rms+impl=fused": 0.1})


# the paper's numbers


def test_our_error_beside_the_paper_s(tmp_path: Path) -> None:
    for seed, last in enumerate([0.11, 0.13]):
        write_errors(tmp_path, "ln", seed, [0.9, 0.10, last])
    write_errors(tmp_path, "nonparametric_ln", 0, [0.9, 0.5, 0.4])  # not in the paper
    table = versus_paper.table(setting(tmp_path))
    (row,) = table.to_dict("records")
    assert (row["series"], row["table"], row["paper"]) == ("ln", "Table 10", 0.1049)
    assert row["final_difference"] == pytest.approx(0.12 - 0.1049)
    assert row["best_difference"] == pytest.approx(0.10 - 0.1049)
    shown = versus_paper.readable(table, statistics.target(setting(tmp_path))).iloc[0]
    assert shown["paper, its own setting"] == "10.49 %"
    assert shown["last minus paper (points)"] == "+1.51"


def test_a_second_test_set_has_its_own_number(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "bleu", "mode": "max", "selection": "valid"}
    folder = write_run(tmp_path, "rms", steps=100, task="rnnsearch", target=target)
    splits = {"valid": 20.0, "test": 22.0, "test2017": 24.0}
    write_rows(folder, [training(100, 1.0, 0.1) | {"split": split, "bleu": bleu} for split, bleu in splits.items()])
    table = versus_paper.table(load(tmp_path))
    assert table.groupby("data")["best"].first().to_dict() == {"newstest2014": 22.0, "newstest2017": 24.0}
    assert set(table["framework"]) == {"TensorFlow Nematus", "Theano Nematus", "PyTorch"}


@pytest.mark.parametrize(("setting", "count"), [("paper", 2), ("demo", 0), ("paper+optim.lr=0.1", 0)])
def test_the_paper_s_losses_lie_over_ours_in_its_own_setting(tmp_path: Path, setting: str, count: int) -> None:
    write_run(tmp_path, "ln", task="rnnsearch", setting=setting)
    by_step, by_time = setting_curves.draw(load(tmp_path), [panels.Quantity("train", "loss")]).axes
    over = [line for line in by_step.lines if "(paper)" in str(line.get_label())]
    assert len(over) == count
    assert all(line.is_dashed() for line in over)
    assert not any("(paper)" in str(line.get_label()) for line in by_time.lines)


def test_the_paper_s_curves_are_figures_of_their_own() -> None:
    drawn = paper_curves.figures("rnnsearch")
    assert list(drawn) == ["Figure 1", "Figure 4"]
    steps, minutes = drawn["Figure 1"].axes
    assert (steps.get_xlabel(), minutes.get_xlabel()) == ("step", "time in training (minutes)")
    assert [len(axes.lines) for axes in (steps, minutes)] == [2, 2]
    assert all(line.is_dashed() for line in steps.lines)
    assert paper_curves.figures("cifar10") == {}


# time


def timings(**changes: object) -> pd.DataFrame:
    """A record of LN and RMSNorm: 20 % less time."""
    shared = dict.fromkeys(timing_records.COLUMNS) | {
        "folder": "x",
        "task": "cifar10",
        "setting": "demo",
        "kind": "steps",
    }
    shared |= {"impl": "eager", "reference": "ln", "rounds": 30, "time_state": "clear", "started": "2026", **changes}
    times = {"median_seconds_per_1k_steps": 50.0, "q25": 49.0, "q75": 52.0}
    ln = {"series": "ln", "norm": "ln", "ratio": 1.0, "low": 1.0, "high": 1.0}
    rms = {"series": "rms", "norm": "rms", "ratio": 0.8, "low": 0.78, "high": 0.83}
    return pd.DataFrame([shared | times | one for one in (ln, rms)], columns=list(timing_records.COLUMNS))


def test_a_timing_record_replaces_unpaired_savings(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    unpaired = savings_table.table(setting(tmp_path), timings().iloc[:0]).set_index("series")
    assert unpaired["kind"].to_dict() == {"ln": "reference", "rms": "unpaired", "wn": "unpaired"}
    assert unpaired.loc["rms", "saving"] == pytest.approx(0.5)
    table = savings_table.table(setting(tmp_path), timings()).set_index("series")
    assert table["kind"].to_dict() == {"ln": "reference", "rms": "paired", "wn": "unpaired"}
    assert table.loc["rms", ["saving", "low", "high"]].tolist() == pytest.approx([0.2, 0.17, 0.22])
    assert table.loc["rms", "seconds_per_1k_steps"] == 50
    shown = savings_table.readable(table.reset_index(), "cifar10").set_index("norm")
    assert shown.loc["RMSNorm", "saving vs LayerNorm"] == "20.0 % (17.0 to 22.0 %), paired, 30 rounds"
    assert shown.loc["RMSNorm", "saving, paper"] == "20.5 % (Theano (Lasagne), Table 10)"
    assert shown.loc["WeightNorm", "saving vs LayerNorm"] == "25.0 %, unpaired"


def test_a_timing_record_against_another_norm_says_nothing_of_ln(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    table = savings_table.table(setting(tmp_path), timings(reference="none"))
    assert table[["series", "kind", "note"]].to_numpy().tolist() == [["rms", "unknown", "no LN run of this impl"]]


def test_paired_savings_are_filled_and_unpaired_ones_hollow(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    table = savings_table.table(setting(tmp_path), timings())
    (axes,) = savings_plot.draw(table, "cifar10", "title", ["note"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["WeightNorm", "RMSNorm"]
    ours = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_fillstyle() for line in ours] == ["none", "full"]
    assert [float(line.get_xdata()[0]) for line in ours] == pytest.approx([25.0, 20.0])
    (paired,) = axes.containers
    assert paired[2][0].get_segments()[0][:, 0] == pytest.approx([17.0, 22.0])
    (paper,) = [line for line in axes.lines if line.get_label() == "paper, Theano (Lasagne)"]
    assert list(paper.get_xdata()) == pytest.approx([20.5])


def test_runs_of_different_pace_are_averaged_at_the_same_time() -> None:
    slow = np.array([0.0, 10.0, 20.0]), np.array([4.0, 2.0, 0.0])
    quick = np.array([0.0, 4.0, 8.0, 12.0]), np.array([4.0, 3.0, 2.0, 1.0])
    mean = curves.mean_curve([slow, quick]).set_index("x")["mean"]
    assert mean.index.tolist() == [0, 4, 8, 10, 12]  # as far as both go
    expected = [(4 - 0.2 * time + 4 - 0.25 * time) / 2 for time in mean.index]
    assert mean.tolist() == pytest.approx(expected)


def test_steps_and_seconds_to_a_level(tmp_path: Path) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.5, 0.4, 0.4])
    write_errors(tmp_path, "rms", 0, [0.9, 0.44, 0.5, 0.3])
    write_errors(tmp_path, "rms", 1, [0.9, 0.6, 0.6, 0.45], contention="contended")
    write_errors(tmp_path, "wn", 0, [0.9, 0.8, 0.8, 0.8])
    goal = time_to_target.level(setting(tmp_path))
    assert goal is not None
    assert goal.value == pytest.approx(0.9 - 0.9 * 0.5)
    assert time_to_target.title(goal).startswith("Time until test error is 45.00 % (90 % of the way to LayerNorm's")
    table = time_to_target.table(setting(tmp_path), goal).set_index("series")
    assert table["reached"].to_dict() == {"ln": 1, "rms": 2, "wn": 0}
    assert table.loc["ln", ["steps", "seconds"]].tolist() == pytest.approx([200, 20])
    assert table.loc["rms", ["steps", "seconds", "timed"]].tolist() == pytest.approx([200, 10, 1])
    shown = time_to_target.readable(table.reset_index()).set_index("norm")
    assert shown.loc["WeightNorm"].tolist() == ["0 of 1", NO_VALUE, NO_VALUE]


def test_without_ln_the_worst_norm_sets_the_level(tmp_path: Path) -> None:
    write_errors(tmp_path, "rms", 0, [0.9, 0.3])
    write_errors(tmp_path, "wn", 0, [0.8, 0.6])
    goal = time_to_target.level(setting(tmp_path))
    assert goal is not None
    assert goal.value == pytest.approx(0.8 - 0.9 * 0.2)
    assert "WeightNorm" in goal.source


# the sentence of Figure 1


def write_losses(root: Path, series: str, slope: float, seconds_per_step: float, **run: object) -> None:
    """Training loss falls by ``slope`` a step from 10, in rows of 10 steps; 200 steps."""
    folder = write_run(root, series, steps=200, **run)
    rows = [training(step, 10 - slope * step, seconds_per_step) for step in range(10, 201, 10)]
    write_rows(folder, [*rows, evaluated(200, 0.5)])


def test_the_sentence_of_figure_1_is_computed(tmp_path: Path) -> None:
    write_losses(tmp_path, "none", 0.01, 0.1)
    write_losses(tmp_path, "ln", 0.02, 0.2)
    write_losses(tmp_path, "rms", 0.02, 0.05)
    sentence, how = findings.figure_1(setting(tmp_path))
    # the mean of the rows at 190 and 200: a trailing window of 20 steps
    assert sentence == (
        "When the model without norm reaches training loss 8.050 (at step 200, 20 seconds), "
        "LayerNorm is at 6.100 after the same steps and at 8.100 after the same time; "
        "RMSNorm is at 6.100 after the same steps and at its end before that time (10 seconds)."
    )
    assert "trailing mean over 10 % of the baseline's steps" in how
    assert "unpaired" in how


@pytest.mark.parametrize(("baseline", "reason"), [("diverged", "diverged or failed"), (None, "is missing")])
def test_ln_is_the_baseline_where_no_norm_did_not_train(tmp_path: Path, baseline: str | None, reason: str) -> None:
    if baseline:
        write_losses(tmp_path, "none", 0.01, 0.1, status=baseline)
    write_losses(tmp_path, "ln", 0.02, 0.2)
    write_losses(tmp_path, "rms", 0.03, 0.1, contention="contended")
    sentence, how = findings.figure_1(setting(tmp_path))
    assert sentence.startswith(
        "When LayerNorm reaches training loss 6.100 (at step 200, 40 seconds), RMSNorm is at 4.150"
    )
    assert f"LayerNorm is the baseline, since the model without norm {reason}" in how
    assert "times of RMSNorm are used although they do not count" in how


def test_nothing_is_claimed_of_one_norm(tmp_path: Path) -> None:
    write_losses(tmp_path, "rms", 0.02, 0.1)
    assert findings.figure_1(setting(tmp_path)) == []


# learning rates


def test_each_norm_at_its_recipe_s_rate_and_at_the_best(tmp_path: Path) -> None:
    tried = {"demo": {"ln": 0.30, "rms": 0.25}, "demo+optim.lr=0.01": {"ln": 0.20, "rms": 0.28}}
    for name, errors in tried.items():
        for series, error in errors.items():
            folder = write_errors(tmp_path, series, 0, [0.9, error], setting=name)
            (folder / record.CONFIG).write_text("optim:\n  lr: 0.003\n")
    write_errors(tmp_path, "ln", 0, [0.9, 0.1], setting="demo+optim.lr=0.1", status="diverged")
    settings = load(tmp_path).settings()
    table = learning_rates.table(settings)
    assert len(table) == 5
    shown = learning_rates.readable(table, statistics.target(setting(tmp_path))).set_index("norm")
    assert shown.loc["LayerNorm"].tolist() == [
        *("0.003", "30.00 %", "0.01 (best of 3 tried, by test error)", "20.00 %", "1")
    ]
    assert shown.loc["RMSNorm"].tolist() == [
        *("0.003", "25.00 %", "0.003 (best of 2 tried, by test error)", "25.00 %", "0")
    ]


def test_settings_that_differ_in_their_rate_alone_are_one_family() -> None:
    folder = Path("results/cifar10/demo+batch_size=8+optim.lr=0.01+model.width=4")
    assert learning_rates.family(folder) == Path("results/cifar10/demo+batch_size=8+model.width=4")


# p


def test_p_is_read_from_the_name_or_the_config(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    write_run(tmp_path, "prms+p=0.5", seconds_per_step=0.2)
    write_run(tmp_path, "prms+eps=0.1+p=0.5")  # differs in more than p
    write_run(tmp_path, "ln")
    (write_run(tmp_path, "prms") / record.CONFIG).write_text("norm:\n  p: 0.0625\n")
    write_run(tmp_path, "prms", 1)  # without a config its p is not known
    table = p_table.table(load(tmp_path), "cifar10", "demo")
    assert list(table) == p_table.COLUMNS
    assert table[["series", "p", "seed"]].to_numpy().tolist() == [
        ["prms", 0.0625, 0],
        ["prms+p=0.5", 0.5, 0],
        ["rms", 1.0, 0],
    ]
    assert table["seconds_per_1k_steps"].tolist() == pytest.approx([100, 200, 100])
    errors = load(tmp_path).metrics.query("split == 'test' and step == 400").set_index("series")["error"]
    assert table["final"].tolist() == pytest.approx([errors["prms"].iloc[0], errors["prms+p=0.5"], errors["rms"]])


def test_quality_and_time_against_p_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    for p in ("0.1", "0.5"):
        for seed in range(2):
            write_run(tmp_path, f"prms+p={p}", seed, contention="contended" if seed else "clear")
    table = p_table.table(load(tmp_path), "cifar10", "demo")
    quality, time = p_plot.draw(table, statistics.target(load(tmp_path)), "title").axes
    assert (quality.get_ylabel(), time.get_ylabel()) == ("test error (%), last", "seconds per 1k steps")
    (mean,) = [line for line in quality.lines if line.get_label() == "pRMSNorm"]
    expected = table[table["series"] != "rms"].groupby("p")["final"].mean() * 100
    assert mean.get_xdata().tolist() == [10, 50]
    assert mean.get_ydata().tolist() == pytest.approx(expected.tolist())
    hollow = [line for line in time.lines if line.get_fillstyle() == "none" and line.get_marker() == "o"]
    assert sum(len(line.get_xdata()) for line in hollow) == 2


# curves


@pytest.mark.parametrize("count", [3, 10, 11, 1000, 12_345])
def test_thinning_keeps_ends_and_extremes(count: int) -> None:
    values = np.sin(np.arange(count) * 1.7) + np.arange(count) / count
    values[count // 3] = 9.0
    kept = curves.thinned(values, 10)
    assert len(kept) <= 10
    assert (np.diff(kept) > 0).all()
    assert {0, count - 1, count // 3} <= set(kept.tolist())


def test_curves_of_all_runs_leave_gaps_out() -> None:
    rows = pd.DataFrame({"folder": ["a", "b", "a", "c"], "step": [1, 1, 2, 1], "loss": [3.0, 4.0, 5.0, math.nan]})
    found = curves.curves(rows, "step", "loss")
    assert {folder: (x.tolist(), y.tolist()) for folder, (x, y) in found.items()} == {
        "a": ([1, 2], [3, 5]),
        "b": ([1], [4]),
    }
