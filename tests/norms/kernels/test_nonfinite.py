"""A NaN or an infinity in one element of any operand of any fused operator is seen in the results.

A test replaces one element of one operand by NaN, infinity or minus infinity, and computes the outputs and the
gradients of all operands, in float32:

- where the eager form is not finite, the fused form is not finite;
- where the eager form is finite, the fused form is finite and has the same value;
- results that do not depend on the element keep their values.

DIFFERENCES lists the exceptions. The tests run with the C++ kernels and, in another process, with the Triton kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
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
from rmsexp.models.cross_entropy import token_losses
from rmsexp.models.order_embedding import order_penalty
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.translation import DecoderState

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

VALUES = (math.nan, math.inf) if INTERPRETED else (math.nan, math.inf, -math.inf)
WIDTH = 19  # one or several SIMD vectors, and a part of one
LAYERS: dict[str, Callable[..., norms.Normaliser]] = {
    "ln": norms.LayerNorm,
    "rms": partial(norms.RMSNorm, bias=True),
    "prms": partial(norms.RMSNorm, p=0.3, bias=True),
    "prms, outside": partial(norms.RMSNorm, p=0.3, bias=True, eps_inside=False),
    "l2": partial(norms.L2Norm, bias=True),
    "dyt": lambda n, impl, axes: norms.DynamicTanh(n, impl=impl, maps=axes is not None),
    "derf": lambda n, impl, axes: norms.DynamicErf(n, impl=impl, maps=axes is not None),
}
MEMORY: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: draw(3, WIDTH),
    "maps": lambda: draw(2, 3, 3, 7),
    "channels-last maps": lambda: draw(2, WIDTH, 3, 7).contiguous(memory_format=torch.channels_last),
}
NORMS: dict[str, norms.Norm] = {
    "none": norms.NoNorm(name="none"),
    "ln": norms.LN(name="ln"),
    "rms": norms.RMS(name="rms"),
    "prms, outside": norms.PRMS(name="prms", p=0.3, eps_inside=False),
    "l2": norms.L2(name="l2"),
}
# The interpreter takes milliseconds for a program, so that there are fewer cases for it.
NAMES = ["none", "prms, outside"] if INTERPRETED else list(NORMS)
LN_AND_PRMS = [pytest.param(n, marks=[] if n in ("ln", "prms, outside") else pytest.mark.minutes) for n in NAMES]
UNITS: dict[str, Callable[..., Any]] = {
    "GRU": partial(GRU, name="unit"),
    "LSTM": partial(LSTM, name="unit"),
}
if not INTERPRETED:
    UNITS["GRU with biases on the state's side"] = partial(GRU, name="unit", bias_of_state=True)
BATCH, TIME, INPUT, HIDDEN, POSITIONS = 2, 2, 3, 17, 3
REVERSE = [False] if INTERPRETED else [False, True]

# (case, operand, value) for which the fused form is allowed to differ from the eager form, and why.
DIFFERENCES = {
    # For an infinite gain, y = x * gain * scale - mean * gain * scale is NaN. The eager form subtracts the mean first,
    # so that y is infinite, and the leaky ReLU's slope depends on its sign.
    ("ln, channels-last maps", "layer.weight", math.inf),
    ("ln, channels-last maps", "layer.weight", -math.inf),
}
if INTERPRETED:
    DIFFERENCES = set()

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


def problem(result: Tensor, eager: Tensor, unchanged: Tensor, independent: Tensor) -> str | None:
    """Return how a result of the fused form contradicts the claims of this file, or None if it does not.

    Args:
        eager: The eager form's result.
        unchanged: The fused form's result for the original operands.
        independent: Which elements do not depend on the element that was replaced.
    """
    if not torch.equal(result[independent], unchanged[independent]):
        return "elements that do not depend on it change"
    finite = eager.isfinite()
    if not torch.equal(result.isfinite(), finite):
        return f"{int(finite.sum())} elements are finite in the eager form, {int(result.isfinite().sum())} in the fused"
    largest = max(1.0, float(eager[finite].abs().max())) if finite.any() else 1.0
    if not torch.allclose(result[finite], eager[finite], rtol=0, atol=1e-4 * largest):
        return "finite elements differ from those of the eager form"
    return None


def assert_seen(case: Case, *, smooth: bool = True, only: Collection[str] | None = None) -> None:
    """Assert the claims for the first element of each operand, in C++ also for the last, and for each value.

    Of the decoder's GRU, the first elements are enough.

    ``only``: the operands to test, if not all.

    Elements that do not change in float64 if the replaced element is -100 or 100 do not depend on it. This holds for
    ``smooth`` functions only; for others, the third claim is not tested.
    """
    operands, found = case.operands(), []
    wide = {name: operand.double() for name, operand in operands.items()}
    before, unchanged = case.run(case.eager, wide), case.run(case.fused, operands)
    for name, operand in operands.items():
        in_gru = "_gru." in name  # a parameter of the decoder that the test of the GRU covers
        if (INTERPRETED and in_gru) or (only is not None and name not in only):
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
                    text = problem(fused[key], eager[key], unchanged[key], independent)
                    found += [f"{name}[{index}] = {value}, {key}: {text}"] if text else []
    assert not found, "\n".join(found)


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
@pytest.mark.parametrize("name", ["ln", "derf", "prms, outside"] if INTERPRETED else LAYERS)
def test_norms(name: str, memory: str, slope: float) -> None:
    eager, fused = (Layer(name, impl, memory, slope) for impl in ("eager", "fused"))
    assert_seen(Case(f"{name}, {memory}", eager, fused, {"x": MEMORY[memory]()}), smooth=slope == 1)


class Unit(nn.Module):
    def __init__(self, unit: str, norm: norms.Norm, mask: Tensor | None, *, reverse: bool) -> None:
        super().__init__()
        self.unit = fill(UNITS[unit](norm, input_size=INPUT, hidden_size=HIDDEN))
        self.mask, self.reverse = mask, reverse

    def forward(self, x: Tensor, **initial: Tensor) -> tuple[Tensor]:
        return (self.unit(x, self.mask, tuple(initial.values()), reverse=self.reverse),)


def unit_case(unit: str, name: str, mask: Tensor | None = None, *, reverse: bool = False) -> Case:
    eager, fused = (Unit(unit, replace(NORMS[name], impl=impl), mask, reverse=reverse) for impl in ("eager", "fused"))
    initial = {f"state {i}": draw(BATCH, HIDDEN, seed=20 + i) for i in range(eager.unit.states)}
    return Case(f"{unit}, {name}", eager, fused, {"x": draw(BATCH, TIME, INPUT), **initial})


@pytest.mark.parametrize("name", LN_AND_PRMS)
@pytest.mark.parametrize("unit", UNITS)
def test_recurrences(unit: str, name: str) -> None:
    assert_seen(unit_case(unit, name))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes too long")
@pytest.mark.parametrize("unit", UNITS)
def test_reversed_recurrences(unit: str) -> None:
    """Parameters enter each step as in the other direction, where all operands are tested."""
    assert_seen(unit_case(unit, "ln", reverse=True), only=("x", "state 0", "state 1", "gradient 0"))


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


@pytest.mark.parametrize("name", LN_AND_PRMS)
def test_the_decoder(name: str) -> None:
    assert_seen(decoder_case(name, torch.ones(BATCH, POSITIONS, dtype=torch.bool)))


class Losses(nn.Module):
    """The operations with an explicit backward pass that losses are composed of, or what they compute, by autograd."""

    def __init__(self, *, explicit: bool) -> None:
        super().__init__()
        self.explicit, self.targets = explicit, torch.tensor([2, 0])

    def forward(self, logits: Tensor, captions: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.explicit:
            return (*token_losses(logits, self.targets, 0.2, 0.05), order_penalty(captions, images))
        log_probabilities = logits.log_softmax(1)
        plain = -log_probabilities.gather(1, self.targets.unsqueeze(1)).squeeze(1)
        smoothed = 0.75 * plain - 0.05 * log_probabilities.sum(1)
        return plain, smoothed, (captions.unsqueeze(1) - images).clamp(min=0).square().sum(-1)


@pytest.mark.skipif(INTERPRETED, reason="losses have no Triton kernels")
def test_losses() -> None:
    """Results are not finite where autograd's are not.

    More of the order penalty's gradients are not finite: the backward pass of ``clamp`` replaces NaN by 0.
    """
    inputs = {"logits": draw(2, 5), "captions": draw(2, 3, seed=1), "images": draw(4, 3, seed=2)}
    case = Case("losses", Losses(explicit=False), Losses(explicit=True), inputs)
    operands = case.operands()
    for name, operand in operands.items():
        for index, value in itertools.product((0, operand.numel() - 1), VALUES):
            planted = with_element(operands, name, index, value)
            expected, results = case.run(case.eager, planted), case.run(case.fused, planted)
            for key, result in results.items():
                assert not result[~expected[key].isfinite()].isfinite().any(), (name, value, key)


# --- padding


def assert_not_read(case: Case, name: str, padding: Tensor) -> None:
    """Assert that the fused results do not change if elements of an operand at padding are replaced."""
    operands = case.operands()
    unchanged = case.run(case.fused, operands)
    for value in VALUES:
        planted = {**operands, name: operands[name].masked_fill(padding, value)}
        for key, result in case.run(case.fused, planted).items():
            assert torch.equal(result, unchanged[key]), (value, key)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_padding_of_the_source_is_not_read(name: str) -> None:
    """The decoder's results do not depend on keys and values of padding.

    The eager form multiplies the values of padding by attention weights of 0, which gives NaN.
    """
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert_not_read(decoder_case("rms", mask), name, ~mask.unsqueeze(-1))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reverse", REVERSE, ids=lambda reverse: "reverse" if reverse else "forward")
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
