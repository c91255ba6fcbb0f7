"""The fused norms meet torch's requirements on operators: fake results, compilation, autocast, threads."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.norm_layers import EPS, FORMATS, LAYOUTS, MAPS, TOLERANCE, Shape, pair, results
from helpers.sites import draw
from torch import Tensor, nn

from rmsexp.norms import kernels

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

OPERANDS: dict[str, tuple[Callable[[], Tensor], bool]] = {  # function that draws a tensor, and whether it is maps
    **{layout: (make, False) for layout, make in LAYOUTS.items()},
    **{f"maps, {layout}": (make, True) for layout, make in MAPS.items()},
    "maps, contiguous": (lambda: draw(2, 3, 4, 5), True),
    "maps, channels-last": (lambda: draw(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), True),
}


@pytest.mark.parametrize("operand", OPERANDS)
def test_operators_pass_opcheck(operand: str) -> None:
    make, maps = OPERANDS[operand]
    traced = operand in ("contiguous", "maps, channels-last")  # it takes long, and does not depend on strides
    more = ("test_autograd_registration", "test_aot_dispatch_dynamic") if traced else ()
    check = partial(torch.library.opcheck, test_utils=("test_schema", "test_faketensor", *more))
    x, ops = make(), torch.ops.rmsexp
    gain = draw(x.shape[1], seed=1)
    options = (maps, kernels.Kind.LAYER, x.shape[-1], True, EPS)
    leaves = [tensor.detach().requires_grad_() for tensor in (x, gain)]
    check(ops.normalise.default, (*leaves, None, *options))
    dy = draw(*x.shape, seed=7)
    if not maps:
        check(ops.add_normalise.default, (leaves[0], dy, leaves[1], None, *options[1:]))
    alpha, pointwise = draw(1, seed=2), (maps, kernels.Kind.ERF, 1, True, 0.0, 0.5)
    check(ops.normalise.default, (*leaves, None, *pointwise, alpha.clone().requires_grad_(), alpha))
    check(ops.normalise_forward.default, (x, None, gain, gain, *pointwise, alpha))
    empty = x.new_empty(0)
    check(ops.normalise_backward.default, (dy, None, x, gain, empty, empty, gain, *pointwise, alpha, alpha))
    for addend in (None,) if maps else (None, dy):
        check(ops.normalise_forward.default, (x, addend, gain, gain, *options))
        _, mean, scale, _ = ops.normalise_forward(x, addend, gain, gain, *options)
        check(ops.normalise_backward.default, (dy, addend, x, gain, mean, scale, gain, *options))


@pytest.mark.parametrize("kind", [kernels.Kind.RMS, kernels.Kind.LAYER])
@pytest.mark.parametrize("shape", [(5, 0), (0, 5)])
def test_fake_results_of_empty_inputs(kind: int, shape: Shape) -> None:
    x, form, ops = draw(*shape), (kind, 5, True, EPS), torch.ops.rmsexp
    gain = draw(shape[1], seed=1)
    for addend in (None, x):
        arguments = (x, addend, gain, gain, False, *form)
        torch.library.opcheck(ops.normalise_forward.default, arguments, test_utils="test_faketensor")


@pytest.mark.parametrize("name", ["ln", "nonparametric_ln", "prms", "rms, outside", "derf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """Under autocast, fused and eager norms agree on plain input and on the bfloat16 output of a linear layer."""
    eager, fused = pair(name, 10, dtype=torch.float32)
    weight, x = draw(10, 10, seed=2).float().requires_grad_(), draw(6, 10).to(dtype)
    by_impl = []
    for layer in (eager, fused):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            direct, mapped = layer(x), layer(nn.functional.linear(x, weight))
        _, *parameter_gradients = torch.autograd.grad(mapped.float().square().sum(), [weight, *layer.parameters()])
        by_impl.append((direct, mapped, *parameter_gradients))
    assert by_impl[0][1].dtype is torch.bfloat16
    for expected, result in zip(*by_impl, strict=True):
        assert result.dtype is expected.dtype
        step = torch.finfo(torch.bfloat16).eps if result.dtype is torch.bfloat16 else TOLERANCE[torch.float32]
        torch.testing.assert_close(result, expected, rtol=step, atol=step)


@pytest.mark.parametrize("name", ["ln", "prms", "derf"])
@pytest.mark.parametrize("memory", ["rows", *FORMATS])
def test_threads(name: str, memory: str) -> None:
    """Results are bit-identical for equal numbers of threads, and equal up to rounding for different numbers.

    Outputs and gradients of the input are bit-identical for different numbers, too.
    """
    x, options = draw(700, 100), dict[str, Any]()  # enough for several threads
    if memory != "rows":
        x, options = draw(40, 17, 10, 10).contiguous(memory_format=FORMATS[memory]), {"axes": (2, 3)}
    _, layer = pair(name, x.shape[1], dtype=torch.float32, **options)
    by_threads = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        by_threads[threads], repeated = (results(layer, x.float()) for _ in range(2))
        assert all(map(torch.equal, by_threads[threads], repeated))
    for threads in (2, 3):
        assert all(map(torch.equal, by_threads[threads][:2], by_threads[1][:2]))
        for result, expected in zip(by_threads[threads][2:], by_threads[1][2:], strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
