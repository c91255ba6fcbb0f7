"""The summary as CSV, Markdown and for the terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from helpers.comparisons import SERIES, setting, write_errors
from helpers.records import write_run
from rich.console import Console

from rmsexp.records import record
from rmsexp.report.tables import formats
from rmsexp.report.tables import summary as summary_table
from rmsexp.system import atomic, readers


def test_csv_markdown_and_terminal_show_the_same_numbers(drawn: Path) -> None:
    folder = drawn / "cifar10/demo/comparison"
    written = pd.read_csv(folder / "summary.csv")
    assert written["series"].tolist() == list(SERIES)
    percent = f"{written.loc[2, 'final']:.2%}".removesuffix("%")
    markdown = (folder / "summary.md").read_text()
    assert "| RMSNorm | 2 finished | 400 | " + percent in markdown
    console = Console(file=StringIO(), width=200, record=True)
    console.print(summary_table.for_terminal(written))
    assert percent in console.export_text()


def of_ln(root: Path) -> tuple[pd.Series, str]:
    """Return the row of LN, as numbers, and its quality as text."""
    table = summary_table.table(setting(root))
    return table.iloc[0], summary_table.readable(table).iloc[0, 3]


@pytest.mark.parametrize(("contention", "remark"), [("clear", ""), ("contended", " (1 contended)")])
def test_predictions_per_second_are_those_of_a_step_over_its_time(tmp_path: Path, contention: str, remark: str) -> None:
    """Of runs that recorded their number: the steps of older rows do not count."""
    for seed, series in enumerate(("ln", "rms")):
        folder = write_run(tmp_path, series, seed, steps=400, contention=contention)
        rows, _ = record.RunFolder(folder).read_metrics()
        training = [row for row in rows if row["split"] == "train"]
        assert len(training) > 2
        for row, before in zip(training[1:], training, strict=False):
            row["predictions"] = 32 * (row["step"] - before["step"])
        if series == "rms":
            (folder / record.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
            atomic.write_json(folder / record.RUN, readers.read_json(folder / record.RUN) | {"predictions": "tokens"})
    table = summary_table.table(setting(tmp_path)).set_index("series")
    expected = 32_000 / table.loc["rms", "seconds_per_1k_steps"]
    assert table.loc["rms", "predictions_per_second"] == pytest.approx(expected)
    shown = summary_table.readable(table.reset_index())["tokens per second"]
    assert shown.tolist() == [formats.NO_VALUE, f"{expected:,.0f}{remark}"]


def test_the_mean_is_beside_the_median_and_counts_the_runs_that_it_leaves_out(tmp_path: Path) -> None:
    for seed, error in enumerate([0.2, 0.3, 0.9]):  # the last one blew up without diverging
        write_errors(tmp_path, "ln", seed, [0.9, error])
    row, text = of_ln(tmp_path)
    assert (row["final_n"], row["seeds"], row["final_median"]) == (3, 3, pytest.approx(0.3))
    assert text == "46.67 ± 94 (sd 38, median 30.00) %"
    write_errors(tmp_path, "ln", 3, [0.9, 0.1], status="diverged")
    write_errors(tmp_path, "ln", 4, [0.9, 0.1], status="failed")
    row, text = of_ln(tmp_path)
    assert [row[name] for name in ("final_n", "seeds", "diverged", "failed")] == [3, 5, 1, 1]
    assert row["final_median"] == pytest.approx(0.6)  # of 0.2, 0.3, 0.9 and a diverged run
    assert text == "46.67 ± 94 (sd 38, median 60.00, 3 of 5 runs) %"
