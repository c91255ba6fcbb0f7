"""What a benchmark of layers (``python -m rmsexp.bench``) found, as tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rmsexp.compare.records import ratios


@dataclass(frozen=True)
class Summary:
    """Pairs of layers whose ratios are set side by side, for all shapes whose input has at least so many elements."""

    passes: str
    pairs: tuple[tuple[str, str], ...]
    elements: int = 1


class Row(NamedTuple):
    """What is said of a layer: quantiles (10, 50 and 90 %) of the milliseconds of a call, ratio to the reference."""

    layer: str
    milliseconds: tuple[float, float, float]
    relative: ratios.Interval


class Measured(NamedTuple):
    """A case as it is recorded, and its rows."""

    stored: dict[str, Any]
    rows: list[Row]


def rows(seconds: Mapping[str, Sequence[float]], reference: str) -> list[Row]:
    """One row a layer; ``seconds``: of a call in each round, by layer."""
    return [
        Row(name, tuple(1000 * np.quantile(own, [0.1, 0.5, 0.9])), ratios.paired_ratio(own, seconds[reference]))
        for name, own in seconds.items()
    ]


def notes(content: Mapping[str, Any]) -> list[str]:
    """What must be said beside the tables and figures of a record."""
    session = content["session"]
    versions, date = session["versions"], session["started"][:10]
    return [
        f"{content['dtype']}; {session['device']}; threads {session['threads']}; torch {versions['torch']}; {date}",
        "ratios are of calls in the same rounds, whose order is drawn anew in each; intervals of 95 %",
    ]


def heading(stored: Mapping[str, Any]) -> str:
    return f"{stored['shape']}, {stored['passes']}{state(stored)}"


def state(stored: Mapping[str, Any]) -> str:
    state = stored["contention"]["state"]
    return "" if state == "clear" else f" ({state})"
