"""Inputs of the fused recurrences, drawn at random, and the forms of their norms."""

import torch
from torch import Tensor

from helpers.sites import draw
from rmsexp.norms.kernels import Kind
from rmsexp.norms.kernels.recurrences import INPUTS, shape

# 2 rows, 2 time steps of the target, 3 source positions, 3 hidden units, 5 units of a key, 4 of a value
SIZES = {"batch": 2, "time": 2, "position": 3, "hidden": 3, "key": 5, "value": 4}
CELLS = {"gru": 2, "lstm": 4, "decoder": 2}  # and the number of blocks of hidden units with a common norm


def inputs_of(cell: str, *, padding: bool = True, **sizes: int) -> dict[str, Tensor]:
    """Return inputs of a cell. ``sizes``: those that differ from ``SIZES``. Padding: one position of the second row."""
    sizes = {**SIZES, **sizes}
    inputs = {name: draw(*shape(axes, sizes), seed=40 + i) for i, (name, axes) in enumerate(INPUTS[cell].items())}
    inputs["mask"] = torch.ones(inputs["mask"].shape, dtype=torch.bool)
    inputs["mask"][1:, -1] = not padding
    return inputs


def form_of(cell: str, name: str) -> list[int]:
    """Return the form of "ln", or of "rms" with two thirds of the units in each statistic."""
    sizes = (3 * CELLS[cell], SIZES["hidden"], SIZES["key"])
    kind, (gates, inner, key) = (Kind.LAYER, sizes) if name == "ln" else (Kind.RMS, [2 * size // 3 for size in sizes])
    return [kind, gates, inner, 1, *([kind, key, 1] if cell == "decoder" else [])]
