"""The summary as CSV, Markdown and for the terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pandas as pd
from helpers.comparisons import SERIES
from rich.console import Console

from rmsexp.compare.tables import summary as summary_table


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
