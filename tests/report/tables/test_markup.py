"""Tables as CSV and Markdown: text that a spreadsheet or a browser would interpret."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest
from helpers.comparisons import named
from helpers.records import write_run

from rmsexp import compare
from rmsexp.report.tables import markup

FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", '=HYPERLINK("http://x")')


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_looks_like_a_formula_gets_an_apostrophe(text: str) -> None:
    for column in (pd.Series([text, "rms"]), pd.Categorical([text, "rms"])):
        rows = list(
            csv.reader(io.StringIO(markup.csv(pd.DataFrame({"norm": column, "saving": [-0.5, 1.0]})), newline=""))
        )
        assert rows == [["norm", "saving"], [f"'{text}", "-0.5"], ["rms", "1.0"]]


def test_a_carriage_return_does_not_end_a_row() -> None:
    assert markup.csv(pd.DataFrame({"a": ["x\r=1"]})) == "a\nx =1\n"


def test_other_values_are_as_pandas_writes_them() -> None:
    table = pd.DataFrame(
        {
            "a": ["x=1", "1-2", "", None],
            "b": [-1.5, math.nan, math.inf, 1e-9],
            "c": [-1, 2, 3, 4],
            "d": [True, False] * 2,
        }
    )
    assert markup.csv(table) == table.to_csv(index=False)
    assert markup.csv(table[:0]) == table[:0].to_csv(index=False)


def test_html_in_markdown_is_shown_as_text() -> None:
    text = markup.document(["# <script>x</script>", "| <!-- | 1 < 2 |", "p <0.05, <https://x>"])
    assert text == "# &lt;script>x&lt;/script>\n\n| &lt;!-- | 1 < 2 |\n\np <0.05, &lt;https://x>\n"


def test_a_caption_in_latex_is_escaped() -> None:
    text = markup.latex(pd.DataFrame({"a": ["{b}"]}), r"\input{x} 5 % ~ ^")
    caption = r"\caption{\textbackslash{}input\{x\} 5 \% \textasciitilde{} \textasciicircum{}}"
    assert text.splitlines()[1] == caption


@pytest.mark.usefixtures("unwritten_figures")
def test_names_in_somebody_elses_records_run_neither_formulas_nor_html(tmp_path: Path) -> None:
    named(write_run(tmp_path, "first"), "=1+1")
    named(write_run(tmp_path, "second"), "<img src=x onerror=alert(1)>")
    folder = compare.draw(tmp_path, "cifar10", "demo")
    table, text = ((folder / name).read_text() for name in ("summary.csv", "summary.md"))
    assert "'=1" in table
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(table)) for cell in row)
    assert "<img" not in text
    assert "&lt;img src=x" in text
