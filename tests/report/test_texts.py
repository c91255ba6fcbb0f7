"""Numbers as text, tables as CSV, Markdown and the files of a comparison.

Also texts that a spreadsheet or browser would interpret.
"""

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest
from helpers.comparisons import SERIES, named, write_setting
from helpers.records import write_run
from rich.console import Console

from rmsexp.compare import draw
from rmsexp.records import record
from rmsexp.report.setting_report import NoMetricsError
from rmsexp.report.tables import formats, markup, summary
from rmsexp.rules.ratios import Interval

FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", '=HYPERLINK("http://x")')


@pytest.mark.parametrize(
    ("value", "text"), [(123456.7, "123457"), (12.3, "12.30"), (0.01234567, "0.01235"), (0.0, "0"), (-2.5, "-2.500")]
)
def test_numbers_have_at_least_four_significant_digits(value: float, text: str) -> None:
    assert formats.four_digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(27.504, "27.5"), (9999.4, "9999"), (9999.6, "10000"), (10240, "10240"), (123456.7, "123457")]
)
def test_steps_and_seconds_have_no_exponent(value: float, text: str) -> None:
    assert formats.without_exponent(value) == text


@pytest.mark.parametrize(
    ("low", "high", "margin", "text"),
    [
        (-0.03, 0.9963, 1.0, "-0.03 to +0.996"),
        (-1.0004, 0.25, 1.0, "-1.0004 to +0.25"),
        (0.0021, 1.0, 1.0, "+0.002 to +1.00"),
        (0.0021, 0.9963, math.nan, "+0.002 to +1.00"),
        (-math.inf, 1e-12, 1.0, "no bound to +0.00"),
    ],
)
def test_ends_of_intervals_are_on_their_side_of_zero_and_margins(
    low: float, high: float, margin: float, text: str
) -> None:
    assert formats.ends(low, high, "error", margin) == text


def test_times_and_savings_have_their_range() -> None:
    assert formats.median_and_range(50, 49, 51.5) == "50.00 (49.00 to 51.50)"
    assert formats.median_and_range(50, 49, 51.5, "1 disturbed") == "50.00 (49.00 to 51.50, 1 disturbed)"
    assert formats.saving(0.2, 0.17, 0.22) == "20.0 % (17.0 to 22.0 %)"
    assert formats.saving(-0.01) == "-1.0 %"
    assert formats.saving(-0.0004, -0.0003, 0.028) == "0.0 % (0.0 to 2.8 %)"
    assert formats.ratio(Interval(0.9, 0.8, 1.0)) == "0.900 (0.800 to 1.000)"
    assert formats.ratio(Interval(0.9, math.nan, math.nan)) == "0.900"


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_looks_like_a_formula_gets_an_apostrophe(text: str) -> None:
    for column in (pd.Series([text, "rms"]), pd.Categorical([text, "rms"])):
        written = markup.csv(pd.DataFrame({"norm": column, "saving": [-0.5, 1.0]}))
        rows = list(csv.reader(io.StringIO(written, newline="")))
        assert rows == [["norm", "saving"], [f"'{text}", "-0.5"], ["rms", "1.0"]]


def test_other_values_are_as_pandas_writes_them() -> None:
    table = pd.DataFrame({"a": ["x=1", "1-2", "", None], "b": [-1.5, math.nan, math.inf, 1e-9], "c": [-1, 2, 3, 4]})
    assert markup.csv(table) == table.to_csv(index=False)
    assert markup.csv(table[:0]) == table[:0].to_csv(index=False)


def test_html_in_markdown_is_shown_as_text() -> None:
    text = markup.document(["# <script>x</script>", "| <!-- | 1 < 2 |", "p <0.05, <https://x>"])
    assert text == "# &lt;script>x&lt;/script>\n\n| &lt;!-- | 1 < 2 |\n\np <0.05, &lt;https://x>\n"


@pytest.mark.usefixtures("unwritten_figures")
def test_names_in_somebody_elses_records_run_neither_formulas_nor_html(tmp_path: Path) -> None:
    named(write_run(tmp_path, "first"), "=1+1")
    named(write_run(tmp_path, "second"), "<img src=x onerror=alert(1)>")
    folder = draw(tmp_path, "cifar10", "demo")
    table, text = ((folder / name).read_text() for name in ("summary.csv", "summary.md"))
    assert "'=1" in table
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(table)) for cell in row)
    assert "<img" not in text
    assert "&lt;img src=x" in text


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with 11 runs of cifar10, demo, and their curves and summary."""
    results = write_setting(tmp_path_factory.mktemp("drawn"))
    draw(results, "cifar10", "demo")
    return results


def test_a_run_may_lack_metrics_but_not_all_runs_of_a_setting(tmp_path: Path, unwritten_figures: list[str]) -> None:
    with pytest.raises(NoMetricsError, match="cifar10/demo"):  # the setting has no folder
        draw(tmp_path, "cifar10", "demo")
    (write_run(tmp_path, "ln") / record.METRICS).unlink()
    with pytest.raises(NoMetricsError) as error:
        draw(tmp_path, "cifar10", "demo")
    assert "\n" not in str(error.value)
    write_run(tmp_path, "rms")
    draw(tmp_path, "cifar10", "demo")
    assert "curves" in unwritten_figures


def test_csv_markdown_and_terminal_show_the_same_numbers(drawn: Path) -> None:
    folder = drawn / "cifar10/demo/comparison"
    written = pd.read_csv(folder / "summary.csv")
    assert written["series"].tolist() == list(SERIES)
    percent = f"{written.loc[2, 'final']:.2%}".removesuffix("%")
    markdown = (folder / "summary.md").read_text()
    assert "| RMSNorm | 2 finished | 400 | " + percent in markdown
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(summary.for_terminal(written))
    assert percent in console.export_text()
