"""Write a table of text as Markdown and as LaTeX."""

from __future__ import annotations

import pandas as pd


def markdown(table: pd.DataFrame) -> str:
    """Return a Markdown table. In cells, "|" is escaped."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex(table: pd.DataFrame, caption: str) -> str:
    """Return a LaTeX table for the package booktabs, with escaped cells and caption."""
    special = str.maketrans({sign: f"\\{sign}" for sign in "%_&#$"})
    return table.to_latex(index=False, escape=True, caption=caption.translate(special), position="ht")
