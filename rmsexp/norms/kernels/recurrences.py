"""The fused recurrences: one operator computes a whole sequence, another its backward pass through time.

*Summed inputs* are the product of a weight and a vector, plus a bias if there is one. The vector is the input of a time
step or the state, and the summed inputs from each are normalised separately.

Padding has no effect on results and gradients, even if values there are not finite. The eager forms differ in this:
they multiply values at padding by 0, which gives NaN if these are not finite. Results are deterministic for a fixed
number of threads; with another number, gradients of parameters may differ by rounding errors. Second derivatives are
not available.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rmsexp.norms.kernels import graphs

Optional = Tensor | None
PART = 16  # time steps, and source positions, of a part of a sequence on a GPU
Sizes = dict[str, int]

# The inputs of the operators, in their order, with their shapes. `key` and `value`: units of a key and of a value;
# `position`: positions of the source; the others are plain. An `affine`, (2, 2, n), holds the gain and shift of the
# norms of a step's summed inputs: affine[0] for those from the input, affine[1] for those from the state.
INPUTS = {
    "gru": {  # blocks of 3*hidden: reset gate, update gate, candidate
        "x": "batch time 3*hidden",  # summed inputs from the input, before their norms
        "h0": "batch hidden",  # initial state
        "weight": "3*hidden hidden",  # by which the state is multiplied
        "affine": "2 2 3*hidden",
        "bias": "3*hidden",  # added to the summed inputs from the state; None for no bias
        "mask": "batch time",  # padding mask: where it is false, the state does not change; None for no padding
    },
    "lstm": {  # blocks of 4*hidden: input gate, forget gate, output gate, candidate
        "x": "batch time 4*hidden",
        "h0": "batch hidden",
        "c0": "batch hidden",  # initial cell, as h0
        "weight": "4*hidden hidden",
        "affine": "2 2 4*hidden",
        "cell_affine": "2 hidden",  # gain and shift of the cell's norm
        "mask": "batch time",
    },
    "decoder": {
        "x": "batch time 3*hidden",  # summed inputs from the previous tokens, before their norms
        "s0": "batch hidden",
        "keys": "batch position key",
        "values": "batch position value",
        "w_first": "3*hidden hidden",  # weight of the first GRU for its state
        # for the state between the GRUs: the first rows give the query, the others the second GRU's summed inputs
        "w_between": "key+3*hidden hidden",
        "w_context": "3*hidden value",  # weight of the second GRU for the context
        "score": "key",  # maps the attention's hidden layer to energies
        "affine_first": "2 2 3*hidden",
        "affine_second": "2 2 3*hidden",
        "affine_query": "2 key",
        "bias": "3*hidden",  # added to the second GRU's summed inputs from its state; None for no bias
        "mask": "batch position",  # padding mask of the source, false on padding
    },
}


@torch._disable_dynamo  # type: ignore[attr-defined]  # as torch.compiler.disable, but imports no compiler before a call
def sequence(
    cell: str, form: Sequence[int], eps: float, inputs: Mapping[str, Optional], *, reverse: bool = False
) -> tuple[Tensor, ...]:
    """Return the states of a recurrence after each step, ``(batch, time, hidden)``, in a tuple.

    The cell "decoder" is two GRUs with attention between them. At each time step, the first GRU updates the state from
    the previous token, attention reads the source with a query computed from that state, and the second GRU updates the
    state from the attention's context. The tuple has the states after the second GRU, and the contexts, ``(batch,
    time, value)``.

    Args:
        cell: "gru" (:class:`rmsexp.models.recurrent.GRU`), "lstm" or "decoder".
        form: The norms of a step, a :class:`StepForm`; for the decoder, both GRUs' norms are alike, and kind, k and
            inside of the query's norm (:class:`Form`) follow.
        eps: The eps of all norms.
        inputs: The tensors that ``INPUTS`` names for the cell. float16 and bfloat16 are cast to float32.
        reverse: Whether x is read from last to first position; not for the decoder. Results keep the order of x.

    Results have the dtype of ``x``; under autocast, float32.

    Raises: ValueError for tensors whose shapes, dtypes or devices do not fit together. The operators check none of
        these: with other arguments they would read and write beyond the end of tensors.
    """
    x = inputs["x"]
    assert x is not None
    named = {
        name: tensor.float() if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        for name, tensor in ((name, inputs[name]) for name in INPUTS[cell])
    }
    check(cell, named)
    arguments = cell, reverse, list(map(int, form)), eps
    in_parts = x.is_cuda and x.shape[1] > 0
    results = _in_parts(*arguments, named) if in_parts else _Sequence.apply(*arguments, *named.values())
    results = results[: 1 + (cell == "decoder")]  # without an LSTM's last cell
    return results if torch.is_autocast_enabled(x.device.type) else tuple(result.to(x.dtype) for result in results)


def _in_parts(
    cell: str, reverse: bool, form: list[int], eps: float, inputs: Mapping[str, Optional]
) -> tuple[Tensor, ...]:
    """Return the results of :class:`_Sequence`, computed ``PART`` time steps and so many source positions at a time.

    So sequences of all lengths have the same few shapes, for which :mod:`rmsexp.norms.kernels.graphs` has CUDA graphs.
    """
    named, x = {**inputs}, inputs["x"]
    assert x is not None
    steps, is_decoder = x.shape[1], cell == "decoder"
    if not is_decoder and named["mask"] is None and steps % PART:
        named["mask"] = x.new_ones(x.shape[:2], dtype=torch.bool)
    for name in ("x", "mask", *(("keys", "values") if is_decoder else ())):
        if (tensor := named[name]) is not None and (missing := -tensor.shape[1] % PART):
            last = torch.zeros_like(tensor[:, -1:]) if name == "mask" else tensor[:, -1:].detach()
            named[name] = torch.cat([tensor, last.expand(-1, missing, *tensor.shape[2:])], 1)
    starts, found = range(0, steps, PART), dict[int, tuple[Tensor, ...]]()
    of_time = {name: named[name] for name in (("x",) if is_decoder else ("x", "mask"))}
    for start in reversed(starts) if reverse else starts:
        named |= {name: None if each is None else each[:, start : start + PART] for name, each in of_time.items()}
        found[start] = _Sequence.apply(cell, reverse, form, eps, *named.values())
        named["s0" if is_decoder else "h0"] = found[start][0][:, 0 if reverse else -1]
        if cell == "lstm":
            named["c0"] = found[start][1]
    return tuple(torch.cat([found[start][i] for start in starts], 1)[:, :steps] for i in range(1 + is_decoder))


def check(cell: str, inputs: Mapping[str, Optional]) -> None:
    """Check shapes, dtypes and devices of an operator's inputs. Raises: ValueError."""
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    sizes, like = Sizes(), given["x"]
    for name, tensor in given.items():
        for axis, size in zip(INPUTS[cell][name].split(), tensor.shape, strict=False):
            if axis.isalpha():
                sizes.setdefault(axis, size)
    for name, tensor in given.items():
        if tuple(tensor.shape) != shape(INPUTS[cell][name], sizes):
            wanted = ", ".join(INPUTS[cell][name].split())
            raise ValueError(f"expected {name} of shape ({wanted}), with {sizes}; got {tuple(tensor.shape)}")
        dtype = torch.bool if name == "mask" else like.dtype
        if tensor.dtype != dtype or tensor.device != like.device:
            got = f"{tensor.dtype} on {tensor.device}"
            raise ValueError(f"expected {name} of dtype {dtype} on device {like.device}, got {got}")


def shape(axes: str, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape that ``axes`` describes, with a term for each axis, as in "key+3*hidden hidden"."""
    return tuple(
        sum(
            math.prod(int(factor) if factor.isdigit() else sizes.get(factor, -1) for factor in term.split("*"))
            for term in axis.split("+")
        )
        for axis in axes.split()
    )


class _Sequence(torch.autograd.Function):
    """The operator of a ``cell``, a key of ``INPUTS``. ``inputs``: the tensors in ``INPUTS[cell]``, in this order."""

    @staticmethod
    def forward(ctx: Any, cell: str, reverse: bool, form: list[int], eps: float, *inputs: Optional) -> Any:
        x, *others = inputs
        assert x is not None
        tensors = [x, *(None if tensor is None else tensor.contiguous() for tensor in others)]
        with torch.autocast(x.device.type, enabled=False):  # products keep the dtype of their inputs
            saved = graphs.call(f"{cell}_forward", [tensors], reverse, form, eps)
        ctx.save_for_backward(*tensors, *saved)
        ctx.cell, ctx.options = cell, (reverse, form, eps)
        # the initial state is the first, or with `reverse` the last
        states = (saved[0][:-1] if reverse else saved[0][1:]).transpose(0, 1)
        # and an LSTM's last cell, or the contexts of the decoder
        if cell == "gru":
            return (states,)
        return states, saved[1][0 if reverse else -1] if cell == "lstm" else saved[1].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Optional, ...]:
        if torch.is_grad_enabled():  # true in a backward pass only with create_graph=True
            raise RuntimeError("the fused recurrences have no second derivatives; use norm.impl=eager")
        count = len(INPUTS[ctx.cell])
        tensors, saved = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        with torch.autocast(tensors[0].device.type, enabled=False):
            results = graphs.call(f"{ctx.cell}_backward", [gradients, tensors, saved], *ctx.options)
        present = [None if tensor is None else result for tensor, result in zip(tensors, results, strict=False)]
        return None, None, None, None, *present, None  # none for the mask
