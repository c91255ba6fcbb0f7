"""The result of an analysis, and how it is written and printed."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich
from rich import box
from rich import table as rich_table

from rmsexp.report.tables import markup
from rmsexp.report.tables.markup import Table
from rmsexp.system import atomic

HEADING_WIDTH = 9  # characters to which column headings are wrapped


@dataclass(frozen=True)
class Finding:
    """The result of an analysis: tables.

    The name of a table is its path without the suffix, absolute or below the output folder. ``contradictions``: a line
    for each result that contradicts the paper.
    """

    tables: Sequence[Table]
    contradictions: Sequence[str] = ()

    def publish(self, out: Path) -> None:
        """Write the tables (CSV) below ``out``, and print tables and paths.

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
