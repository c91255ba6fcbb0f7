"""The operators that layers call, and the functions over sequences, refuse arguments that do not fit together.

Without these checks, kernels would read and write beyond the end of tensors.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sites import draw, fill
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.norms import kernels
from rmsexp.norms.kernels.forms import Kind

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

B, T, H, S, C, A = 2, 3, 4, 3, 5, 6  # rows, time steps, hidden units, source positions, units of a key, of a value
EPS = 1e-2
SEQUENCES = ("gru", "lstm", "decoder")
Arguments = dict[str, Any]


def operator(name: str) -> Any:
    """Return the operator of a case, whose name is "operator" or "operator, variant"."""
    return getattr(torch.ops.rmsexp, name.split(",")[0]).default


def norm_forward(x: Tensor, *, maps: bool, k: int) -> Arguments:
    width = x.shape[1]
    parameters = {"gain": draw(width, seed=1), "shift": draw(width, seed=2)}
    return {"x": x, **parameters, "maps": maps, "kind": Kind.LAYER, "k": k, "inside": True, "eps": EPS, "slope": 0.5}


def pointwise(x: Tensor) -> Arguments:
    numbers = {"alpha": draw(1, seed=1), "offset": draw(1, seed=2)}
    vectors = {"gain": draw(x.shape[1], seed=3), "shift": draw(x.shape[1], seed=4)}
    return {"x": x, **numbers, **vectors, "function": "erf", "maps": x.ndim == 4, "slope": 0.5}


def add_norm_forward() -> Arguments:
    arguments = norm_forward(rows(), maps=False, k=5)
    options = {key: arguments[key] for key in ("gain", "shift", "kind", "k", "inside", "eps")}
    return {"x": arguments["x"], "addend": draw(3, 5, seed=3), **options}


def sequence(name: str) -> Arguments:
    """Return the arguments of a function over whole sequences."""
    width = 4 * H if name == "lstm" else 3 * H
    tensors = {
        "x": draw(B, T, width), "h0": draw(B, H), "c0": draw(B, H), "s0": draw(B, H), "weight": draw(width, H),
        "bias": draw(width), "affine": draw(2, 2, width), "cell_affine": draw(2, H),
        "mask": torch.ones(B, S if name == "decoder" else T, dtype=torch.bool), "reverse": False,
        "form": [Kind.LAYER, width if name == "lstm" else 2 * H, H, 1], "eps": EPS, "keys": draw(B, S, C),
        "values": draw(B, S, A), "w_first": draw(3 * H, H), "w_between": draw(C + 3 * H, H),
        "w_context": draw(3 * H, A), "score": draw(C), "affine_first": draw(2, 2, 3 * H),
        "affine_second": draw(2, 2, 3 * H), "affine_query": draw(2, C), "query_form": kernels.Form(Kind.LAYER, C),
    }  # fmt: skip
    return {parameter: tensors[parameter] for parameter in inspect.signature(getattr(kernels, name)).parameters}


def rows() -> Tensor:
    return draw(3, 5)


def maps() -> Tensor:
    return draw(2, 5, 3, 4)


def channels_last() -> Tensor:
    return maps().contiguous(memory_format=torch.channels_last)


CASES: dict[str, Callable[[], Arguments]] = {
    "normalise, rows": lambda: norm_forward(rows(), maps=False, k=5),
    "normalise, maps": lambda: norm_forward(maps(), maps=True, k=12),
    "normalise, channels-last maps": lambda: norm_forward(channels_last(), maps=True, k=12),
    "pointwise, rows": lambda: pointwise(rows()),
    "pointwise, channels-last maps": lambda: pointwise(channels_last()),
    "add_normalise": add_norm_forward,
    **{name: partial(sequence, name) for name in SEQUENCES},
}


def of_other_sizes(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    for axis in range(tensor.dim()):
        yield f"axis {axis} one shorter", tensor.narrow(axis, 0, tensor.shape[axis] - 1).clone()
        yield f"axis {axis} one longer", torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis)
    yield "one axis more", tensor.unsqueeze(0).clone()
    yield "one axis fewer", tensor[0].clone()


def of_other_dtypes(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "integers", tensor.to(torch.int64)
    yield "single precision", tensor.float()
    yield "on the meta device", tensor.to("meta")


def changes(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Yield what was changed, and the arguments with one tensor replaced."""
    for key, value in arguments.items():
        for what, other in (*of_other_sizes(value), *of_other_dtypes(value)) if isinstance(value, Tensor) else ():
            yield f"{key}, {what}", {**arguments, key: other}


def fits(name: str, what: str) -> bool:
    """Return whether the arguments still fit together after a change of one of them."""
    key, change = what.split(", ")
    if name in SEQUENCES:  # one row is that of every row; only x has the target's positions
        one_row = key in ("h0", "c0", "mask") and change == "axis 0 one shorter" and B == 2
        return one_row or (name == "decoder" and key == "x" and change.startswith("axis 1 one"))
    if key in ("gain", "shift", "alpha", "offset", "addend"):
        return change == "single precision"
    if key != "x" or name.startswith("add"):
        return False
    channels_or_axes = {"axis 1 one shorter", "axis 1 one longer", "one axis more", "one axis fewer"}
    refused = channels_or_axes if "maps" in name else {"axis 1 one shorter", "axis 1 one longer"}
    return change not in {*refused, "integers", "on the meta device"}


def call(name: str, arguments: Arguments) -> list[Tensor]:
    """Call an operator, or a function over whole sequences, with copies of the tensors, and return its results."""
    copies = copy.deepcopy(arguments)  # clone() would close gaps in memory
    results = getattr(kernels, name)(**copies) if name in SEQUENCES else operator(name)(*copies.values())
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("name", CASES)
def test_tensors_that_do_not_fit(name: str) -> None:
    arguments = CASES[name]()
    call(name, arguments)
    accepted, messages = [], []
    for what, changed in changes(arguments):
        if fits(name, what):
            call(name, changed)
            continue
        try:
            call(name, changed)
            accepted.append(what)
        except NotImplementedError:
            continue  # raised by torch for a dtype or device that the operator does not support
        except (ValueError, RuntimeError) as error:
            messages.append(str(error))
    assert not accepted
    assert max(map(len, messages)) < 300


@pytest.mark.parametrize("name", CASES)
def test_tensors_with_gaps_in_memory(name: str) -> None:
    """An operator refuses a tensor whose elements along the last axis are not adjacent, or has the same results."""
    arguments = CASES[name]()
    expected = call(name, arguments)
    for key, value in arguments.items():
        if isinstance(value, Tensor):
            gaps = torch.stack([value, value], -1)[..., 0]
            try:
                results = call(name, {**arguments, key: gaps.as_strided(gaps.shape, gaps.stride())})
            except ValueError:
                continue
            for result, other in zip(results, expected, strict=True):
                torch.testing.assert_close(result, other, rtol=1e-10, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", CASES)
def test_forms_that_the_kernels_cannot_compute(name: str) -> None:
    arguments = CASES[name]()
    if "normalise" in name:
        n = 12 if "maps" in name else 5
        rms = {"kind": Kind.RMS}
        call(name, {**arguments, **rms, "k": n})
        wrong: list[Arguments] = [{**rms, "k": 0}, {**rms, "k": n + 1}, {"kind": 9}, {"inside": False}]
        wrong += [{"slope": 0.0}, {"slope": 1.5}] if "slope" in arguments else []
    elif name.startswith("pointwise"):
        wrong = [{"function": "sin"}, {"slope": 0.0}, {"slope": 1.5}]
    else:
        form = arguments["form"]
        rms = [Kind.RMS, *form[1:]]
        forms = [[9, *form[1:]], form[:-1], [*form, 1], [Kind.LAYER, form[1] - 1, *form[2:]]]
        forms += [[*form[:-1], 0]]  # the eps of layer norm is inside the root
        for place in range(1, len(form) - 1):
            forms += [[*rms[:place], k, *rms[place + 1 :]] for k in (0, form[place] + 1)]
        call(name, {**arguments, "form": rms})
        wrong = [{"form": other} for other in forms]
        wrong += [{"query_form": kernels.Form(Kind.LAYER, C, False)}] if "query_form" in arguments else []
    for change in wrong:
        with pytest.raises(ValueError, match=r"norm|slope|unpack|function"):
            call(name, {**arguments, **change})


@pytest.mark.parametrize(("kind", "inside"), [(9, True), (Kind.LAYER, False)])
@pytest.mark.parametrize("name", ["normalise", "add_normalise"])
def test_elementary_operations_refuse_these_forms_too(name: str, kind: int, inside: bool) -> None:
    arguments = {**(norm_forward(rows(), maps=False, k=5) if name == "normalise" else add_norm_forward())}
    x, *others = {**arguments, "kind": kind, "inside": inside}.values()
    with pytest.raises(ValueError, match="norm"):
        torch.func.jvp(lambda x: operator(name)(x, *others), (x,), (x,))


# --- layers


def layer(width: int, **options: Any) -> norms.RMSNorm:
    return norms.RMSNorm(width, impl="fused", **options)


def with_gain(width: int, *shape: int) -> norms.RMSNorm:
    """Return a layer over ``width`` units whose gain was replaced by one of another shape."""
    replaced = layer(width)
    replaced.weight = nn.Parameter(torch.ones(shape))
    return replaced


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {  # layer, shape of the input, message
    "more channels than gains": (lambda: layer(4, axes=(2, 3)), (1, 16, 2, 2), "feature maps"),
    "a gain of another size": (lambda: with_gain(64, 3), (2, 64), "gain"),
    "a gain for each head": (lambda: with_gain(4, 3, 4), (2, 3, 4), "gain"),
    "maps with five axes": (lambda: layer(4, axes=(2, 3)), (2, 4, 2, 2, 3), "height"),
    "a layer on the meta device": (lambda: layer(4, device="meta"), (2, 4), "meta"),
    "a GRU's input without time": (
        lambda: fill(GRU(norms.RMS(name="rms", impl="fused"), "u", 5, 8)).float(),
        (4, 5),
        "time",
    ),
    "an LSTM's input without time": (
        lambda: fill(LSTM(norms.RMS(name="rms", impl="fused"), "u", 5, 8)).float(),
        (4, 5),
        "time",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse_what_the_operators_refuse(name: str) -> None:
    make, shape, message = LAYERS[name]
    with pytest.raises(ValueError, match=message):
        make()(torch.ones(shape))
