"""The implicit learning-rate adaptation of section 4.2, watched: plain SGD with one learning rate on one layer.

Where scaling W does not change the output, its gradient is orthogonal to W: each step makes W longer, a longer W has a
smaller gradient, and so the steps become small beside W by themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from rmsexp.analysis.finding import Finding, Table, captioned
from rmsexp.analysis.site import EXAMPLES, N_IN, N_OUT, NORMS, SPREAD, draw, norm, site
from rmsexp.compare.plots import canvas, style
from rmsexp.compare.records import names
from rmsexp.norms import Norm

STEPS = 500
LEARNING_RATE = 15.0  # constant, and large, so that few steps show what it does
SMOOTHED = 20  # steps that are averaged: in the figure, and at the start and the end in the table


def train(norm: Norm, steps: int) -> pd.DataFrame:
    """A row a step, ``step weight relative_step cosine``, of regression on noisy answers of a drawn teacher.

    ``weight``: the Frobenius norm of W before the step; ``relative_step``: that of what the step adds to W, over it;
    ``cosine``: of the angle between W and its gradient. Every batch is new.
    """
    layer, teacher = site(norm, "student"), SPREAD * draw((N_OUT, N_IN), "teacher")
    rows = []
    for step in range(steps):
        x, noise = draw((EXAMPLES, N_IN), "batch", step), draw((EXAMPLES, N_OUT), "noise", step)
        loss = F.mse_loss(layer(x), torch.tanh(x @ teacher.T) + noise)
        (gradient,) = torch.autograd.grad(loss, layer.weight)
        with torch.no_grad():
            rows.append((step, *_state(layer.weight, gradient)))
            layer.weight.sub_(LEARNING_RATE * gradient)
    return pd.DataFrame(rows, columns=["step", "weight", "relative_step", "cosine"])


def _state(weight: Tensor, gradient: Tensor) -> tuple[float, float, float]:
    size, of_gradient = float(weight.norm()), float(gradient.norm())
    return size, LEARNING_RATE * of_gradient / size, float((gradient * weight).sum()) / (of_gradient * size)


def summary(runs: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A row a norm, of its :func:`train`.

    Columns: ``weight_growth``, the last norm of W over the first; ``growing``, the share of steps that made W longer;
    ``largest_cosine`` between W and its gradient; ``relative_step_first`` and ``_last``, means of ``SMOOTHED`` steps.
    """
    rows = [
        {
            "norm": name,
            "weight_growth": run["weight"].iloc[-1] / run["weight"].iloc[0],
            "growing": float((run["weight"].diff().dropna() > 0).mean()),
            "largest_cosine": run["cosine"].abs().max(),
            "relative_step_first": run["relative_step"].head(SMOOTHED).mean(),
            "relative_step_last": run["relative_step"].tail(SMOOTHED).mean(),
        }
        for name, run in runs.items()
    ]
    return pd.DataFrame(rows)


def analyse() -> Finding:
    runs = {name: train(norm(name), STEPS) for name in NORMS}
    table = summary(runs)
    adapted = (table["growing"] == 1) & (table["relative_step_last"] < table["relative_step_first"])
    wrong = table.loc[~adapted & (table["norm"] != "none"), "norm"]
    shown = table.map(lambda value: value if isinstance(value, str) else f"{value:.3g}")
    shown["norm"] = shown["norm"].map(names.label)
    shown.columns = shown.columns.str.replace("_", " ")
    title = f"{STEPS} steps of SGD with learning rate {LEARNING_RATE:g}: |W|, and the step beside it"
    contradictions = [
        f"{names.label(name)}: |W| does not grow at every step, or steps beside it do not fall" for name in wrong
    ]
    return Finding([Table("adaptation", title, table, shown)], {"adaptation": draw_runs(runs)}, (), contradictions)


def draw_runs(runs: dict[str, pd.DataFrame]) -> Figure:
    """The norm of W over its first value, and the relative step, against steps."""
    caption = (
        f"One layer of {N_IN} inputs and {N_OUT} units, gain and shift held, {EXAMPLES} new examples a step, "
        f"learning rate {LEARNING_RATE:g}. Right: running mean over {SMOOTHED} steps."
    )
    figure = captioned("Learning-rate adaptation under SGD (section 4.2)", caption, 10, 4.2)
    weight, relative = figure.subplots(1, 2)
    for (name, run), width in zip(runs.items(), np.linspace(4, 1, len(runs)), strict=True):  # lines may coincide
        look: dict[str, Any] = {"color": style.colour(name), "linewidth": width, "label": names.label(name)}
        weight.plot(run["step"], run["weight"] / run["weight"].iloc[0], **look)
        relative.plot(run["step"], run["relative_step"].rolling(SMOOTHED).mean(), **look)
    for axes, title in ((weight, "|W|, over its first value"), (relative, "|step| / |W|")):
        canvas.add_grid(axes)
        axes.set_xlabel("step")
        axes.set_ylabel(title)
    relative.set_yscale("log")
    figure.legend(*weight.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure
