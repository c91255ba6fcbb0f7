"""Write tables as CSV and Markdown. Names in them may come from somebody else's records."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t")  # a spreadsheet takes a cell that begins with one of these for a formula


class Table(NamedTuple):
    """A table of a report: its numbers for the CSV file ``name``, without suffix, and its cells as text for people."""

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
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", "\n\n".join(filter(None, parts))) + "\n"


def listed(lines: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def csv(table: pd.DataFrame) -> str:
    """Return a table as CSV. A text that a spreadsheet would run as a formula gets an apostrophe before it.

    Numbers have at most twelve significant digits: further ones would depend on the machine that computes them.
    """
    texts = table.select_dtypes(exclude="number")
    table = table.assign(**{str(name): texts[name].map(_no_formula) for name in texts})
    return table.to_csv(index=False, float_format=lambda value: repr(float(f"{value:.12g}")))


def _no_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # pandas would write it as the end of a row
    return f"'{text}" if text.startswith(FORMULA) else text
