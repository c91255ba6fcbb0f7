"""The form that all tables of a setting share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rmsexp.records.frames.load import Records


class Setting(NamedTuple):
    """What the tables of a setting are made of.

    Attributes:
        folder: the folder of the setting.
        records: its runs, which may be none.
        family: the settings that differ from it at most in the learning rate, including itself, by folder.
        timings: its timing records (:func:`rmsexp.records.frames.timing_records.load`).
    """

    folder: Path
    records: Records
    family: dict[Path, Records]
    timings: pd.DataFrame


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
