"""Results of a benchmark of layers (``python -m rmsexp.bench``).

A case is an input shape together with the measured passes ("forward" or "forward + backward").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rmsexp.compare.records.ratios import Interval, paired_ratio


@dataclass(frozen=True)
class Summary:
    """Describes a table of ratios of times, with one line per shape and one column per pair of layers.

    Attributes:
        passes: the measured passes, such as "forward".
        pairs: layer and reference of each ratio.
        elements: the smallest input, in elements, that the table includes.
    """

    passes: str
    pairs: tuple[tuple[str, str], ...]
    elements: int = 1


class Row(NamedTuple):
    """The result of a layer: 10, 50 and 90 % quantiles of its milliseconds per call, and its ratio to the reference."""

    layer: str
    milliseconds: tuple[float, float, float]
    relative: Interval


class Measured(NamedTuple):
    """A measured case: its entry in the stored record, and one row per layer."""

    stored: dict[str, Any]
    rows: list[Row]


def rows(seconds: Mapping[str, Sequence[float]], reference: str) -> list[Row]:
    """Return one row per layer; ``seconds``: the seconds per call in each round, by layer."""
    return [
        Row(layer, tuple(1000 * np.quantile(times, [0.1, 0.5, 0.9])), paired_ratio(times, seconds[reference]))
        for layer, times in seconds.items()
    ]


def notes(content: Mapping[str, Any]) -> list[str]:
    """Return the caption of a record's tables and figures, as lines: data type, machine, and method."""
    session = content["session"]
    versions, date = session["versions"], session["started"][:10]
    return [
        f"{content['dtype']}; {session['device']}; threads {session['threads']}; torch {versions['torch']}; {date}",
        "interleaved: every round calls all layers in random order; ratios are paired by round, with 95 % intervals",
    ]


def heading(stored: Mapping[str, Any]) -> str:
    """Return the title of a case, such as "32x512, forward (contended)"."""
    return f"{stored['shape']}, {stored['passes']}{contention(stored)}"


def contention(stored: Mapping[str, Any]) -> str:
    """Return " (contended)" or " (unknown)" if it is not known that the machine was idle, else an empty string."""
    state = stored["contention"]["state"]
    return "" if state == "clear" else f" ({state})"
