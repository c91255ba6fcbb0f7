"""The table of each norm's quality at the recipe's learning rate and at the best tried rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from helpers.comparisons import setting, write_errors

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import statistics
from rmsexp.report.tables import learning_rates

FROM = "(from the seeds that chose the rate)"


def ranked(root: Path, errors: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Return the table, by rate, of runs with LayerNorm that end at these errors, by setting and seed."""
    for name, of_seeds in errors.items():
        for seed, error in enumerate(of_seeds):
            write_errors(root, "ln", seed, [0.9, error], setting=name)
    return learning_rates.table(load(root).settings()).set_index("rate")


def test_each_norm_is_shown_at_its_recipes_rate_and_at_its_best_rate(tmp_path: Path) -> None:
    tried = {"demo": {"ln": 0.30, "rms": 0.25}, "demo+optim.lr=0.01": {"ln": 0.20, "rms": 0.28}}
    for name, errors in tried.items():
        for series, error in errors.items():
            folder = write_errors(tmp_path, series, 0, [0.9, error], setting=name)
            (folder / record.CONFIG).write_text(f"optim:\n  lr: {0.003 if name == 'demo' else 0.01}\n")
    write_errors(tmp_path, "ln", 0, [0.9, 0.1], setting="demo+optim.lr=0.1", status="diverged")
    settings = load(tmp_path).settings()
    table = learning_rates.table(settings)
    assert len(table) == 5
    text = learning_rates.readable(table, statistics.target(setting(tmp_path))).set_index("norm")
    assert text.loc["LayerNorm"].tolist() == [
        *("0.003", "30.00 %", "0.01 (best of 3 tried, by test error)", f"20.00 % {FROM}", "1", "1")
    ]
    assert text.loc["RMSNorm"].tolist() == [
        *("0.003", "25.00 %", "0.003 (best of 2 tried, by test error)", f"25.00 % {FROM}", "0", "0")
    ]


def test_the_rate_is_read_from_the_config_where_the_name_of_the_setting_is_cut(tmp_path: Path) -> None:
    folder = write_errors(tmp_path, "ln", 0, [0.9, 0.3], setting="demo+optim.lr=0.00+1a2b3c4d")
    (folder / record.CONFIG).write_text("optim:\n  lr: 0.0005\n")
    assert learning_rates.table(load(tmp_path).settings())["rate"].tolist() == [0.0005]


def test_a_rate_at_which_a_run_diverged_ranks_behind_the_others(tmp_path: Path) -> None:
    errors = {"demo": [0.3, 0.5, 0.4], "demo+optim.lr=0.01": [0.35, 0.45, 0.41], "demo+optim.lr=0.1": [0.1, None, None]}
    for name, of_seeds in errors.items():
        for seed, error in enumerate(of_seeds):
            lost = {"status": "diverged" if error is None else "finished"}
            write_errors(tmp_path, "ln", seed, [0.9, error or 0.2], setting=name, **lost)
    table = learning_rates.table(load(tmp_path).settings()).set_index("rate")
    assert table["rank"].tolist() == [1, 2, 3]
    assert table["diverged"].tolist() == [0, 0, 2]
    assert table["chosen_by"].idxmin() == 0.1
    text = learning_rates.readable(table.reset_index(), statistics.target(setting(tmp_path))).iloc[0]
    assert text["best rate"] == "the recipe's (best of 3 tried, by test error)"
    assert text["number of rates at which a run diverged"] == "1"
    assert text["number of rates at which every run diverged or failed"] == "0"


def test_a_rate_with_few_seeds_ranks_behind_the_rates_with_enough(tmp_path: Path) -> None:
    errors = {"demo": [0.3, 0.32, 0.31], "demo+optim.lr=0.01": [0.35] * 4, "demo+optim.lr=0.1": [0.1]}
    table = ranked(tmp_path, errors)
    assert table["rank"].tolist() == [1, 2, 3]
    text = learning_rates.readable(table.reset_index(), statistics.target(setting(tmp_path))).iloc[0]
    assert text["best rate"] == "the recipe's (best of 2 with 3 seeds or more, of 3 tried, by test error)"
    assert text["test error at the recipe's rate"].endswith("(3 seeds) %")


def test_settings_that_differ_only_in_the_learning_rate_are_one_family() -> None:
    folder = Path("results/cifar10/demo+batch_size=8+optim.lr=0.01+model.width=4")
    assert learning_rates.family(folder) == Path("results/cifar10/demo+batch_size=8+model.width=4")


def test_where_no_rate_has_enough_seeds_all_rank_alike(tmp_path: Path) -> None:
    """A second seed at the recipe's rate, such as that of a pilot, does not make it the best."""
    table = ranked(tmp_path, {"demo": [0.3, 0.32], "demo+optim.lr=0.01": [0.2], "demo+optim.lr=0.1": [0.4]})
    assert table["rank"].tolist() == [2, 1, 3]
    text = learning_rates.readable(table.reset_index(), statistics.target(setting(tmp_path))).iloc[0]
    assert text["best rate"] == "0.01 (best of 3 tried, by test error)"
