"""A NaN or an infinity in one element of any operand of any fused operator is seen in the results.

A test replaces one element of one operand by NaN, infinity or minus infinity, and computes the outputs and the
gradients of all operands, in float32:

- where the eager form is not finite, the fused form is not finite;
- where the eager form is finite, the fused form is finite and has the same value;
- results that do not depend on the element keep their values.

DIFFERENCES lists the exceptions. The tests run with the C++ kernels and, in another process, with the Triton kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from helpers.interpreter import INTERPRETED, assert_passes_in_the_interpreter
from helpers.sites import draw, fill
from helpers.translation_models import SOURCES, TARGETS
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.translation import DecoderState

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

VALUES = (math.nan, math.inf) if INTERPRETED else (math.nan, math.inf, -math.inf)
WIDTH = 19  # one or several SIMD vectors, and a part of one
LAYERS: dict[str, Callable[..., norms.Normaliser]] = {
    "ln": norms.LayerNorm,
    "prms, outside": partial(norms.RMSNorm, p=0.3, bias=True, eps_inside=False),
    "derf": lambda n, impl, axes: norms.DynamicErf(n, impl=impl, maps=axes is not None),
}
MEMORY: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: draw(3, WIDTH),
    "maps": lambda: draw(2, 3, 3, 7),
    "channels-last maps": lambda: draw(2, WIDTH, 3, 7).contiguous(memory_format=torch.channels_last),
}
NORMS: dict[str, norms.Norm] = {
    "ln": norms.LN(name="ln"),
    "prms, outside": norms.PRMS(name="prms", p=0.3, eps_inside=False),
}
UNITS: dict[str, Any] = {"GRU": GRU, "LSTM": LSTM}
BATCH, TIME, INPUT, HIDDEN, POSITIONS = 2, 2, 3, 17, 3

# (case, operand, value) for which the fused form is allowed to differ from the eager form, and why.
# For an infinite gain, y = x * gain * scale - mean * gain * scale is NaN. The eager form subtracts the mean first,
# so that y is infinite, and the leaky ReLU's slope depends on its sign.
infinities = () if INTERPRETED else (math.inf, -math.inf)
DIFFERENCES = {("ln, channels-last maps", "layer.weight", value) for value in infinities}

Tensors = dict[str, Tensor]


class Case(NamedTuple):
    """An eager and a fused module of equal parameters, and the inputs of their ``forward``, which returns a tuple."""

    name: str
    eager: nn.Module
    fused: nn.Module
    inputs: Tensors

    def operands(self) -> Tensors:
        """Return parameters, inputs, and gradients of the results, which the backward operators read, in float32."""
        parameters = {name: parameter.detach() for name, parameter in self.eager.named_parameters()}
        results = self.eager(**self.inputs)
        gradients = {f"gradient {i}": draw(*result.shape, seed=90 + i) for i, result in enumerate(results)}
        return {name: value.float() for name, value in {**parameters, **self.inputs, **gradients}.items()}

    def run(self, module: nn.Module, operands: Tensors) -> Tensors:
        """Return the results of a module, and the gradients of its parameters and inputs."""
        leaves = {name: value for name, value in operands.items() if not name.startswith("gradient")}
        leaves = {name: value.detach().requires_grad_() for name, value in leaves.items()}
        parameters = {name: leaf for name, leaf in leaves.items() if name not in self.inputs}
        results = torch.func.functional_call(module, parameters, (), {name: leaves[name] for name in self.inputs})
        sent = [operands[f"gradient {i}"] for i in range(len(results))]
        gradients = torch.autograd.grad(results, list(leaves.values()), sent, allow_unused=True, materialize_grads=True)
        named = {f"result {i}": result.detach() for i, result in enumerate(results)}
        return {**named, **{f"gradient of {name}": value for name, value in zip(leaves, gradients, strict=True)}}


def with_element(operands: Tensors, name: str, index: int, value: float) -> Tensors:
    """Return the operands, with element ``index`` (in row-major order) of operand ``name`` replaced by ``value``."""
    tensor = operands[name].clone()
    tensor[torch.unravel_index(torch.tensor(index), tensor.shape)] = value
    return {**operands, name: tensor}


def agree(fused: Tensor, eager: Tensor) -> bool:
    """Return whether both forms are finite in the same elements, and equal there."""
    finite = eager.isfinite()
    largest = max(1.0, float(eager[finite].abs().max())) if finite.any() else 1.0
    same = torch.equal(fused.isfinite(), finite)
    return same and torch.allclose(fused[finite], eager[finite], rtol=0, atol=1e-4 * largest)


def assert_seen(case: Case, *, smooth: bool = True) -> None:
    """Assert the claims for the first element of each operand, in C++ also for the last, and for each value.

    Of the decoder's GRU, the first elements are enough.

    Elements that do not change in float64 if the replaced element is -100 or 100 do not depend on it. This holds for
    ``smooth`` functions only; for others, the third claim is not tested.
    """
    operands = case.operands()
    wide = {name: operand.double() for name, operand in operands.items()}
    before, unchanged = case.run(case.eager, wide), case.run(case.fused, operands)
    for name, operand in operands.items():
        in_gru = "_gru." in name  # a parameter of the decoder that the test of the GRU covers
        if INTERPRETED and in_gru:
            continue
        for index in [0] if INTERPRETED or in_gru else [0, operand.numel() - 1]:
            moved = [case.run(case.eager, with_element(wide, name, index, number)) for number in (-100.0, 100.0)]
            for value in VALUES:
                if (case.name, name, value) in DIFFERENCES:
                    continue
                planted = with_element(operands, name, index, value)
                eager, fused = case.run(case.eager, planted), case.run(case.fused, planted)
                for key in fused:
                    independent = smooth & (moved[0][key] == before[key]) & (moved[1][key] == before[key])
                    assert torch.equal(fused[key][independent], unchanged[key][independent]), (name, index, value, key)
                    assert agree(fused[key], eager[key]), (name, index, value, key)


@pytest.fixture(autouse=True)
def parts_of_gradients() -> None:
    """Use as many threads as there are rows: there is a partial sum per thread on CPU, and Triton needs one per row."""
    if INTERPRETED:
        torch.set_num_threads(BATCH)


@pytest.mark.minutes
@pytest.mark.skipif(INTERPRETED, reason="this process already runs the interpreter")
def test_under_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")
    assert_passes_in_the_interpreter(__file__)


class Layer(nn.Module):
    def __init__(self, name: str, impl: str, memory: str, slope: float) -> None:
        super().__init__()
        axes = None if memory == "rows" else (2, 3)
        self.layer = fill(LAYERS[name](MEMORY[memory]().shape[1], impl=impl, axes=axes))
        self.slope = slope

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.layer(x, slope=self.slope),)


@pytest.mark.parametrize("slope", [1.0] if INTERPRETED else [1.0, 0.1])
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("name", LAYERS)
def test_norms(name: str, memory: str, slope: float) -> None:
    eager, fused = (Layer(name, impl, memory, slope) for impl in ("eager", "fused"))
    assert_seen(Case(f"{name}, {memory}", eager, fused, {"x": MEMORY[memory]()}), smooth=slope == 1)


class Unit(nn.Module):
    def __init__(self, unit: str, norm: norms.Norm, mask: Tensor | None, *, reverse: bool) -> None:
        super().__init__()
        self.unit = fill(UNITS[unit](norm, "unit", INPUT, HIDDEN))
        self.mask, self.reverse = mask, reverse

    def forward(self, x: Tensor, **initial: Tensor) -> tuple[Tensor]:
        return (self.unit(x, self.mask, tuple(initial.values()), reverse=self.reverse),)


def unit_case(unit: str, name: str, mask: Tensor | None = None, *, reverse: bool = False) -> Case:
    eager, fused = (Unit(unit, replace(NORMS[name], impl=impl), mask, reverse=reverse) for impl in ("eager", "fused"))
    initial = {f"state {i}": draw(BATCH, HIDDEN, seed=20 + i) for i in range(eager.unit.states)}
    return Case(f"{unit}, {name}", eager, fused, {"x": draw(BATCH, TIME, INPUT), **initial})


@pytest.mark.parametrize("name", ["prms, outside"] if INTERPRETED else NORMS)
@pytest.mark.parametrize("unit", UNITS)
def test_recurrences(unit: str, name: str) -> None:
    assert_seen(unit_case(unit, name))


class Decoder(nn.Module):
    """The decoder of RNNSearch, up to the states and contexts."""

    def __init__(self, norm: norms.Norm, mask: Tensor) -> None:
        super().__init__()
        model = RNNSearch(norm, SOURCES, TARGETS, embedding=INPUT, hidden=HIDDEN)
        for name, _ in [*model.named_children(), *model.named_parameters(recurse=False)]:
            if name not in ("first_gru", "second_gru", "query", "score"):
                delattr(model, name)
        self.model, self.mask = fill(model), mask

    def forward(self, previous: Tensor, state: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        start, weights = DecoderState((values, keys, self.mask), (state,)), self.model._weights()
        if self.model.first_gru.fused:
            return self.model._decode_fused(previous, start, weights)
        return self.model._decode_by_step(previous, start, weights, torch.ones(previous.shape[:2], dtype=torch.bool))


def decoder_case(name: str, mask: Tensor) -> Case:
    eager, fused = (Decoder(replace(NORMS[name], impl=impl), mask) for impl in ("eager", "fused"))
    inputs = {
        "previous": draw(BATCH, 1 if INTERPRETED else TIME, INPUT),
        "state": draw(BATCH, HIDDEN, seed=20),
        "keys": draw(BATCH, POSITIONS, 2 * HIDDEN, seed=21),
        "values": draw(BATCH, POSITIONS, 2 * HIDDEN, seed=22),
    }
    return Case(f"decoder, {name}", eager, fused, inputs)


def test_the_decoder() -> None:
    assert_seen(decoder_case("prms, outside", torch.ones(BATCH, POSITIONS, dtype=torch.bool)))


# --- padding


@pytest.mark.parametrize("name", ["keys", "values"])
def test_padding_of_the_source_is_not_read(name: str) -> None:
    """The eager form multiplies the values of padding by attention weights of 0, which gives NaN."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    case = decoder_case("prms, outside", mask)
    operands = case.operands()
    unchanged = case.run(case.fused, operands)
    for value in VALUES:
        planted = {**operands, name: operands[name].masked_fill(~mask.unsqueeze(-1), value)}
        for key, result in case.run(case.fused, planted).items():
            assert torch.equal(result, unchanged[key]), (value, key)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reverse", [False] if INTERPRETED else [False, True])
def test_the_gradient_of_a_state_on_padding_passes_to_the_last_state(unit: str, reverse: bool) -> None:
    """A value that is not finite in the first sequence leaves the results of the second, padded one unchanged."""
    case = unit_case(unit, "ln", torch.tensor([[True, True], [True, False]]), reverse=reverse)
    operands = case.operands()
    unchanged = case.run(case.fused, operands)
    for name in ("x", "gradient 0"):
        for value in VALUES:
            results = case.run(case.fused, with_element(operands, name, 0, value))
            for key in ("result 0", "gradient of x"):
                assert torch.equal(results[key][1], unchanged[key][1])
