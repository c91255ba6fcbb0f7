"""A readable table as Markdown and as LaTeX."""

from __future__ import annotations

import pandas as pd


def markdown(table: pd.DataFrame) -> str:
    """Return a Markdown table, its cells escaped."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex(table: pd.DataFrame, caption: str) -> str:
    """Return a LaTeX table (needs the package booktabs), its text escaped."""
    special = str.maketrans({sign: f"\\{sign}" for sign in "%_&#$"})
    return table.to_latex(index=False, escape=True, caption=caption.translate(special), position="ht")
