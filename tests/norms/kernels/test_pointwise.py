"""The fused pointwise functions equal the eager ones, in values and gradients, and meet torch's requirements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.interpreter import INTERPRETED, assert_passes_in_the_interpreter
from helpers.norm_layers import TOLERANCE, results
from helpers.sites import draw, fill
from torch import Tensor, func, nn

from rmsexp import norms

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

LAYERS: dict[str, Callable[..., norms.DynamicTanh]] = {"dyt": norms.DynamicTanh, "derf": norms.DynamicErf}
every = pytest.mark.parametrize("name", LAYERS)
OPERANDS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: draw(6, 37),
    "one unit": lambda: draw(5, 1),
    "transposed batch": lambda: draw(3, 4, 10).transpose(0, 1),
    "transposed": lambda: draw(10, 6).t(),
    "every other unit": lambda: draw(6, 20)[:, ::2],
    "no rows": lambda: draw(0, 8),
    "maps": lambda: draw(2, 19, 3, 5),
    "channels-last maps": lambda: draw(2, 19, 3, 5).contiguous(memory_format=torch.channels_last),
    "transposed maps": lambda: draw(2, 3, 5, 4).transpose(2, 3),
    "no maps": lambda: draw(0, 3, 4, 4),
}
operands = pytest.mark.parametrize("operand", OPERANDS)


@pytest.mark.minutes
@pytest.mark.skipif(INTERPRETED, reason="this process already runs the interpreter")
def test_under_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")
    assert_passes_in_the_interpreter(__file__)


def pair(name: str, x: Tensor, **options: Any) -> list[nn.Module]:
    """Return an eager and a fused layer with equal parameters for an input like ``x``, in float64."""
    features, maps = x.shape[1 if x.ndim == 4 else -1], x.ndim == 4
    return [fill(LAYERS[name](features, 0.7, impl=impl, maps=maps, **options)) for impl in ("eager", "fused")]


@every
@operands
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_layouts(name: str, operand: str, dtype: torch.dtype) -> None:
    x = OPERANDS[operand]().to(dtype)
    for options, slope in (({}, 1.0), ({"bias": False}, 1.0), ({}, 0.1)):
        eager, fused = (results(layer.to(dtype), x, slope=slope) for layer in pair(name, x, **options))
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(fused, eager, rtol=tolerance, atol=tolerance)


@every
@pytest.mark.parametrize("operand", ["rows", "maps", "channels-last maps"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_is_float32_rounded(name: str, operand: str, dtype: torch.dtype) -> None:
    x = OPERANDS[operand]().to(dtype)
    _, fused = pair(name, x)
    dy = draw(*x.shape, seed=7).to(dtype)

    half = results(fused.to(dtype), x, dy)
    step = torch.finfo(dtype).eps if INTERPRETED else 0.0  # the interpreter truncates where a GPU rounds to nearest
    for result, expected in zip(half, results(fused.float(), x.float(), dy.float()), strict=True):
        torch.testing.assert_close(result, expected.to(dtype), rtol=step, atol=step / 8)


@pytest.mark.skipif(INTERPRETED, reason="one program after the other")
@every
@pytest.mark.parametrize("shape", [(700, 100), (40, 17, 10, 10)], ids=str)
def test_threads(name: str, shape: tuple[int, ...]) -> None:
    """Results are bit-identical for equal numbers of threads, and equal up to rounding for different numbers."""
    x = draw(*shape).float()
    layer = pair(name, x)[1].float()
    by_threads = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        first, second = results(layer, x), results(layer, x)
        assert all(map(torch.equal, first, second))
        by_threads.append(first)
    assert all(map(torch.equal, by_threads[0][:2], by_threads[1][:2]))
    torch.testing.assert_close(by_threads[1], by_threads[0], rtol=1e-4, atol=1e-3)


@every
@pytest.mark.parametrize("operand", ["rows", "maps", "channels-last maps"])
def test_derivatives_equal_finite_differences(name: str, operand: str) -> None:
    x = OPERANDS[operand]()[:2, :2]
    x = x.contiguous(memory_format=torch.channels_last) if "last" in operand else x.contiguous()
    layer = pair(name, x)[1]
    names = [key for key, _ in layer.named_parameters()]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        return func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,), {"slope": 0.1})

    leaves = [x.requires_grad_(), *(parameter.detach().requires_grad_() for parameter in layer.parameters())]
    assert torch.autograd.gradcheck(output, leaves)


@pytest.mark.skipif(INTERPRETED, reason="the same signatures as with C++ kernels")
@pytest.mark.parametrize("operand", ["transposed batch", "channels-last maps"])
def test_operators_pass_opcheck(operand: str) -> None:
    """opcheck tests schemas, autograd registration, and the shapes and strides of fake results."""
    x, ops = OPERANDS[operand](), torch.ops.rmsexp
    maps, gain, alpha = x.ndim == 4, draw(x.shape[1 if x.ndim == 4 else -1], seed=1), draw(1, seed=2)
    leaves = [tensor.detach().requires_grad_() for tensor in (x, alpha, alpha, gain)]
    torch.library.opcheck(ops.pointwise.default, (*leaves, None, "erf", maps))
    torch.library.opcheck(ops.pointwise_forward.default, (x, alpha, None, gain, gain, "tanh", maps))
    torch.library.opcheck(ops.pointwise_backward.default, (x, x, alpha, alpha, gain, gain, "erf", maps))


@pytest.mark.skipif(INTERPRETED, reason="the same operators as with C++ kernels")
def test_compiled_equals_eager_mode() -> None:
    torch._dynamo.reset()
    x = OPERANDS["channels-last maps"]()
    model = pair("derf", x)[1]
    compiled = results(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
    torch.testing.assert_close(compiled, results(model, x), rtol=1e-10, atol=1e-10)
