"""The table of each norm's quality at the recipe's learning rate and at the best tried rate."""

from __future__ import annotations

from pathlib import Path

from helpers.comparisons import setting, write_errors

from rmsexp import record
from rmsexp.compare import load
from rmsexp.compare.records import statistics
from rmsexp.compare.tables import learning_rates


def test_each_norm_is_shown_at_its_recipes_rate_and_at_its_best_rate(tmp_path: Path) -> None:
    tried = {"demo": {"ln": 0.30, "rms": 0.25}, "demo+optim.lr=0.01": {"ln": 0.20, "rms": 0.28}}
    for name, errors in tried.items():
        for series, error in errors.items():
            folder = write_errors(tmp_path, series, 0, [0.9, error], setting=name)
            (folder / record.CONFIG).write_text("optim:\n  lr: 0.003\n")
    write_errors(tmp_path, "ln", 0, [0.9, 0.1], setting="demo+optim.lr=0.1", status="diverged")
    settings = load(tmp_path).settings()
    table = learning_rates.table(settings)
    assert len(table) == 5
    text = learning_rates.readable(table, statistics.target(setting(tmp_path))).set_index("norm")
    assert text.loc["LayerNorm"].tolist() == [
        *("0.003", "30.00 %", "0.01 (best of 3 tried, by test error)", "20.00 %", "1")
    ]
    assert text.loc["RMSNorm"].tolist() == [
        *("0.003", "25.00 %", "0.003 (best of 2 tried, by test error)", "25.00 %", "0")
    ]


def test_settings_that_differ_only_in_the_learning_rate_are_one_family() -> None:
    folder = Path("results/cifar10/demo+batch_size=8+optim.lr=0.01+model.width=4")
    assert learning_rates.family(folder) == Path("results/cifar10/demo+batch_size=8+model.width=4")
