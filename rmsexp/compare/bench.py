"""What a benchmark of layers (``python -m rmsexp.bench``) found, as tables and figures."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rmsexp.compare import figures, style, tables, timing

ALIKE = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms"}  # torch's layers have the colours of ours
PANEL = (3.0, 0.24)  # inches: a panel's width, and the height of a line


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
    relative: timing.Interval


class Measured(NamedTuple):
    """A case as it is recorded, and its rows."""

    stored: dict[str, Any]
    rows: list[Row]


def rows(seconds: Mapping[str, Sequence[float]], reference: str) -> list[Row]:
    """One row a layer; ``seconds``: of a call in each round, by layer."""
    return [
        Row(name, tuple(1000 * np.quantile(own, [0.1, 0.5, 0.9])), timing.paired_ratio(own, seconds[reference]))
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
    return f"{stored['shape']}, {stored['passes']}{_state(stored)}"


def _state(stored: Mapping[str, Any]) -> str:
    state = stored["contention"]["state"]
    return "" if state == "clear" else f" ({state})"


def readable(found: Measured) -> pd.DataFrame:
    """The rows as a person reads them."""
    reference = found.stored["reference"]
    return pd.DataFrame(
        {
            "layer": row.layer,
            "ms, median (10 % to 90 %)": "{1} ({0} to {2})".format(*map(tables.four_digits, row.milliseconds)),
            f"ratio to {reference} (95 % interval)": "1" if row.layer == reference else _ratio(row.relative),
        }
        for row in found.rows
    )


def _ratio(found: timing.Interval) -> str:
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def summaries(wanted: Sequence[Summary], found: Sequence[Measured]) -> dict[str, pd.DataFrame]:
    """By heading, a table for each summary that has something to show: a line a shape, and the geometric mean."""
    shown = {}
    for summary in wanted:
        of = [one.stored for one in found]
        of = [one for one in of if one["passes"] == summary.passes and one["elements"] >= summary.elements]
        if not of:
            continue
        columns = {"shape": [*(one["shape"] for one in of), "geometric mean"]}
        for own, other in summary.pairs:
            ratios = [timing.paired_ratio(one["seconds"][own], one["seconds"][other]) for one in of]
            mean = statistics.geometric_mean(one.ratio for one in ratios)
            columns[f"{own} / {other}"] = [*map(_ratio, ratios), f"{mean:.3f}"]
        shown[f"Ratios, {summary.passes}"] = pd.DataFrame(columns)
    return shown


def draw(found: Sequence[Measured], title: str, lines: Sequence[str]) -> Figure:
    """A panel a shape: the ratio of each layer to the reference, with its interval."""
    names = [row.layer for row in found[0].rows]
    across = min(3, len(found))
    down = math.ceil(len(found) / across)
    width, height = 2 + PANEL[0] * across, 1.1 + (0.8 + PANEL[1] * len(names)) * down
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold")
    figure.supxlabel("\n".join(figures.wrapped(lines, width)), x=0.01, ha="left", size=8.5, color="#444444")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    for axes, one in itertools.zip_longest(grid, found):
        if one is None:
            axes.remove()
            continue
        figures.plain(axes)
        axes.axvline(1, color="#777777", linewidth=0.8)
        for place, row in enumerate(one.rows):
            colour = style.colour(ALIKE.get(row.layer, row.layer.split()[0]))
            timing.mark(axes, -place, row.relative.ratio, row.relative.low, row.relative.high, colour)
        reference = one.stored["reference"]
        of_reference = next(row.milliseconds[1] for row in one.rows if row.layer == reference)
        shown = f"{reference}: {tables.four_digits(of_reference)} ms"
        axes.set_title(f"{one.stored['shape']}{_state(one.stored)}\n{shown}", size=10)
        axes.set_xlabel(f"ratio to {reference}")
        axes.tick_params(labelbottom=True)
    axes = figure.axes[0]
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.45), max(high, 2.2))  # so that the axis has at least the ticks 0.5, 1 and 2
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    return figure
