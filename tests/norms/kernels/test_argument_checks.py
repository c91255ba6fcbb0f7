"""Every operator refuses arguments that do not fit together, with C++ kernels and with Triton kernels.

Without these checks, kernels would read and write beyond the end of tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from helpers.interpreter import INTERPRETED, assert_passes_in_the_interpreter
from helpers.sites import draw, fill
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.norms.kernels.forms import Kind

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

B, T, H, S, C, A = 2, 3, 4, 3, 5, 6  # rows, time steps, hidden units, source positions, units of a key, of a value
PARTS = B if INTERPRETED else 1  # sums of gradients: one for each row (Triton) or for each thread (C++)
EPS = 1e-2
Arguments = dict[str, Any]


@pytest.fixture(autouse=True)
def as_many_threads_as_parts() -> None:
    torch.set_num_threads(PARTS)


@pytest.mark.minutes
@pytest.mark.skipif(INTERPRETED, reason="this process already runs the interpreter")
def test_under_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")
    assert_passes_in_the_interpreter(__file__)


def operator(name: str) -> Any:
    """Return the operator of a case, whose name is "operator" or "operator, variant"."""
    return getattr(torch.ops.rmsexp, name.split(",")[0]).default


def norm_forward(x: Tensor, *, maps: bool, k: int) -> Arguments:
    width = x.shape[1]
    parameters = {"gain": draw(width, seed=1), "shift": draw(width, seed=2)}
    return {"x": x, **parameters, "maps": maps, "kind": Kind.LAYER, "k": k, "inside": True, "eps": EPS, "slope": 0.5}


def norm_backward(x: Tensor, *, maps: bool, k: int) -> Arguments:
    forward = norm_forward(x, maps=maps, k=k)
    _, mean, scale = torch.ops.rmsexp.normalise_forward(*forward.values())
    gain, shift = forward.pop("gain"), forward.pop("shift")
    x = forward.pop("x")
    return {"dy": draw(*x.shape), "x": x, "gain": gain, "mean": mean, "scale": scale, "shift": shift, **forward}


def pointwise(x: Tensor, *, backward: bool) -> Arguments:
    tensors = {"dy": draw(*x.shape)} if backward else {}
    numbers = {"alpha": draw(1, seed=1), "offset": draw(1, seed=2)}
    vectors = {"gain": draw(x.shape[1], seed=3), "shift": draw(x.shape[1], seed=4)}
    return {**tensors, "x": x, **numbers, **vectors, "function": "erf", "maps": x.ndim == 4, "slope": 0.5}


def add_norm_forward() -> Arguments:
    arguments = norm_forward(rows(), maps=False, k=5)
    options = {key: arguments[key] for key in ("gain", "shift", "kind", "k", "inside", "eps")}
    return {"x": arguments["x"], "addend": draw(3, 5, seed=3), **options}


def add_norm_backward() -> Arguments:
    arguments = norm_backward(rows(), maps=False, k=5)
    options = {key: arguments[key] for key in ("gain", "mean", "scale", "shift", "kind", "k", "inside", "eps")}
    return {"dtotal": draw(3, 5, seed=3), "dy": arguments["dy"], "total": arguments["x"], **options}


def step(states: int, gates: int, norms: int, *, backward: bool) -> Arguments:
    """Return the tensors that the steps of a GRU (3 gates) and of an LSTM (4 gates) have in common."""
    width = gates * H
    tensors = {
        "ax": draw(B, width), "ah": draw(B, width), "h": draw(B, H), "c": draw(B, H),
        "mask": torch.ones(B, dtype=torch.bool), "bias": draw(width), "affine": draw(2, 2, width),
        "cell_affine": draw(2, H), "gates": draw(B, width + (states - 1) * H), "statistics": draw(B, 2 * norms),
        "out": draw(B, H), "out_h": draw(B, H), "out_c": draw(B, H), "dout": draw(B, H), "dh": draw(B, H),
        "dc": draw(B, H), "dax": draw(B, width), "dah": draw(B, width), "partials": draw(PARTS, 2, 2, width),
        "cell_partials": draw(PARTS, 2, H),
    }  # fmt: skip
    tensors |= {"form": [Kind.LAYER, 2 * H if gates == 3 else width, H, 1], "eps": EPS}
    name = f"{'gru' if gates == 3 else 'lstm'}_gates_{'backward' if backward else 'forward'}"
    return {argument.name: tensors[argument.name] for argument in operator(name)._schema.arguments}


def attention(*, backward: bool) -> Arguments:
    tensors = {
        "dcontext": draw(B, A), "keys": draw(B, S, C), "query": draw(B, C), "values": draw(B, S, A),
        "mask": torch.ones(B, S, dtype=torch.bool), "score": draw(C), "affine": draw(2, C), "statistics": draw(B, 2),
        "alpha": draw(B, S), "context": draw(B, A), "dkeys": draw(B, S, C), "dquery": draw(B, C),
        "partials": draw(PARTS, 3, C), "form": [Kind.LAYER, C, 1], "eps": EPS,
    }  # fmt: skip
    name = f"attention_{'backward' if backward else 'forward'}"
    return {argument.name: tensors[argument.name] for argument in operator(name)._schema.arguments}


def sequence(name: str) -> Arguments:
    """Return the arguments of an operator over whole sequences; for backward operators, run the forward operator."""
    width = 4 * H if name.startswith("lstm") else 3 * H
    tensors = {
        "x": draw(B, T, width), "h0": draw(B, H), "c0": draw(B, H), "s0": draw(B, H), "weight": draw(width, H),
        "bias": draw(width), "affine": draw(2, 2, width), "cell_affine": draw(2, H),
        "mask": torch.ones(B, S if name.startswith("decoder") else T, dtype=torch.bool), "reverse": False,
        "form": [Kind.LAYER, width if width == 4 * H else 2 * H, H, 1], "eps": EPS, "keys": draw(B, S, C),
        "values": draw(B, S, A), "w_first": draw(3 * H, H), "w_between": draw(C + 3 * H, H),
        "w_context": draw(3 * H, A), "score": draw(C), "affine_first": draw(2, 2, 3 * H),
        "affine_second": draw(2, 2, 3 * H), "affine_query": draw(2, C), "query_form": [Kind.LAYER, C, 1],
        "biased": True, "dout": draw(B, T, H), "dstates": draw(B, T, H), "dcontexts": draw(B, T, A), "saved": [],
    }  # fmt: skip
    forward = operator(name.replace("backward", "forward"))
    if "backward" in name:
        tensors["saved"] = forward(*(tensors[argument.name] for argument in forward._schema.arguments))
    return {argument.name: tensors[argument.name] for argument in operator(name)._schema.arguments}


def rows() -> Tensor:
    return draw(3, 5)


def maps() -> Tensor:
    return draw(2, 5, 3, 4)


def channels_last() -> Tensor:
    return maps().contiguous(memory_format=torch.channels_last)


CASES: dict[str, Callable[[], Arguments]] = {
    "normalise, rows": lambda: norm_forward(rows(), maps=False, k=5),
    "normalise, maps": lambda: norm_forward(maps(), maps=True, k=12),
    "normalise_forward, rows": lambda: norm_forward(rows(), maps=False, k=5),
    "normalise_forward, maps": lambda: norm_forward(maps(), maps=True, k=12),
    "normalise_forward, channels-last maps": lambda: norm_forward(channels_last(), maps=True, k=12),
    "normalise_backward, rows": lambda: norm_backward(rows(), maps=False, k=5),
    "normalise_backward, maps": lambda: norm_backward(maps(), maps=True, k=12),
    "normalise_backward, channels-last maps": lambda: norm_backward(channels_last(), maps=True, k=12),
    "pointwise, rows": lambda: pointwise(rows(), backward=False),
    "pointwise_forward, maps": lambda: pointwise(maps(), backward=False),
    "pointwise_backward, rows": lambda: pointwise(rows(), backward=True),
    "pointwise_backward, channels-last maps": lambda: pointwise(channels_last(), backward=True),
    "add_normalise": add_norm_forward,
    "add_normalise_forward": add_norm_forward,
    "add_normalise_backward": add_norm_backward,
    "gru_gates_forward": lambda: step(1, 3, 4, backward=False),
    "gru_gates_backward": lambda: step(1, 3, 4, backward=True),
    "lstm_gates_forward": lambda: step(2, 4, 3, backward=False),
    "lstm_gates_backward": lambda: step(2, 4, 3, backward=True),
    "attention_forward": lambda: attention(backward=False),
    "attention_backward": lambda: attention(backward=True),
}
if not INTERPRETED:  # the operators over whole sequences are the same for both kinds of kernels
    for _name in ("gru", "lstm", "decoder"):
        for _direction in ("forward", "backward"):
            CASES[f"{_name}_{_direction}"] = partial(sequence, f"{_name}_{_direction}")


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
    """Yield what was changed, and the arguments with one tensor, or one of the saved tensors, replaced."""
    for key, value in arguments.items():
        saved = isinstance(value, list) and isinstance(value[0], Tensor)
        for place, tensor in enumerate(value if saved else [value] if isinstance(value, Tensor) else []):
            for what, other in (*of_other_sizes(tensor), *of_other_dtypes(tensor)):
                replaced = [*value[:place], other, *value[place + 1 :]] if saved else other
                yield f"{key}[{place}], {what}" if saved else f"{key}, {what}", {**arguments, key: replaced}


def fits(name: str, what: str) -> bool:
    """Return whether the arguments still fit together after a change of one of them."""
    if name == "decoder_forward" and what in ("x, axis 1 one shorter", "x, axis 1 one longer"):
        return True  # only x has an axis of the target's positions
    if "normalise" not in name and not name.startswith("pointwise"):
        return not INTERPRETED and what.endswith("partials, axis 0 one longer")  # there may be fewer threads than parts
    key, change = what.split(", ")
    if key in ("gain", "shift", "alpha", "offset", "addend"):
        return change == "single precision"
    if key != "x" or name.startswith("add") or "backward" in name:
        return False
    channels_or_axes = {"axis 1 one shorter", "axis 1 one longer", "one axis more", "one axis fewer"}
    refused = channels_or_axes if "maps" in name else {"axis 1 one shorter", "axis 1 one longer"}
    return change not in {*refused, "integers", "on the meta device"}


def call(name: str, arguments: Arguments) -> list[Tensor]:
    """Call an operator with copies of the tensors, and return its results and the tensors that it may have written."""
    copies = copy.deepcopy(list(arguments.values()))  # clone() would close gaps in memory
    results = operator(name)(*copies)
    if isinstance(results, Tensor):
        return [results]
    written = [value for value in copies if isinstance(value, Tensor)] if results is None else []
    return [*written, *(results or ())]


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
        rms = (
            {"kind": Kind.RMS, "mean": torch.empty(0, dtype=torch.float64)}
            if "backward" in name
            else {"kind": Kind.RMS}
        )
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
        wrong += [{"query_form": [Kind.LAYER, C, 0]}] if "query_form" in arguments else []
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
    "a layer on the meta device": (lambda: layer(4, device="meta"), (2, 4), "device"),
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
