"""The table of our quality beside the paper's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import setting, training, write_errors, write_rows
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records.frames import statistics
from rmsexp.report.tables import versus_paper

CIFAR10 = {"name": "CIFAR-10", "digest": "0", "builtin": False}


def test_our_error_is_compared_with_the_papers_error(tmp_path: Path) -> None:
    for seed, last in enumerate([0.11, 0.13]):
        write_errors(tmp_path, "ln", seed, [0.9, 0.10, last], dataset=CIFAR10)
    write_errors(tmp_path, "nonparametric_ln", 0, [0.9, 0.5, 0.4], dataset=CIFAR10)  # not in the paper
    table = versus_paper.table(setting(tmp_path))
    (row,) = table.to_dict("records")
    assert (row["series"], row["table"], row["paper"]) == ("ln", "Table 10", 0.1049)
    assert row["final_difference"] == pytest.approx(0.12 - 0.1049)
    assert row["best_difference"] == pytest.approx(0.10 - 0.1049)
    text = versus_paper.readable(table, statistics.target(setting(tmp_path))).iloc[0]
    assert text["paper, its own setting"] == "10.49 %"
    assert text["last minus paper (points)"] == "+1.51"


def test_numbers_on_other_data_are_shown_without_differences(tmp_path: Path) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.11])  # on built-in data
    table = versus_paper.table(setting(tmp_path))
    assert table[["final_difference", "best_difference"]].isna().all(axis=None)
    text = versus_paper.readable(table, statistics.target(setting(tmp_path)))
    assert list(text) == ["norm", "paper, its own setting", "last", "best on test", "source"]
    assert text["source"].iloc[0] == "Table 10; Theano (Lasagne); CIFAR-10"


def test_runs_on_several_data_sets_have_no_differences(tmp_path: Path) -> None:
    write_errors(tmp_path, "ln", 0, [0.9, 0.11], dataset=CIFAR10)
    write_errors(tmp_path, "ln", 1, [0.9, 0.11])
    assert versus_paper.table(setting(tmp_path))["final_difference"].isna().all()


def test_a_second_test_set_is_compared_with_its_own_number(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "bleu", "mode": "max", "selection": "valid"}
    folder = write_run(tmp_path, "rms", steps=100, task="rnnsearch", target=target)
    splits = {"valid": 20.0, "test": 22.0, "test2017": 24.0}
    write_rows(folder, [training(100, 1.0, 0.1) | {"split": split, "bleu": bleu} for split, bleu in splits.items()])
    table = versus_paper.table(load(tmp_path))
    assert table.groupby("data")["best"].first().to_dict() == {"newstest2014": 22.0, "newstest2017": 24.0}
    assert set(table["framework"]) == {"TensorFlow Nematus", "Theano Nematus", "PyTorch"}


def test_validation_scores_are_not_set_against_test_numbers(tmp_path: Path) -> None:
    target = {"split": "test", "metric": "error", "mode": "min", "selection": "valid"}
    folder = write_run(tmp_path, "ln", steps=100, target=target, dataset=CIFAR10, evaluation="validation")
    write_rows(folder, [training(step, 1.0, 0.1) | {"split": "valid", "error": 0.2} for step in range(1, 101)])
    records = setting(tmp_path)
    assert statistics.target(records).split == "valid"
    assert versus_paper.table(records).empty


def test_runs_with_a_score_have_no_columns_of_the_best_evaluation(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "ln", recipe_steps=1000, dataset=CIFAR10, evaluation="scored")
    write_rows(folder, [training(step, 1.0, 0.1) | {"split": "test", "error": 0.12} for step in range(1, 1001)])
    records = setting(tmp_path)
    text = versus_paper.readable(versus_paper.table(records), statistics.target(records))
    last = statistics.final_label(statistics.target(records))
    assert text[last].tolist() == ["12.00 %"]
    assert list(text) == ["norm", "paper, its own setting", last, f"{last} minus paper (points)", "source"]
