"""Tables and figures of a benchmark of layers (``python -m rmsexp.bench``).

A case is an input shape together with the measured passes (rmsexp.config.timing). It is given as its entry in the
benchmark's record.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rmsexp.config.timing import TRIAD
from rmsexp.records.frames.time_states import timing_state
from rmsexp.report.plots import canvas, style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Panel, interval, rows
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import Interval, paired_ratio

Case = Mapping[str, Any]
NORMS = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms"}  # torch's layers have the colours of our norms
TICKS = [digit * 10.0**exponent for exponent in range(-3, 4) for digit in (1, 2, 5)]


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


def heading(case: Case) -> str:
    """Return the title of a case, such as "32x512, forward (disturbed)"."""
    return f"{case['shape']}, {case['passes']}{contention(case)}"


def contention(case: Case) -> str:
    """Return an empty string if the machine was otherwise idle, " (disturbed)" if not, " (unknown)" if not known.

    Older records are judged by the limits of today (:func:`rmsexp.records.frames.time_states.timing_state`).
    """
    state = timing_state([{"contention": case["contention"]}])
    return "" if state == "undisturbed" else f" ({state})"


def ratios(case: Case) -> dict[str, Interval]:
    """Return, for each layer, the ratio of its time to that of the reference layer, paired by round."""
    return {layer: paired_ratio(times, case["seconds"][case["reference"]]) for layer, times in case["seconds"].items()}


def readable(case: Case) -> pd.DataFrame:
    """Return the table of one case, as text.

    Each layer has its milliseconds per call, their ratio to the reference's and, if the case has times of the triad,
    GB/s and their share of the triad's.
    """
    reference, lines = case["reference"], []
    for layer, ratio in ratios(case).items():
        low, median, high = map(formats.four_digits, 1000 * np.quantile(case["seconds"][layer], [0.1, 0.5, 0.9]))
        line = {
            "layer": layer,
            "ms, median (10 % to 90 %)": f"{median} ({low} to {high})",
            f"ratio to {reference} (95 % interval)": "1" if layer == reference else formats.ratio(ratio),
        }
        if TRIAD in case["seconds"]:
            share = paired_ratio(case["seconds"][TRIAD], case["seconds"][layer])
            scaled = Interval(*(value * case["bytes"][layer] / case["bytes"][TRIAD] for value in share))
            line["GB/s"] = f"{bandwidth(case, layer):.3g}"
            line["share of the triad's (95 % interval)"] = "1" if layer == TRIAD else formats.ratio(scaled)
        lines.append(line)
    return pd.DataFrame(lines)


def bandwidth(case: Case, layer: str) -> float:
    """Return the bytes that a layer must move at least, divided by the median of its times, in GB/s."""
    return float(case["bytes"][layer] / np.median(case["seconds"][layer]) / 1e9)


def draw(cases: Sequence[Case], title: str, lines: Sequence[str]) -> Figure:
    """Return a figure with a panel per case: the ratio of each layer's time to the reference's, with its interval.

    ``cases``: cases with the same layers. ``lines``: the caption.
    """
    layers = list(cases[0]["seconds"])
    norms = [NORMS.get(layer, layer.split()[0]) for layer in layers]
    looks = style.looks(norms)
    drawn = [
        [interval(looks[norm], -float(y), ratio) for y, (norm, ratio) in enumerate(zip(norms, found, strict=True))]
        for found in (ratios(case).values() for case in cases)
    ]
    values = [float(value) for marks in drawn for mark in marks for value in mark.x]
    low, high = min(0.8 * min(values), 0.45), max(1.25 * max(values), 2.2)  # with at least the ticks 0.5, 1 and 2
    ticks = [tick for tick in TICKS if low <= tick <= high]
    panels = []
    for case, marks in zip(cases, drawn, strict=True):
        reference = case["reference"]
        median = formats.four_digits(1000 * float(np.median(case["seconds"][reference])))
        x = Axis(f"ratio to {reference}", (low, high), log=True, ticks=ticks)
        panels.append(rows(layers, marks, x, 1, f"{case['shape']}{contention(case)}; {reference}: {median} ms"))
    return canvas.draw(Chart(title, lines, panels))


def draw_bandwidth(cases: Sequence[Case], lines: Sequence[str]) -> Figure:
    """Return a figure of gigabytes in a second against the size of the input, with the triad as the roof.

    It has a panel for each of the passes. ``cases``, ``lines``: as for :func:`draw`.
    """
    series = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms", "ln fused": "ln+impl=fused", "rms fused": "rms+impl=fused"}
    series |= {"rms compiled": "rms+impl=compiled", TRIAD: TRIAD}
    shown = [layer for layer in series if layer in cases[0]["seconds"]]
    looks = dict(zip(shown, style.looks(series[layer] for layer in shown).values(), strict=True))
    panels = []
    for passes in dict.fromkeys(case["passes"] for case in cases):
        own = sorted((case for case in cases if case["passes"] == passes), key=lambda case: case["elements"])
        sizes = [case["bytes"][TRIAD] / 3e6 for case in own]
        marks = [Mark("line", looks[layer], sizes, [bandwidth(case, layer) for case in own]) for layer in shown]
        panels.append(Panel(Axis("size of the input (MB)", log=True), Axis("GB/s", log=True), marks, passes))
    caption = [lines[0], "bytes that must be moved at least, divided by the time; triad: what memory or caches give"]
    legend = [(look, layer) for layer, look in looks.items()]
    return canvas.draw(Chart("Bytes moved by norms, and by the triad", caption, panels, legend))
