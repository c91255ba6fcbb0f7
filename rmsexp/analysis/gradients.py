"""Section 4.2 of the paper, measured: how gradients scale with weights and data.

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

from rmsexp.analysis.finding import Finding
from rmsexp.analysis.site import EXAMPLES, LATER, N_IN, N_OUT, NORMS, draw, norm, site
from rmsexp.norms import Linear
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
    table = Table("gradients", "exponent of delta in the gradients", fitted, _text(fitted))
    return Finding([table], contradictions)


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
