"""Compare runs by their records alone. Nothing here imports torch, so a report can be made on a laptop.

A *series* is a norm with the options that were changed, such as "prms+p=0.5". Its runs differ in the seed alone.

The packages, each of which imports only those above it:

records     run and timing records as data frames, their statistics and their caveats
paper       the numbers and curves of the paper, and which of our results they are comparable with
tables      one module per table: ``table`` returns numbers as stored, ``readable`` the text for people
plots       the curves of each chart, and the matplotlib figures
page        the texts of a report: HTML page, Markdown, LaTeX
"""

from __future__ import annotations

from pathlib import Path

from rmsexp.compare.records.load import Records, load

__all__ = ["Records", "draw", "load"]


def draw(results: Path, task: str, setting: str) -> Path:
    """Draw the curves and the summary of one setting and return their folder, ``<setting>/comparison``.

    Raises:
        ValueError: no run of the setting has any metrics.
    """
    from rmsexp.compare import comparison

    folder = results / task / setting
    return comparison.draw(load(folder).select(task, setting), folder)
