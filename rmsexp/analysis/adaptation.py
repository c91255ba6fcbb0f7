"""The implicit learning-rate adaptation of section 4.2: SGD with a constant learning rate on one layer.

If scaling W does not change the output, the gradient of the loss with respect to W is orthogonal to W. Each step then
increases the norm of W. A larger W has a smaller gradient. So the steps become smaller relative to W although the
learning rate is constant.
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
from rmsexp.norms import Norm
from rmsexp.records.frames import names
from rmsexp.report.plots import canvas, style

STEPS = 500
LEARNING_RATE = 15.0  # large, so that the effect shows within few steps
SMOOTHED = 20  # steps averaged, in the figure's running mean and in the table's means over first and last steps


def train(norm: Norm, steps: int) -> pd.DataFrame:
    """Train one layer to predict noisy outputs of a random teacher, with a new batch per step. Return a row per step.

    Columns ``step``, ``weight``, ``relative_step``, ``cosine``. ``weight``: |W| before the step (Frobenius norm);
    ``relative_step``: |change of W| / |W|; ``cosine``: cosine of the angle between W and the gradient of the loss with
    respect to W.
    """
    layer, teacher = site(norm, "student"), SPREAD * draw((N_OUT, N_IN), "teacher")
    rows = []
    for step in range(steps):
        x, noise = draw((EXAMPLES, N_IN), "batch", step), draw((EXAMPLES, N_OUT), "noise", step)
        loss = F.mse_loss(layer(x), torch.tanh(x @ teacher.T) + noise)
        (gradient,) = torch.autograd.grad(loss, layer.weight)
        with torch.no_grad():
            rows.append((step, *_geometry(layer.weight, gradient)))
            layer.weight.sub_(LEARNING_RATE * gradient)
    return pd.DataFrame(rows, columns=["step", "weight", "relative_step", "cosine"])


def _geometry(weight: Tensor, gradient: Tensor) -> tuple[float, float, float]:
    size, gradient_size = float(weight.norm()), float(gradient.norm())
    return size, LEARNING_RATE * gradient_size / size, float((gradient * weight).sum()) / (gradient_size * size)


def summary(runs: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row per norm. ``runs``: by norm, the result of :func:`train`.

    Columns: ``norm``; ``weight_growth``, last |W| / first |W|; ``growing``, the share of steps that increased |W|
    (without the last step, after which |W| is not known); ``largest_cosine``, the largest absolute cosine;
    ``relative_step_first`` and ``relative_step_last``, the mean relative step over the first and over the last
    ``SMOOTHED`` steps.
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
    not_adapted = table.loc[~adapted & (table["norm"] != "none"), "norm"]
    text = table.map(lambda value: value if isinstance(value, str) else f"{value:.3g}")
    text["norm"] = text["norm"].map(names.label)
    text.columns = text.columns.str.replace("_", " ")
    title = f"{STEPS} steps of SGD with learning rate {LEARNING_RATE:g}: |W|, and |step| / |W|"
    contradictions = [
        f"{names.label(name)}: |W| does not grow at every step, or |step| / |W| does not fall" for name in not_adapted
    ]
    return Finding([Table("adaptation", title, table, text)], {"adaptation": draw_runs(runs)}, (), contradictions)


def draw_runs(runs: dict[str, pd.DataFrame]) -> Figure:
    """Draw |W| relative to its first value, and |step| / |W| averaged over ``SMOOTHED`` steps, against steps."""
    caption = (
        f"One layer of {N_IN} inputs and {N_OUT} units, gain and shift not trained, {EXAMPLES} new examples per step, "
        f"learning rate {LEARNING_RATE:g}. Right: running mean over {SMOOTHED} steps."
    )
    figure = captioned("Learning-rate adaptation under SGD (section 4.2)", caption, 10, 4.2)
    weight, relative = figure.subplots(1, 2)
    looks, widths = style.looks(runs), np.linspace(4, 1, len(runs))  # lines may coincide, so later ones are thinner
    for (name, run), width in zip(runs.items(), widths, strict=True):
        look: dict[str, Any] = {"color": looks[name].colour, "linewidth": width, "label": names.label(name)}
        weight.plot(run["step"], run["weight"] / run["weight"].iloc[0], **look)
        relative.plot(run["step"], run["relative_step"].rolling(SMOOTHED).mean(), **look)
    for axes, title in ((weight, "|W| / first |W|"), (relative, "|step| / |W|")):
        canvas.add_grid(axes)
        axes.set_xlabel("step")
        axes.set_ylabel(title)
    relative.set_yscale("log")
    figure.legend(*weight.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure
