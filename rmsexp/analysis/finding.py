"""What an analysis finds, and how it is written and printed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import rich
from matplotlib.figure import Figure
from rich import box, table

from rmsexp import record
from rmsexp.compare import Records, load
from rmsexp.compare.plots import canvas

HEAD = 9  # characters


class Table(NamedTuple):
    """``values`` are written as ``<name>.csv``; ``shown``, all text, is what a person reads on the terminal.

    ``folder``: where the file goes if not into that of the output.
    """

    name: str
    title: str
    values: pd.DataFrame
    shown: pd.DataFrame
    folder: Path | None = None


@dataclass(frozen=True)
class Finding:
    """Tables, and figures by their files' names; names are paths below the output's folder, without the end.

    ``remarks`` are said after them. ``contradictions``: what is found otherwise than the paper says.
    """

    tables: Sequence[Table]
    figures: Mapping[str, Figure]
    remarks: Sequence[str] = ()
    contradictions: Sequence[str] = ()

    def publish(self, out: Path) -> None:
        """Writes all of it, as CSV, PNG and SVG, and prints it.

        Raises: OSError where it cannot be written.
        """
        for one in self.tables:
            path = (one.folder or out) / f"{one.name}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            record.write_atomic(path, one.values.to_csv(index=False))
            print(one.title)
            rich.print(for_terminal(one.shown))
            print(f"written {path}")
        for name, figure in self.figures.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            canvas.write(figure, out / name)
            print(f"written {out / name}.png and .svg")
        for line in self.remarks:
            print(line)


def for_terminal(shown: pd.DataFrame) -> table.Table:
    """Heads are broken, at hyphens too, so that many columns fit into 80 characters."""
    text = table.Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in shown:
        text.add_column(textwrap.fill(str(column), HEAD, break_long_words=False))
    for row in shown.to_numpy().tolist():
        text.add_row(*row)
    return text


def captioned(title: str, caption: str, width: float, height: float) -> Figure:
    """An empty figure of so many inches, its title above, its caption below, that lays out the axes it is given."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold")
    figure.supxlabel(textwrap.fill(caption, int(width * 14)), x=0.01, ha="left", size=8.5, color="#444444")
    return figure


def settings(results: Path) -> Iterator[tuple[Path, Records]]:
    """The records of each setting whose runs say what they aim at, and where its files go below the output's folder:
    as the setting lies below ``results``.
    """
    for folder, records in load(results).settings().items():
        if records.runs["target_metric"].notna().any():
            yield folder.relative_to(results) if folder.is_relative_to(results) else Path(), records


def built_in(records: Records) -> str:
    """What a title must say of the data."""
    return " (built-in data)" if records.runs["builtin"].eq(True).any() else ""
