"""One row a series: quality at the common step, time per step, and the saving against LN."""

from __future__ import annotations

import pandas as pd


def markdown(table: pd.DataFrame) -> str:
    """A table of text, cells escaped."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex(table: pd.DataFrame, caption: str) -> str:
    """A LaTeX table (needs booktabs) of a readable one, its text escaped."""
    special = str.maketrans({sign: f"\\{sign}" for sign in "%_&#$"})
    return table.to_latex(index=False, escape=True, caption=caption.translate(special), position="ht")
