"""Section 4.2 of the paper, measured: how gradients scale with weights and data, and how that adapts the learning rate.

The loss is ``sum(D * y)`` with a random constant D. Its gradient with respect to the output y is D, so only the layer
changes the gradients. Shapes: W ``(N_OUT, N_IN)``, x ``(EXAMPLES, N_IN)``, D and y ``(EXAMPLES, N_OUT)``.
"""

import math
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from rmsexp.analysis.finding import Finding
from rmsexp.analysis.site import EXAMPLES, LATER, N_IN, N_OUT, NORMS, SPREAD, draw, norm, site
from rmsexp.norms import Linear, Norm
from rmsexp.records.frames import names
from rmsexp.report.tables.markup import Table

DELTAS = np.logspace(-2, 2, 9)
CHANGED, VARIABLES = ("W", "x"), ("W", "x", "g", "b")  # the variables that are scaled; each v in dL/dv
PARAMETERS = {"bias": "b", "norm.bias": "b", "norm.weight": "g", "reparametrisation.gain": "g"}
EXPECTED = {  # RMSNorm: (changed, variable) -> k if dL/dvariable scales as delta^k when ``changed`` is scaled by delta
    **dict.fromkeys([("W", "x"), ("W", "g"), ("W", "b"), ("x", "W"), ("x", "g"), ("x", "b")], 0),
    **dict.fromkeys([("W", "W"), ("x", "x")], -1),
}
SERIES = (*NORMS, *LATER)
BEND = 0.2  # where the logarithm of a size differs more from the fitted power law, there is no exponent
TOLERANCE = 1e-6  # a fitted exponent contradicts the paper's if they differ by more
# of SGD on one layer
STEPS = 500
LEARNING_RATE = 15.0  # large, so that the effect shows within few steps
SMOOTHED = 20  # steps in the means over first and last steps


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


def train(norm: Norm, steps: int) -> pd.DataFrame:
    """Train one layer to predict noisy outputs of a random teacher by SGD with a constant learning rate.

    Return a row per step, each of which has a new batch. If scaling W does not change the output, the gradient of the
    loss with respect to W is orthogonal to W. Each step then increases the norm of W. A larger W has a smaller
    gradient. So the steps become smaller relative to W although the learning rate is constant.

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
            size, gradient_size = float(layer.weight.norm()), float(gradient.norm())
            cosine = float((gradient * layer.weight).sum()) / (gradient_size * size)
            rows.append((step, size, LEARNING_RATE * gradient_size / size, cosine))
            layer.weight.sub_(LEARNING_RATE * gradient)
    return pd.DataFrame(rows, columns=["step", "weight", "relative_step", "cosine"])


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
    fitted = exponents(measure())
    in_paper = fitted.dropna(subset="paper")
    agrees = (in_paper["exponent"] - in_paper["paper"]).abs() <= TOLERANCE  # false also for NaN: there is no exponent
    contradictions = []
    for changed, of, exponent, power in in_paper.loc[~agrees, ["changed", "of", "exponent", "paper"]].to_numpy():
        factor = "no power of delta" if math.isnan(exponent) else f"delta^{exponent:.3f}"
        contradictions.append(
            f"RMSNorm: when {changed} is multiplied by delta, dL/d{of} is multiplied by {factor}; "
            f"in the paper by delta^{power:g}"
        )
    runs = {name: train(norm(name), STEPS) for name in NORMS}
    trained = summary(runs)
    adapted = (trained["growing"] == 1) & (trained["relative_step_last"] < trained["relative_step_first"])
    contradictions += [
        f"{names.label(name)}: |W| does not grow at every step, or |step| / |W| does not fall"
        for name in trained.loc[~adapted & (trained["norm"] != "none"), "norm"]
    ]
    text = trained.map(lambda value: value if isinstance(value, str) else f"{value:.3g}")
    text["norm"] = text["norm"].map(names.label)
    text.columns = text.columns.str.replace("_", " ")
    title = f"{STEPS} steps of SGD with learning rate {LEARNING_RATE:g}: |W|, and |step| / |W|"
    tables = [
        Table("gradients", "exponent of delta in the gradients", fitted, _text(fitted)),
        Table("adaptation", title, trained, text),
    ]
    return Finding(tables, (), contradictions)


def _text(fitted: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each scaled variable and gradient, a column per norm, and a column of the paper's exponents."""
    rows = []
    for changed, variable in product(CHANGED, VARIABLES):
        exponent = fitted[(fitted["changed"] == changed) & (fitted["of"] == variable)].set_index("norm")["exponent"]
        texts = exponent.map(lambda power: "varies" if np.isnan(power) else f"{round(power, 2) + 0.0:g}")
        cells = {name: texts.get(name, "") for name in SERIES}
        rows.append(
            {"scaled": changed, "gradient": f"dL/d{variable}", **cells, "paper, rms": str(EXPECTED[changed, variable])}
        )
    return pd.DataFrame(rows)
