"""Time per step and the share of LN's time that a norm saves: paired from a timing record, else from separate runs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.compare import paper
from rmsexp.compare.plots import canvas, style
from rmsexp.compare.records import names

MARKERS = "sD^vP"  # of the paper's frameworks
ASIDE = 0.22  # between ours and the paper's, in rows of the figure


def draw(table: pd.DataFrame, task: str, title: str, notes: list[str]) -> Figure:
    """The saving of each series against LN: ours, filled with an interval where paired, else hollow; the paper's."""
    shown = table[table["saving"].notna() | table["series"].isin(paper.savings(task)["norm"])]
    shown = shown[shown["kind"] != "reference"].iloc[::-1].reset_index(drop=True)
    labels = [names.label(one) for one in shown["series"]]
    figure, axes = canvas.bars(labels, title, [*notes, _legend_note(shown)])
    for place, row in enumerate(shown.to_dict("records")):
        if not math.isnan(row["saving"]):
            _ours(axes, place, row)
    _theirs(axes, task, list(shown["series"]))
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.set_xlabel("time saved against LayerNorm (%)")
    return figure


def _legend_note(shown: pd.DataFrame) -> str:
    kinds = {
        "paired": "filled: ours, paired, with its 95 % interval",
        "unpaired": "hollow: ours, from separate runs (unpaired)",
    }
    return "; ".join([text for kind, text in kinds.items() if kind in set(shown["kind"])] + ["grey: paper"])


def _ours(axes: Axes, place: int, row: dict[Any, Any]) -> None:
    colour, saved, paired = style.colour(names.norm_of(row["series"])), row["saving"] * 100, row["kind"] == "paired"
    if paired:
        ends = [row["low"] * 100, row["high"] * 100]
        axes.plot(ends, [place, place], "|-", color=colour, linewidth=style.THICK, markersize=12)
    axes.plot(saved, place, "o", color=colour, fillstyle="full" if paired else "none", markersize=6)


def _theirs(axes: Axes, task: str, series: list[str]) -> None:
    places = {one.lower(): place for place, one in enumerate(series)}
    savings = paper.savings(task)
    savings = savings[savings["norm"].isin(list(places))]
    frameworks = list(dict.fromkeys(savings["framework"]))
    for marker, framework in zip(MARKERS, frameworks, strict=False):
        own = savings[savings["framework"] == framework]
        at = [places[norm] - ASIDE for norm in own["norm"]]
        axes.plot(own["saving"] * 100, at, marker, color="#777777", markersize=6, label=f"paper, {framework}")
    if frameworks:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
