"""Results of a benchmark of layers (``python -m rmsexp.bench``).

A case is an input shape together with the measured passes (rmsexp.measure.options).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rmsexp.records.frames.time_states import timing_state
from rmsexp.rules.ratios import Interval, paired_ratio


@dataclass(frozen=True)
class Summary:
    """Describes a table of ratios of times, with a line per shape and a column per pair of layers.

    ``passes``: the measured passes, such as "forward". ``pairs``: (layer, reference) of each ratio of times.
    ``elements``: shapes whose input has fewer elements are left out.
    """

    passes: str
    pairs: tuple[tuple[str, str], ...]
    elements: int = 1


class Row(NamedTuple):
    """The times of one layer in one case.

    ``milliseconds``: the 10, 50 and 90 % quantiles, over rounds, of the milliseconds per call. ``relative``: the ratio
    of its time to that of the reference layer, paired by round.
    """

    layer: str
    milliseconds: tuple[float, float, float]
    relative: Interval


class Measured(NamedTuple):
    """A measured case. ``stored``: its entry in the benchmark's record; ``rows``: one row per layer."""

    stored: dict[str, Any]
    rows: list[Row]


def rows(seconds: Mapping[str, Sequence[float]], reference: str) -> list[Row]:
    """Return one row per layer.

    ``seconds``: by layer, the seconds per call in each round. ``reference``: the layer to which ratios are taken.
    """
    return [
        Row(layer, tuple(1000 * np.quantile(times, [0.1, 0.5, 0.9])), paired_ratio(times, seconds[reference]))
        for layer, times in seconds.items()
    ]


def notes(content: Mapping[str, Any]) -> list[str]:
    """Return the caption of a benchmark's tables and figures: lines on machine, method, and on an interruption.

    ``content``: the content of the benchmark's record.
    """
    session = content["session"]
    versions, date = session["versions"], session["started"][:10]
    return [
        f"{content['dtype']}; {session['device']}; threads {session['threads']}; torch {versions['torch']}; {date}",
        "interleaved: every round calls all layers in random order; ratios are paired by round, with 95 % intervals of "
        "this process (not replicated: another process may differ by more)",
        *(["interrupted: not all tables were measured"] if content.get("stopped") == "interrupted" else []),
    ]


def heading(stored: Mapping[str, Any]) -> str:
    """Return the title of a case, such as "32x512, forward (contended)"."""
    return f"{stored['shape']}, {stored['passes']}{contention(stored)}"


def contention(stored: Mapping[str, Any]) -> str:
    """Return an empty string if the machine was otherwise idle, " (contended)" if not, " (unknown)" if not known.

    Older records are judged by the limits of today (:func:`.time_states.timing_state`).
    """
    state = timing_state([{"contention": stored["contention"]}])
    return "" if state == "clear" else f" ({state})"
