"""A residual sum and its norm as one operator equal the two apart, in values and in derivatives of both results."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from helpers.norm_layers import LAYERS, LAYOUTS, pair
from helpers.sites import draw
from torch import Tensor

from rmsexp.norms import Normaliser

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
some = pytest.mark.parametrize("name", ["ln", "prms, outside"])
OPERANDS = {**LAYOUTS, "transposed batch": lambda: draw(3, 2, 10).transpose(0, 1)}


def make(name: str, width: int, dtype: torch.dtype = torch.float64) -> Normaliser:
    return pair(name, width, dtype=dtype)[1]


def apart(layer: Normaliser, x: Tensor, addend: Tensor) -> tuple[Tensor, Tensor]:
    total = x + addend
    return total, layer(total)


def results(
    add: Callable[..., tuple[Tensor, Tensor]], layer: Normaliser, x: Tensor, addend: Tensor, *gradients: Tensor
) -> list[Tensor]:
    """Return sum and norm, and the gradients of both summands and of the layer's parameters."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, addend)]
    outputs = add(layer, *leaves)
    sent = gradients or tuple(draw(*x.shape, seed=seed).to(x.dtype) for seed in (7, 8))
    return [*outputs, *torch.autograd.grad(outputs, [*leaves, *layer.parameters()], sent)]


def add(layer: Normaliser, x: Tensor, addend: Tensor) -> tuple[Tensor, Tensor]:
    return layer.add(x, addend)


def assert_equals_the_two_apart(layer: Normaliser, x: Tensor, addend: Tensor, *gradients: Tensor) -> None:
    """Assert that sum and norm are equal bit by bit, and that gradients are equal up to rounding."""
    fused, expected = (results(call, layer, x, addend, *gradients) for call in (add, apart))
    assert torch.equal(fused[0], expected[0])
    assert torch.equal(fused[1], expected[1])
    for result, other in zip(fused[2:], expected[2:], strict=True):
        tolerance = TOLERANCE[result.dtype]
        torch.testing.assert_close(result, other, rtol=tolerance, atol=tolerance * float(other.abs().amax().clamp(1)))


def runs_one_operator(layer: Normaliser, x: Tensor, addend: Tensor) -> bool:
    with torch.autograd.profiler.profile() as profile:  # the start of torch.profiler takes seconds
        layer.add(x, addend)
    return any(event.name == "rmsexp::add_normalise" for event in profile.function_events)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, (2, 2, 17)) for name in LAYERS), *product(["ln", "prms, outside"], [(5, 1003), (9,), (0, 8)])],
    ids=str,
)
def test_equals_the_two_apart(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, addend = (draw(*shape, seed=seed).to(dtype) for seed in (1, 2))
    if x.numel():
        assert_equals_the_two_apart(make(name, shape[-1], dtype=dtype), x, addend)
        assert runs_one_operator(make(name, shape[-1], dtype=dtype), x, addend)
    else:
        fused, expected = (results(call, make(name, shape[-1], dtype=dtype), x, addend) for call in (add, apart))
        torch.testing.assert_close(fused, expected)


@pytest.mark.parametrize(
    ("name", "width", "dtype"),
    [
        ("ln", 1027, torch.float32),
        ("nonparametric_ln", 1024, torch.bfloat16),
        ("prms, outside", 1024, torch.float32),
    ],
    ids=str,
)
def test_streaming_stores(name: str, width: int, dtype: torch.dtype) -> None:
    """Sums and norms larger than the caches are equal, too; several threads write them."""
    torch.set_num_threads(2)
    rows = 2**23 // (dtype.itemsize * width) + 3  # more than 4 MiB per thread
    x, addend = (draw(rows, width, seed=seed).to(dtype) for seed in (1, 2))
    assert_equals_the_two_apart(make(name, width, dtype=dtype), x, addend)


@pytest.mark.parametrize("layout", OPERANDS)
@some
def test_layouts(name: str, layout: str) -> None:
    layer, strided = make(name, 10), OPERANDS[layout]()
    dense = draw(*strided.shape, seed=5)
    for x, addend in ((strided, dense), (dense, strided), (strided, strided)):
        assert_equals_the_two_apart(layer, x, addend)
        assert_equals_the_two_apart(layer, x, addend, strided, dense)
        assert_equals_the_two_apart(layer, x, addend, dense, strided)
    if layout == "transposed batch":
        assert all(result.stride() == strided.stride() for result in layer.add(strided, dense))


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("needed", ["x", "addend", "parameters", "x and parameters"])
def test_where_not_all_is_used_or_needed(used: tuple[int, ...], needed: str) -> None:
    """The gradients are right, and only results that depend on a leaf require one."""
    by_call = []
    for call in (add, apart):
        layer = make("ln", 10).requires_grad_("parameters" in needed)
        x = draw(4, 10).requires_grad_(needed.startswith("x"))
        addend = draw(4, 10, seed=2).requires_grad_(needed == "addend")
        outputs = call(layer, x, addend)
        leaves = [tensor for tensor in (x, addend, *layer.parameters()) if tensor.requires_grad]
        loss = sum(outputs[i].pow(3).sum() for i in used)
        gradients: tuple[Tensor, ...] = ()
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        by_call.append(([output.requires_grad for output in outputs], [*outputs, *gradients]))
    assert by_call[0][0] == by_call[1][0]
    torch.testing.assert_close(by_call[0][1], by_call[1][1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "dtypes",
    [(torch.float64, torch.float32), (torch.float32, torch.bfloat16), (torch.float32, torch.float16)],
    ids=str,
)
@some
def test_an_addend_of_lower_precision(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Its gradient is rounded to its dtype, as that of an addition."""
    layer, addend = make(name, 10, dtype=dtypes[0]), draw(2, 3, 10, seed=5).to(dtypes[1])
    x = OPERANDS["transposed batch"]().to(dtypes[0])
    assert runs_one_operator(layer, x, addend)
    assert_equals_the_two_apart(layer, x, addend, *(draw(2, 3, 10, seed=seed).to(dtypes[0]) for seed in (7, 8)))


APART: dict[str, tuple[Callable[[], Normaliser], Tensor, Tensor]] = {  # the layer, x and addend
    "an addend that broadcasts": (lambda: make("rms", 10, torch.float32), torch.ones(4, 3, 10), torch.ones(10)),
    "an addend of higher precision": (lambda: make("rms", 10, torch.float32), torch.ones(4, 10), draw(4, 10)),
    "an addend of integers": (lambda: make("rms", 10, torch.float32), torch.ones(4, 10), torch.ones(4, 10).long()),
    "several axes": (lambda: pair("rms", (3, 4))[1], draw(2, 3, 4), draw(2, 3, 4, seed=2)),
    "maps": (lambda: pair("ln", 3, axes=(2, 3))[1], draw(2, 3, 4, 4), draw(2, 3, 4, 4, seed=2)),
}


@pytest.mark.parametrize("case", APART)
def test_what_no_operator_computes(case: str) -> None:
    build, x, addend = APART[case]
    layer = build()
    assert not runs_one_operator(layer, x, addend)
    torch.testing.assert_close(layer.add(x, addend), apart(layer, x, addend))


def test_hooks_get_input_output_and_gradients_of_the_norm() -> None:
    layer, x, addend = make("rms", 10), draw(4, 10).requires_grad_(), draw(4, 10, seed=2)
    hooks: dict[str, Callable[..., None]] = {
        "register_forward_pre_hook": lambda _, inputs: seen.append(inputs[0]),
        "register_forward_hook": lambda _, inputs, output: seen.append(output),  # noqa: ARG005
        "register_full_backward_pre_hook": lambda _, gradients: seen.append(gradients[0]),
        "register_full_backward_hook": lambda _, inputs, gradients: seen.append(gradients[0]),  # noqa: ARG005
    }
    for kind, hook in hooks.items():
        seen: list[Tensor] = []
        handle = getattr(layer, kind)(hook)
        total, y = layer.add(x, addend)
        dtotal, dy = draw(4, 10, seed=7), draw(4, 10, seed=8)
        torch.autograd.backward([total, y], [dtotal, dy])
        expected = dy if "backward" in kind else total if "pre" in kind else y
        torch.testing.assert_close(seen, [expected])
        handle.remove()
    assert runs_one_operator(layer, x, addend)
