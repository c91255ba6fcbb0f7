"""Write tables as CSV, Markdown and LaTeX. Names in them may come from somebody else's records."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

SYMBOLS = str.maketrans(
    {"\N{CHECK MARK}": r"$\checkmark$", "\N{BALLOT X}": r"$\times$"}
)  # LaTeX's usual fonts lack them
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"  # what follows, at most as wide as a line
SPECIAL = str.maketrans(
    {sign: f"\\{sign}" for sign in "%_&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)  # to escape a text for LaTeX
FORMULA = ("=", "+", "-", "@", "\t")  # a spreadsheet takes a cell that begins with one of these for a formula


class Table(NamedTuple):
    """A table of a report.

    Attributes:
        name: the name of its CSV file, without suffix.
        title: its heading in the texts and its caption in LaTeX.
        numbers: its values, for the CSV file.
        readable: its cells as text, for people.
    """

    name: str
    title: str
    numbers: pd.DataFrame
    readable: pd.DataFrame


def markdown(table: pd.DataFrame) -> str:
    """Return a Markdown table. In cells, "|" is escaped."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def document(parts: Iterable[str]) -> str:
    """Return a Markdown text of paragraphs, headings and tables. A browser will show HTML in it as text."""
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", "\n\n".join(parts)) + "\n"


def listed(lines: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def csv(table: pd.DataFrame) -> str:
    """Return a table as CSV. A text that a spreadsheet would run as a formula gets an apostrophe before it.

    Numbers have twelve digits, because those after them depend on the machine that computes them.
    """
    texts = table.select_dtypes(exclude="number")
    table = table.assign(**{str(name): texts[name].map(_no_formula) for name in texts})
    return table.to_csv(index=False, float_format=lambda value: repr(float(f"{value:.12g}")))


def _no_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # pandas would write it as the end of a row
    return f"'{text}" if text.startswith(FORMULA) else text


def latex(table: pd.DataFrame, caption: str) -> str:
    """Return a LaTeX table for the packages booktabs and graphicx, with escaped cells and caption.

    A table that is wider than the line is made as wide as it. Tables with check marks also need the package amssymb.
    """
    text = table.to_latex(index=False, escape=True, caption=caption.translate(SPECIAL), position="ht")
    text = text.replace(r"\begin{tabular}", FIT + r"\begin{tabular}").replace(r"\end{tabular}", r"\end{tabular}}")
    return str(text.translate(SYMBOLS))
