"""The result of an analysis, and how it is written and printed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rich
from matplotlib.figure import Figure
from rich import box
from rich import table as rich_table

from rmsexp.report.plots import canvas
from rmsexp.report.tables import markup
from rmsexp.report.tables.markup import Table
from rmsexp.system import atomic

HEADING_WIDTH = 9  # characters to which column headings are wrapped


@dataclass(frozen=True)
class Finding:
    """The result of an analysis: tables, and figures by name.

    The name of a table or figure is a path below the output folder, or a whole path, without the suffix. ``remarks``
    are lines that are printed at the end. ``contradictions``: a line for each result that contradicts the paper.
    """

    tables: Sequence[Table]
    figures: Mapping[str, Figure]
    remarks: Sequence[str] = ()
    contradictions: Sequence[str] = ()

    def publish(self, out: Path) -> None:
        """Write figures (PNG, SVG) and tables (CSV) below ``out``, and print tables, paths and remarks.

        Raises: OSError if a file cannot be written.
        """
        for table in self.tables:
            path = out / f"{table.name}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_atomic(path, markup.csv(table.numbers))
            print(table.title)
            printable = rich_table.Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
            for column in table.readable:  # headings are wrapped, also at hyphens, to make tables narrow
                printable.add_column(textwrap.fill(str(column), HEADING_WIDTH, break_long_words=False))
            for row in table.readable.to_numpy().tolist():
                printable.add_row(*row)
            rich.print(printable)
            print(f"written {path}")
        for name, figure in self.figures.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            canvas.write(figure, out / name)
            print(f"written {out / name}.png and .svg")
        for line in self.remarks:
            print(line)


def captioned(title: str, caption: str, width: float, height: float) -> Figure:
    """Return an empty figure with a title above and a caption below. ``width`` and ``height`` are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold")
    figure.supxlabel(textwrap.fill(caption, int(width * 14)), x=0.01, ha="left", size=8.5, color="#444444")
    return figure
