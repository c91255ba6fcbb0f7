"""Cases and tolerances of other projects' tests of such modules, restated for this package's RMSNorm and LayerNorm.

- torch: the inputs of ``nn.RMSNorm`` and ``nn.LayerNorm`` (torch/testing/_internal/common_modules.py) and of their
  operators (common_methods_invocations.py), with the checks of test_modules.py and test_ops.py that apply on CPU.
- Liger: linkedin/Liger-Kernel, test/transformers/test_rms_norm.py and test_layer_norm.py.
- quack: Dao-AILab/quack, tests/test_layernorm.py and test_rmsnorm.py.

Not restated: negative eps and complex input, which this package refuses; a gain offset, residual inputs, and results in
the memory of the input, which it does not have. kernels/test_ported.py has the cases of kernels and recurrences.

The tests run with eager and with fused norms. With TRITON_INTERPRET=1 in the environment, fused norms use the Triton
kernels, in Triton's interpreter on CPU, and tests with more than 4,096 elements are skipped. This takes two minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from helpers.cases import some
from helpers.interpreter import INTERPRETED
from helpers.sites import draw
from torch import Tensor, nn

from rmsexp import norms

Shape = tuple[int, ...]
RMS, LN = norms.RMSNorm, norms.LayerNorm
REFERENCES = {RMS: nn.RMSNorm, LN: nn.LayerNorm}


class Case(NamedTuple):
    layer: type[norms.RMSNorm] | type[norms.LayerNorm]
    size: Shape  # of the input
    normalized: Shape  # the argument normalized_shape
    options: dict[str, Any] = {}  # noqa: RUF012

    def __str__(self) -> str:
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"{self.layer.__name__}({list(self.normalized)}{options}) on {list(self.size)}"


def cases_of_torch() -> Iterator[Case]:
    affine_off = {"eps": 1e-3, "elementwise_affine": False}
    for layer in (RMS, LN):
        for size, normalized, options in (
            ((4, 5, 5), (5,), {"eps": 1e-3}),
            ((128, 5, 5), (5,), {"eps": 1e-3}),
            ((4, 5, 5), (5,), affine_off),
            ((4, 2, 2, 5), (2, 2, 5), {"eps": 1e-3}),
            ((4, 2, 2, 5), (2, 2, 5), affine_off),
            ((0, 5), (5,), {"eps": 1e-3}),
            ((1, 2, 3), (1, 2, 3), {"eps": 0.5}),
            ((2, 2, 3), (2, 3), {"eps": 0.5}),
            ((1,), (1,), {}),
            ((1, 2), (2,), {}),
            ((0, 1), (1,), {}),
            ((1, 2), (2,), {"elementwise_affine": False}),
        ):
            yield Case(layer, size, normalized, options)
    yield Case(LN, (4, 2, 2, 5), (2, 2, 5), {"eps": 1e-3, "bias": False})
    # inputs of torch's RMSNorm in quack's kernels
    for size in ((8, 128), (4, 8, 32), (2, 16, 512), (4, 32, 1024)):
        yield Case(RMS, size, size[-1:], {"eps": 1e-5})
    yield Case(RMS, (2, 4, 8, 16), (8, 16), {"eps": 1e-5})
    yield Case(RMS, (8, 128), (128,))


TORCH = list(cases_of_torch())
each = pytest.mark.parametrize("case", TORCH, ids=str)


def skip_if_large(size: Shape) -> None:
    if INTERPRETED and math.prod(size) > 4096:
        pytest.skip("too large for Triton's interpreter")


def filled(layer: nn.Module, seed: int = 1) -> nn.Module:
    """Draw the parameters of a layer, and return the layer."""
    for i, parameter in enumerate(layer.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + i).to(parameter.dtype)
    return layer


def layer_and_reference(case: Case, impl: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Return a layer in ``dtype``, and torch's layer in double precision, with equal parameters and eps."""
    layer = filled(case.layer(case.normalized, impl=impl, dtype=dtype, **case.options))
    reference = REFERENCES[case.layer](case.normalized, dtype=torch.float64, **case.options)
    reference.eps = norms.base.EPS[dtype] if layer.eps is None else layer.eps
    reference.load_state_dict(layer.state_dict())
    return layer, reference


def results(layer: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of the input and of the parameters."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)]


def input_and_gradient(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return an input and a gradient of the output, uniform from -9 to 9 as torch draws them."""
    skip_if_large(case.size)
    x, dy = (18 * torch.rand(case.size, generator=torch.Generator().manual_seed(seed)) - 9 for seed in (2, 3))
    return x.to(dtype), dy.to(dtype)


# --- torch


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_results_and_gradients_equal_those_of_torch(case: Case, dtype: torch.dtype, impl: str) -> None:
    layer, reference = layer_and_reference(case, impl, dtype)
    x, dy = input_and_gradient(case, dtype)
    before = x.clone()
    actual = results(layer, x, dy)
    expected = results(reference, x.double(), dy.double())
    assert {tensor.dtype for tensor in actual} == {dtype}
    # The relative tolerance is torch's for layer_norm, the absolute one quack's.
    tolerance = {"atol": 1e-4, "rtol": 1e-3} if dtype == torch.float32 else {}
    for result, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, exact.to(dtype), **tolerance)
    assert torch.equal(x, before)
    layer.eval()
    assert torch.equal(layer(x), actual[0])


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize(
    ("normalized", "other"),
    [((1, 2, 3), (1, 2)), ((3, 5), (5, 3)), ((3, 5), (15,)), ((3, 5), (5,)), ((4,), (1,)), ((4,), ()), ((4,), (2, 4))],
)
@pytest.mark.parametrize("layer", [RMS, LN])
def test_a_gain_or_shift_of_another_shape_is_an_error(
    layer: type[nn.Module], normalized: Shape, other: Shape, name: str, impl: str
) -> None:
    norm = layer(normalized, bias=True, impl=impl)
    setattr(norm, name, nn.Parameter(torch.ones(other)))
    with pytest.raises(ValueError, match=r"expect.* shape"):
        norm(torch.ones(2, *normalized))


@pytest.mark.parametrize("high", [1000.0, 1e18])
def test_large_values(high: float, impl: str) -> None:
    """Values up to 1000 as torch draws them for rms_norm; and values whose squares nearly overflow."""
    case = Case(RMS, (4, 8, 32), (32,), {"eps": 1e-5})
    layer, reference = layer_and_reference(case, impl, torch.float32)
    x = high * draw(*case.size).float()
    torch.testing.assert_close(layer(x), reference(x.double()).float())


# --- Liger

LLAMA = [(torch.float32, 1e-4, 1e-6), (torch.bfloat16, 2e-1, 2e-2)]


def llama(x: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm of ``x``, rounded to the dtype of ``x`` before it is multiplied by the gain."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("size", [(2, 128, 512), (5, 123, 123), (2, 2, 8), (9, 7, 41)], ids=str)
@pytest.mark.parametrize(("dtype", "absolute", "relative"), LLAMA, ids=str)
def test_rms_norm_of_llama(size: Shape, dtype: torch.dtype, absolute: float, relative: float, impl: str) -> None:
    skip_if_large(size)
    layer = norms.RMSNorm(size[-1], 1e-6, impl=impl, dtype=dtype)
    x, dy = (draw(*size, seed=seed).to(dtype) for seed in (2, 3))
    leaves = [x.requires_grad_(), layer.weight.detach().clone().requires_grad_()]
    y = llama(*leaves)
    expected = [y, *torch.autograd.grad(y, leaves, dy)]
    torch.testing.assert_close(results(layer, x, dy), expected, atol=absolute, rtol=relative)


# --- quack

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-4}


QUACK = list(product([256, 760, 1128, 4096, 32768, 131072], [1, 37], TOLERANCE))
SOME_OF_QUACK = [(760, 37, torch.float16), (1128, 1, torch.float32), (131072, 1, torch.bfloat16)]


@pytest.mark.parametrize(("width", "rows", "dtype"), some(QUACK, SOME_OF_QUACK))
def test_layer_norm_of_quack(width: int, rows: int, dtype: torch.dtype, impl: str) -> None:
    """The gain is in float32 also where the input is in half precision; gradients have four times the tolerance."""
    skip_if_large((rows, width))
    case = Case(LN, (rows, width), (width,), {"eps": 1e-6, "bias": False})
    layer, reference = layer_and_reference(case, impl, torch.float32)
    x, dy = (draw(*case.size, seed=seed).to(dtype) for seed in (2, 3))
    y, *gradients = results(layer, x, dy)
    exact, *exact_gradients = results(reference, x.double(), dy.double())
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(y, exact.to(dtype), atol=tolerance, rtol=tolerance)
    for result, expected in zip(gradients, exact_gradients, strict=True):
        torch.testing.assert_close(result, expected.to(result.dtype), atol=4 * tolerance, rtol=4 * tolerance)
