"""Table 1 of the paper, measured: which changes of weights or data leave the output of which norm unchanged.

Shapes: W ``(N_OUT, N_IN)``; the data set ``(EXAMPLES, N_IN)``, which is a single batch for batch norms.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call

from rmsexp import config
from rmsexp.models import init
from rmsexp.norms import Linear, Norm
from rmsexp.norms.composed import COMPOSED
from rmsexp.records.frames import names
from rmsexp.report import paper
from rmsexp.report.tables.markup import Table
from rmsexp.train.randomness import stream

SEED = 0
N_IN, N_OUT, EXAMPLES = 48, 128, 32
GAINLESS = "rms+gain=false"
STANDARD_NORMAL = init.normal(1.0)
SPREAD = 0.3  # standard deviation of the noise that is added to a layer's initial parameters
DRAWS = 8  # random layers and data sets over which a change is averaged
THRESHOLD = 1e-6  # a smaller relative change is "invariant"; rounding changes about 1e-15, other changes are above 1e-2
TICK, CROSS = "\N{CHECK MARK}", "\N{BALLOT X}"

Transformation = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# A function of W, the data set, positive factors (N_OUT,) and a vector (N_IN,) that returns the changed W and data set.
# Names are those of Table 1.
TRANSFORMATIONS: dict[str, Transformation] = {
    "weight matrix re-scaling": lambda weight, x, factors, _: (factors[0] * weight, x),
    "weight matrix re-centering": lambda weight, x, _, vector: (weight + vector, x),
    "weight vector re-scaling": lambda weight, x, factors, _: (factors[:, None] * weight, x),
    "dataset re-scaling": lambda weight, x, factors, _: (weight, factors[0] * x),
    "dataset re-centering": lambda weight, x, _, vector: (weight, x + vector),
    "single training case re-scaling": lambda weight, x, factors, _: (weight, torch.cat([factors[0] * x[:1], x[1:]])),
}


def norm(series: str) -> Norm:
    """Return the norm of a series, such as "rms" or "rms+gain=false", with eps = 0, as in the paper's section 4."""
    # a task without options of its own for norms
    norm: Norm = config.job(["task=transformer", *config.norm_words(series)]).norm
    changes: dict[str, Any] = {"eps": 0.0} if hasattr(norm, "eps") else {}
    return dataclasses.replace(norm, **changes)


def site(norm: Norm, *stream_name: str | int) -> Linear:
    """Return the layer ``norm(W x)`` with random parameters: W, and gain and shift if the norm has them.

    ``stream_name``: the stream of random numbers for the parameters.
    """
    layer = norm.linear("site", N_IN, N_OUT, bias=False, shift=True).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = draw((*parameter.shape,), *stream_name, name)
            parameter.copy_(parameter.nan_to_num(0.0) + SPREAD * noise)
    return layer


def draw(shape: tuple[int, ...], *stream_name: str | int, kind: init.Initialiser = STANDARD_NORMAL) -> Tensor:
    """Return random values in double precision from the stream of this name, drawn by ``kind``."""
    values = torch.empty(shape, dtype=torch.float64)
    kind(values, stream(SEED, "analysis", *stream_name))
    return values


@torch.no_grad()
def changes(norm: Norm) -> dict[str, float]:
    """Return, by transformation, the relative change of the output, ``|y' - y| / |y|``, the mean of ``DRAWS`` draws."""
    relative: dict[str, list[float]] = {name: [] for name in TRANSFORMATIONS}
    for number in range(DRAWS):
        layer, x = site(norm, number), draw((EXAMPLES, N_IN), number, "x")
        factors = 4 * 2 ** draw((N_OUT,), number, "factors", kind=init.uniform(1.0))  # from 2 to 8
        vector, before = draw((N_IN,), number, "vector"), layer(x)
        for name, transform in TRANSFORMATIONS.items():
            weight, data = transform(layer.weight, x, factors, vector)
            after = functional_call(layer, {"weight": weight}, (data,))
            relative[name].append(float((after - before).norm() / before.norm()))
    return {name: float(np.mean(values)) for name, values in relative.items()}


def measure() -> pd.DataFrame:
    """Return the relative changes for every norm of ``configs/norm`` and for RMSNorm without gain.

    The norms of the paper's Table 1 come first.

    Columns ``norm``; ``transformation``; ``change``, the relative change; ``invariant``, whether it is below
    ``THRESHOLD``; ``paper``, 1 if invariant according to Table 1, else 0, and NaN for norms that are not in the table.
    """
    table_1 = paper.numbers().query("table == 'Table 1'")
    known = [name for name in config.options("norm") if name not in COMPOSED]
    norms = dict.fromkeys([*table_1["norm"], *names.in_order([*known, GAINLESS])])
    rows = [
        {"norm": name, "transformation": transformation, "change": change, "invariant": change < THRESHOLD}
        for name in norms
        for transformation, change in changes(norm(name)).items()
    ]
    published = table_1[["norm", "metric", "value"]].set_axis(["norm", "transformation", "paper"], axis=1)
    return pd.DataFrame(rows).merge(published, how="left")


def analyse() -> list[Table]:
    table = measure()
    in_paper = table.dropna(subset="paper")
    agree = int((in_paper["invariant"] == in_paper["paper"].astype(bool)).sum())
    title = (
        f"relative change of the output, mean of {DRAWS} draws (eps = 0, double precision); "
        f"{TICK} invariant: below {THRESHOLD:g}\n"
        f"{agree} of {len(in_paper)} entries agree with the paper's Table 1"
    )
    cells = ticks(table["invariant"]) + table["change"].map(" {:.1g}".format)
    return [Table("invariance", title, table, by_norm(table, cells).reset_index())]


def ticks(values: pd.Series) -> pd.Series:
    """Return a tick for each true value and a cross for each false one; NaN stays NaN."""
    return values.map(lambda value: TICK if value else CROSS, na_action="ignore")


def by_norm(table: pd.DataFrame, cells: pd.Series) -> pd.DataFrame:
    """Return the texts of the cells, one for each row of ``table``, by norm and transformation."""
    wide = table.assign(cell=cells).pivot(index="norm", columns="transformation", values="cell")
    return wide.loc[table["norm"].unique(), list(TRANSFORMATIONS)].rename(index=names.label)
