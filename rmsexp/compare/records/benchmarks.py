"""Results of a benchmark of layers (``python -m rmsexp.bench``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rmsexp.compare.records.ratios import Interval, paired_ratio


@dataclass(frozen=True)
class Summary:
    """A table of ratios of times, one column per pair of layers.

    Attributes:
        passes: the measured passes, such as "forward".
        pairs: layer and reference of each ratio.
        elements: shapes with a smaller input are left out.
    """

    passes: str
    pairs: tuple[tuple[str, str], ...]
    elements: int = 1


class Row(NamedTuple):
    """The result of a layer: 10, 50 and 90 % quantiles of the milliseconds per call, and the ratio to the reference."""

    layer: str
    milliseconds: tuple[float, float, float]
    relative: Interval


class Measured(NamedTuple):
    """One measured case: its content in the record, and one row per layer."""

    stored: dict[str, Any]
    rows: list[Row]


def rows(seconds: Mapping[str, Sequence[float]], reference: str) -> list[Row]:
    """Return one row per layer; ``seconds``: per call in each round, by layer."""
    return [
        Row(layer, tuple(1000 * np.quantile(times, [0.1, 0.5, 0.9])), paired_ratio(times, seconds[reference]))
        for layer, times in seconds.items()
    ]


def notes(content: Mapping[str, Any]) -> list[str]:
    """Return the lines beside the tables and figures of a record: data type, machine and method."""
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
    """Return a suffix such as " (contended)" for a case whose machine was not known to be idle, else nothing."""
    state = stored["contention"]["state"]
    return "" if state == "clear" else f" ({state})"
