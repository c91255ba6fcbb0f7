"""Section 4.2 of the paper, measured: how gradients scale with weights and data, and how that adapts the learning rate.

The loss is ``sum(D * y)`` with a random constant D. Its gradient with respect to the output y is D, so only the layer
changes the gradients. Shapes: W ``(N_OUT, N_IN)``, x ``(EXAMPLES, N_IN)``, D and y ``(EXAMPLES, N_OUT)``.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import functional_call

from rmsexp.analysis import adaptation
from rmsexp.analysis.finding import Finding, Table, captioned
from rmsexp.analysis.site import EXAMPLES, LATER, N_IN, N_OUT, NORMS, draw, norm, site
from rmsexp.norms import Linear
from rmsexp.records.frames import names
from rmsexp.report.plots import canvas, style

DELTAS = np.logspace(-2, 2, 9)
CHANGED, VARIABLES = ("W", "x"), ("W", "x", "g", "b")  # the variables that are scaled; each v in dL/dv
PARAMETERS = {"bias": "b", "norm.bias": "b", "norm.weight": "g", "reparametrisation.gain": "g"}
EXPECTED = {  # RMSNorm: (changed, variable) -> k if dL/dvariable scales as delta^k when ``changed`` is scaled by delta
    **dict.fromkeys([("W", "x"), ("W", "g"), ("W", "b"), ("x", "W"), ("x", "g"), ("x", "b")], 0),
    **dict.fromkeys([("W", "W"), ("x", "x")], -1),
}
SERIES = (*NORMS, *LATER)
WIDTHS = np.linspace(7.5, 1, len(SERIES))  # line width of each norm
BEND = 0.2  # where the logarithm of a size differs more from the fitted power law, there is no exponent
TOLERANCE = 1e-6  # a fitted exponent contradicts the paper's if they differ by more


def sizes(layer: Linear, weight: Tensor, x: Tensor, upstream: Tensor) -> dict[str, float]:
    """Return the norms of the loss's gradients with respect to W and x, and to g and b if the layer has them.

    ``weight``: the W to use instead of the layer's. ``upstream``: D.
    """
    weight, x = (value.detach().requires_grad_() for value in (weight, x))
    parameters = {PARAMETERS[name]: value for name, value in layer.named_parameters() if name in PARAMETERS}
    leaves = {"W": weight, "x": x, **parameters}
    loss = (functional_call(layer, {"weight": weight}, (x,)) * upstream).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {name: float(gradient.norm()) for name, gradient in zip(leaves, gradients, strict=True)}


def measure() -> pd.DataFrame:
    """Return the norms of the loss's gradients with W or x multiplied by ``delta``, relative to those with delta = 1.

    Columns: ``norm``; ``changed``, W or x; ``delta``; ``of``, the variable that the gradient is with respect to;
    ``size``, the relative norm of the gradient.
    """
    x, upstream = draw((EXAMPLES, N_IN), "x"), draw((EXAMPLES, N_OUT), "upstream")
    rows = []
    for name in SERIES:
        layer = site(norm(name))
        unchanged = sizes(layer, layer.weight, x, upstream)
        for changed, delta in product(CHANGED, DELTAS):
            scaled = {"W": layer.weight, "x": x}
            scaled[changed] = scaled[changed] * delta
            changed_sizes = sizes(layer, scaled["W"], scaled["x"], upstream)
            rows += [
                (name, changed, delta, variable, size / unchanged[variable]) for variable, size in changed_sizes.items()
            ]
    return pd.DataFrame(rows, columns=["norm", "changed", "delta", "of", "size"])


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Fit the exponent k in ``size = c * delta^k`` to the result of :func:`measure`.

    Columns ``norm``, ``changed``, ``of``, ``exponent`` (the fitted k; NaN if the sizes do not follow a power law) and
    ``paper`` (k for RMSNorm according to the paper; NaN for other norms).
    """
    rows = [
        (norm, changed, variable, _exponent(np.log(rows["delta"].to_numpy()), np.log(rows["size"].to_numpy())))
        for (norm, changed, variable), rows in table.groupby(["norm", "changed", "of"], sort=False)
    ]
    paper = pd.Series(EXPECTED, name="paper").rename_axis(["changed", "of"]).reset_index().assign(norm="rms")
    return pd.DataFrame(rows, columns=["norm", "changed", "of", "exponent"]).merge(paper, how="left")


def _exponent(log_delta: np.ndarray, log_size: np.ndarray) -> float:
    """Return the slope of the straight line through the points, or NaN if they do not lie on one (see ``BEND``)."""
    slope, start = np.polyfit(log_delta, log_size, 1)
    return float(slope) if np.abs(start + slope * log_delta - log_size).max() < BEND else float("nan")


def analyse() -> Finding:
    table = measure()
    fitted = exponents(table)
    in_paper = fitted.dropna(subset="paper")
    agrees = (in_paper["exponent"] - in_paper["paper"]).abs() <= TOLERANCE  # false also for NaN: there is no exponent
    different = in_paper[~agrees]
    contradictions = [
        f"RMSNorm: when {row['changed']} is multiplied by delta, dL/d{row['of']} is multiplied by "
        f"{_factor(row['exponent'])}; in the paper by delta^{row['paper']:g}"
        for row in different.to_dict("records")
    ]
    trained = adaptation.analyse()
    return Finding(
        [Table("gradients", "exponent of delta in the gradients", fitted, _text(fitted)), *trained.tables],
        {"gradients": draw_grid(table), **trained.figures},
        contradictions=[*contradictions, *trained.contradictions],
    )


def _factor(exponent: float) -> str:
    return "no power of delta" if math.isnan(exponent) else f"delta^{exponent:.3f}"


def _text(fitted: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each scaled variable and gradient, a column per norm, and a column of the paper's exponents."""
    rows = []
    for changed, variable in product(CHANGED, VARIABLES):
        exponent = fitted[(fitted["changed"] == changed) & (fitted["of"] == variable)].set_index("norm")["exponent"]
        cells = {name: _cell(exponent[name]) if name in exponent else "" for name in SERIES}
        rows.append(
            {"scaled": changed, "gradient": f"dL/d{variable}", **cells, "paper, rms": str(EXPECTED[changed, variable])}
        )
    return pd.DataFrame(rows)


def _cell(exponent: float) -> str:
    return "varies" if np.isnan(exponent) else f"{round(exponent, 2) + 0.0:g}"


def draw_grid(table: pd.DataFrame) -> Figure:
    """Draw a panel per scaled variable and gradient: the gradient's norm against delta, with a line per norm."""
    caption = (
        "Norms relative to delta = 1. eps = 0, double precision; the gradient with respect to the output is constant. "
        "Where lines coincide, the thinner one is on top."
    )
    figure = captioned("Gradients under scaling (section 4.2)", caption, 14, 6.4)
    looks = style.looks(SERIES)
    grid = figure.subplots(len(CHANGED), len(VARIABLES), sharex=True, sharey=True)
    for (changed, variable), axes in zip(product(CHANGED, VARIABLES), grid.flat, strict=True):
        panel = table[(table["changed"] == changed) & (table["of"] == variable)]
        for name, rows in panel.groupby("norm", sort=False):
            series = str(name)
            look = {"color": looks[series].colour, "linewidth": WIDTHS[SERIES.index(series)]}
            dashes = looks[series].dash
            axes.loglog(rows["delta"], rows["size"], label=names.label(series), linestyle=dashes, **look)
        power = "1/delta" if EXPECTED[changed, variable] == -1 else "constant"
        axes.set_title(f"dL/d{variable}, {changed} times delta (RMSNorm: {power})", size=9.5)
        canvas.add_grid(axes)
    for axes in grid[-1]:
        axes.set_xlabel("delta")
    for axes in grid[:, 0]:
        axes.set_ylabel("norm of the gradient, relative")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure
