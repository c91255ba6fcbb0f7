"""The fused norms beside the eager ones: values and gradients over forms, sizes, layouts and types; as operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sites import draw, fill
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from rmsexp import kernels, norms

EPS = 1e-2  # large, so that its place shows
LAYERS: dict[str, Callable[..., norms.Normaliser]] = {
    "ln": norms.LayerNorm,
    "ln, gain": partial(norms.LayerNorm, bias=False),
    "nonparametric_ln": partial(norms.LayerNorm, elementwise_affine=False),
    "rms": norms.RMSNorm,
    "rms, gain and bias": partial(norms.RMSNorm, bias=True),
    "rms, bias": partial(norms.RMSNorm, elementwise_affine=False, bias=True),
    "rms, outside": partial(norms.RMSNorm, eps_inside=False),
    "prms": partial(norms.RMSNorm, p=0.3, bias=True),
    "prms, outside": partial(norms.RMSNorm, p=0.3, eps_inside=False),
    "l2": norms.L2Norm,
    "l2, outside": partial(norms.L2Norm, eps_inside=False, bias=True),
}
every = pytest.mark.parametrize("name", LAYERS)
FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
formats = pytest.mark.parametrize("memory", FORMATS)
# In float32 both forms round every product and sum, the parts of a sum in another order: errors grow like the root of
# the number of terms, here up to 1000, times 6e-8, and those seen are below 2e-6.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}
PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
Shape = tuple[int, ...]
Pair = tuple[nn.Module, nn.Module]


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    if not kernels.load():
        pytest.skip("the fused kernels cannot be built here; their tests need a C++ compiler")


def pair(
    name: str, features: int | Shape, eps: float | None = EPS, dtype: torch.dtype = torch.float64, **options: Any
) -> Pair:
    """The eager and the fused form of a layer, with the same numbers as parameters."""
    eager, fused = (fill(LAYERS[name](features, eps, impl=impl, **options)).to(dtype) for impl in ("eager", "fused"))
    return eager, fused


def results(layer: nn.Module, x: Tensor, dy: Tensor | None = None, **options: float) -> tuple[Tensor, ...]:
    """The value, and the gradients of input and parameters, for the gradient ``dy`` of the value."""
    x = x.detach().requires_grad_()
    y = layer(x, **options)
    dy = draw(*x.shape, seed=7).to(x.dtype) if dy is None else dy
    return y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], dy)


def close(got: Sequence[Tensor], expected: Sequence[Tensor], **options: Any) -> None:
    tolerance = TOLERANCE[expected[0].dtype]
    torch.testing.assert_close(tuple(got), tuple(expected), rtol=tolerance, atol=tolerance, **options)


def assert_agree(layers: Pair, x: Tensor, dy: Tensor | None = None) -> None:
    eager, fused = (results(layer, x, dy) for layer in layers)
    close(fused, eager)


# --- forms, sizes, types


@every
@pytest.mark.parametrize("width", [1, 3, 17, 1000])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_last_axis(name: str, width: int, dtype: torch.dtype) -> None:
    assert_agree(pair(name, width, dtype=dtype), draw(6, width).to(dtype))
    assert_agree(pair(name, width, dtype=dtype), draw(2, 3, 4, width).to(dtype))


@pytest.mark.parametrize(("name", "slope"), [("ln", 1.0), ("nonparametric_ln", 1.0), ("prms, outside", 0.1)])
@pytest.mark.parametrize("size", [(1024,), (1027,), (4, 16, 17)], ids=str)
@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.bfloat16], ids=str)
def test_what_is_larger_than_the_caches(name: str, slope: float, size: Shape, dtype: torch.dtype) -> None:
    """It is written past them, and has the values of its halves, which are not."""
    torch.set_num_threads(2)
    rows = 2**23 // (dtype.itemsize * math.prod(size)) + 3  # more than 4 MiB a thread
    _, layer = pair(name, size[0], dtype=dtype, **({"axes": (2, 3)} if len(size) == 3 else {}))
    x, dy = (draw(rows, *size, seed=seed).to(dtype) for seed in (1, 7))
    y, dx, *sums = results(layer, x, dy, slope=slope)
    parts = [results(layer, *both, slope=slope) for both in zip(x.chunk(2), dy.chunk(2), strict=True)]
    of_y, of_dx, *of_sums = zip(*parts, strict=True)
    torch.testing.assert_close((y, dx), (torch.cat(of_y), torch.cat(of_dx)))
    for got, (one, other) in zip(sums, of_sums, strict=True):
        relative = (
            2 * torch.finfo(dtype).eps if dtype is torch.bfloat16 else 1e-4
        )  # rounding of three, and of long sums
        torch.testing.assert_close(got, one + other, rtol=relative, atol=relative * float(got.abs().max()))


@every
def test_several_axes(name: str) -> None:
    layers = pair(name, (3, 5))
    assert_agree(layers, draw(4, 2, 3, 5))
    assert_agree(layers, draw(2, 4, 3, 5).transpose(0, 1))
    assert_agree(layers, draw(4, 2, 5, 3).transpose(2, 3))


@every
@formats
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [(2, 3, 5, 4), (2, 17, 3, 3), (3, 1, 4, 4), (1, 8, 1, 1)], ids=str)
def test_maps(name: str, memory: str, dtype: torch.dtype, size: Shape) -> None:
    """Each channel over its positions; gradients in either memory format."""
    layers, x = pair(name, size[1], dtype=dtype, axes=(2, 3)), draw(*size).to(dtype)
    x = x.contiguous(memory_format=FORMATS[memory])
    assert layers[1](x).stride() == x.stride()
    for other in FORMATS.values():
        assert_agree(layers, x, draw(*size, seed=7).to(dtype).contiguous(memory_format=other))


@every
def test_maps_over_all_channels(name: str) -> None:
    assert_agree(pair(name, 3, axes=(1, 2, 3)), draw(2, 3, 5, 4))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_eps_of_the_type(dtype: torch.dtype) -> None:
    tiny = 1e-3 if dtype is torch.float32 else 1e-7  # so that the machine epsilon counts
    assert_agree(pair("rms", 9, None, dtype), tiny * draw(4, 9).to(dtype), draw(4, 9, seed=7).to(dtype) * tiny)


@every
@pytest.mark.parametrize("memory", ["rows", *FORMATS])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_leaky_relu_in_the_same_kernel(name: str, memory: str, dtype: torch.dtype) -> None:
    size, options = ((6, 37), {}) if memory == "rows" else ((2, 19, 3, 5), {"axes": (2, 3)})
    x = draw(*size).to(dtype)
    x = x if memory == "rows" else x.contiguous(memory_format=FORMATS[memory])
    eager, fused = pair(name, size[1], dtype=dtype, **options)
    close(results(fused, x, slope=0.1), results(nn.Sequential(eager, nn.LeakyReLU(0.1)), x))


@PROPERTY
@given(
    st.sampled_from(["ln", "rms, gain and bias", "rms, outside", "l2", "l2, outside"]),
    st.lists(st.integers(1, 4), max_size=2),
    st.integers(1, 70),
    st.floats(0.01, 1.0),
    st.floats(1e-6, 1.0),
    st.sampled_from(["ceil", "floor"]),
)
def test_any_shape_p_and_eps(name: str, lead: list[int], width: int, p: float, eps: float, k_rounding: str) -> None:
    partly = {} if name == "ln" else {"p": p, "k_rounding": k_rounding}
    assert_agree(pair(name, width, eps, **partly), draw(*lead, width, seed=width))


@PROPERTY
@given(
    st.sampled_from(["ln", "prms", "prms, outside", "l2"]),
    st.tuples(st.integers(1, 3), st.integers(1, 19), st.integers(1, 5), st.integers(1, 5)),
    st.floats(0.01, 1.0),
    st.floats(1e-6, 1.0),
    st.sampled_from(list(FORMATS)),
)
def test_any_maps_p_and_eps(name: str, size: Shape, p: float, eps: float, memory: str) -> None:
    partly = {} if name == "ln" else {"p": p}
    x = draw(*size, seed=sum(size)).contiguous(memory_format=FORMATS[memory])
    assert_agree(pair(name, size[1], eps, axes=(2, 3), **partly), x)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory", ["rows", *FORMATS])
def test_half_is_float32_rounded(name: str, dtype: torch.dtype, memory: str) -> None:
    """To the bit where the kernel does it; the eager form may round the next value."""
    size, options = ((6, 37), {}) if memory == "rows" else ((2, 19, 3, 5), {"axes": (2, 3)})
    eager, fused = pair(name, size[1], dtype=dtype, **options)
    x = draw(*size).to(dtype)
    x = x if memory == "rows" else x.contiguous(memory_format=FORMATS[memory])
    y, *gradients = results(fused, x)
    dy = draw(*size, seed=7).to(dtype)
    expected = [result.to(dtype) for result in results(fused.float(), x.float(), dy.float())]
    for got, rounded in zip((y, *gradients), expected, strict=True):
        assert got.dtype == dtype
        assert torch.equal(got, rounded)
    step = torch.finfo(dtype).eps
    for got, other in zip((y, *gradients), results(eager, x), strict=True):
        torch.testing.assert_close(got, other, rtol=step, atol=step / 8)


# --- layouts

LAYOUTS: dict[str, Callable[[], Tensor]] = {  # of shape (6, 10)
    "contiguous": lambda: draw(6, 10),
    "transposed": lambda: draw(10, 6).t(),
    "every other unit": lambda: draw(6, 20)[:, ::2],
    "every other row": lambda: draw(12, 10)[::2],
    "part of a row": lambda: draw(6, 13)[:, 2:12],
    "one row": lambda: draw(1, 10).expand(6, 10),
    "one unit": lambda: draw(6, 1).expand(6, 10),
    "one number": lambda: draw(1, 1).expand(6, 10),
}
MAPS: dict[str, Callable[[], Tensor]] = {  # of shape (2, 3, 4, 5)
    "channels first": lambda: draw(3, 2, 4, 5).transpose(0, 1),
    "turned": lambda: draw(2, 3, 5, 4).transpose(2, 3),
    "some channels": lambda: draw(2, 6, 4, 5)[:, ::2],
    "some channels of channels-last": lambda: draw(2, 4, 5, 6)[..., ::2].permute(0, 3, 1, 2),
    "one map": lambda: draw(2, 1, 4, 5).expand(2, 3, 4, 5),
    "one number": lambda: draw(1, 1, 1, 1).expand(2, 3, 4, 5),
}


@pytest.mark.parametrize("name", ["ln", "prms", "rms, outside"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_input_and_gradient(name: str, layout: str) -> None:
    layers, strided = pair(name, 10), LAYOUTS[layout]()
    assert_agree(layers, strided)
    assert_agree(layers, draw(6, 10, seed=3), strided)
    assert_agree(layers, strided, strided)


@pytest.mark.parametrize("name", ["ln", "prms", "rms, outside"])
@pytest.mark.parametrize("layout", MAPS)
def test_layouts_of_maps(name: str, layout: str) -> None:
    layers, strided = pair(name, 3, axes=(2, 3)), MAPS[layout]()
    for memory in FORMATS.values():
        dense = draw(2, 3, 4, 5, seed=3).contiguous(memory_format=memory)
        assert_agree(layers, strided, dense)
        assert_agree(layers, dense, strided)


def test_positions_before_the_normalised_axis_keep_their_order_in_memory() -> None:
    x = draw(4, 3, 10).transpose(0, 1)
    layers = pair("rms", 10)
    assert_agree(layers, x)
    assert layers[1](x).stride() == x.stride()


# --- the ends of what is possible


@every
@pytest.mark.parametrize("size", [(0, 8), (2, 0, 8), (8,), (1, 8)], ids=str)
def test_no_row_and_one_row(name: str, size: Shape) -> None:
    assert_agree(pair(name, 8), draw(*size))


@every
@formats
@pytest.mark.parametrize("size", [(0, 3, 4, 4), (1, 3, 4, 4)], ids=str)
def test_no_maps_and_one(name: str, memory: str, size: Shape) -> None:
    assert_agree(pair(name, 3, axes=(2, 3)), draw(*size).contiguous(memory_format=FORMATS[memory]))


@every
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_zeros(name: str, dtype: torch.dtype) -> None:
    """Rows of zeros, and rows that are zero where pRMSNorm looks; of maps likewise."""
    x = draw(4, 10).to(dtype)
    x[1], x[2, :3] = 0, 0
    assert_agree(pair(name, 10, dtype=dtype), x)
    maps = x.view(2, 2, 2, 5)
    for memory in FORMATS.values():
        assert_agree(pair(name, 2, dtype=dtype, axes=(2, 3)), maps.contiguous(memory_format=memory))


@every
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("unit", [0, 16], ids=["first", "last"])
def test_what_is_not_finite_stays_in_its_row(name: str, dtype: torch.dtype, value: float, unit: int) -> None:
    x = draw(3, 17).to(dtype)
    x[1, unit] = value
    eager, fused = (results(layer, x) for layer in pair(name, 17, dtype=dtype))
    close(fused[:2], eager[:2], equal_nan=True)
    assert fused[0][1].isnan().any() or not math.isnan(value)
    assert all(result[[0, 2]].isfinite().all() for result in fused[:2])


# --- derivatives


def functional(layer: nn.Module) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A layer as a function of its input and of its parameters, and these."""
    names = [name for name, _ in layer.named_parameters()]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    return output, [parameter.detach().requires_grad_() for parameter in layer.parameters()]


@every
@pytest.mark.parametrize("memory", ["rows", *FORMATS])
def test_gradcheck(name: str, memory: str) -> None:
    """First and second derivatives; the second are of the eager form."""
    x, options = draw(2, 5), dict[str, Any]()
    if memory != "rows":
        x, options = draw(2, 2, 2, 2).contiguous(memory_format=FORMATS[memory]), {"axes": (2, 3)}
    output, parameters = functional(pair(name, x.shape[1], **options)[1])
    assert torch.autograd.gradcheck(output, (x.requires_grad_(), *parameters))
    assert torch.autograd.gradgradcheck(output, (x, *parameters))


@every
@pytest.mark.parametrize("known", ["input", "parameters"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_gradients_where_not_all_are_needed(name: str, known: str, twice: bool) -> None:
    """``twice``: in the form that has gradients itself."""
    found = []
    for layer in pair(name, 10):
        layer.requires_grad_(known == "input")
        x = draw(4, 10).requires_grad_(known == "parameters")
        y, wanted = layer(x), [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
        assert y.requires_grad == bool(wanted)
        found.append([y, *torch.autograd.grad(y.square().sum(), wanted, create_graph=twice)] if wanted else [y])
    close(found[1], found[0])


@every
@pytest.mark.parametrize("slope", [1.0, 0.1])
def test_a_penalty_on_gradients(name: str, slope: float) -> None:
    eager, fused = pair(name, 10)
    found = []
    activated: list[Callable[[Tensor], Tensor]] = [
        nn.Sequential(eager, nn.LeakyReLU(slope)),
        partial(fused, slope=slope),
    ]
    for layer, parameters in zip(activated, (eager.parameters(), fused.parameters()), strict=True):
        x = draw(4, 10).requires_grad_()
        (of_x,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(of_x.square().sum(), [x, *parameters], materialize_grads=True))
    close(found[1], found[0])


# --- as operators of torch

OPERANDS: dict[str, tuple[Callable[[], Tensor], bool]] = {  # and whether they are maps
    **{layout: (make, False) for layout, make in LAYOUTS.items()},
    **{f"maps, {layout}": (make, True) for layout, make in MAPS.items()},
    "maps, contiguous": (lambda: draw(2, 3, 4, 5), True),
    "maps, channels-last": (lambda: draw(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), True),
}


@pytest.mark.parametrize("operand", OPERANDS)
def test_operators_are_what_they_declare(operand: str) -> None:
    """Schema, autograd registration, and shapes and strides without values, as torch.compile needs them."""
    make, maps = OPERANDS[operand]
    x, ops = make(), torch.ops.rmsexp
    gain = draw(x.shape[1], seed=1)
    options = (maps, kernels.Kind.LAYER, x.shape[-1], True, EPS)
    leaves = [tensor.detach().requires_grad_() for tensor in (x, gain)]
    torch.library.opcheck(ops.normalise.default, (*leaves, None, *options))
    torch.library.opcheck(ops.normalise_forward.default, (x, gain, gain, *options))
    _, mean, scale = ops.normalise_forward(x, gain, gain, *options)
    dy = draw(*x.shape, seed=7)
    torch.library.opcheck(ops.normalise_backward.default, (dy, x, gain, mean, scale, gain, *options))


@pytest.fixture
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["ln", "rms", "prms, outside", "l2"])
@pytest.mark.parametrize("memory", ["rows", *FORMATS])
def test_compiled_is_as_called(name: str, memory: str) -> None:
    x, options = draw(4, 10), dict[str, Any]()
    if memory != "rows":
        x, options = draw(2, 3, 4, 5).contiguous(memory_format=FORMATS[memory]), {"axes": (2, 3)}
    _, layer = pair(name, x.shape[1], **options)
    model = nn.Sequential(layer, nn.Tanh())
    close(results(torch.compile(model, fullgraph=True, backend="aot_eager"), x), results(model, x))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["ln", "prms"])
def test_compiled_once_for_every_batch_size(name: str) -> None:
    _, layer = pair(name, 10)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for size in ((4, 3, 10), (7, 2, 10), (5, 9, 10)):
        x = draw(*size)
        for axis in (0, 1):
            torch._dynamo.mark_dynamic(x, axis)
        x.requires_grad_()
        mine, expected = ((y, *torch.autograd.grad(y.sum(), [x, *layer.parameters()])) for y in (compiled(x), layer(x)))
        close(mine, expected)
    assert counter.frame_count == 1


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """A map in bfloat16 comes before the norm; parameters are float32."""
    eager, fused = pair(name, 10, dtype=torch.float32)
    weight, x = draw(10, 10, seed=2).float().requires_grad_(), draw(6, 10).to(dtype)
    found = []
    for layer in (eager, fused):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            direct, mapped = layer(x), layer(nn.functional.linear(x, weight))
        of_parameters = torch.autograd.grad(mapped.float().square().sum(), [weight, *layer.parameters()])
        found.append((direct, mapped, *of_parameters[1:]))
    assert found[0][1].dtype is torch.bfloat16
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert mine.dtype is theirs.dtype
        step = torch.finfo(torch.bfloat16).eps if mine.dtype is torch.bfloat16 else TOLERANCE[torch.float32]
        torch.testing.assert_close(mine, theirs, rtol=step, atol=step)


@every
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_autograd(name: str, context: Callable[[], AbstractContextManager[None]]) -> None:
    eager, fused = pair(name, 10)
    x = draw(4, 10).requires_grad_()
    with context():
        y, expected = fused(x), eager(x)
        of_new, expected_of_new = fused(x + 1), eager(x + 1)
    assert not y.requires_grad
    close([y, of_new], [expected, expected_of_new])


@pytest.mark.parametrize("name", ["ln", "prms"])
@pytest.mark.parametrize("memory", ["rows", *FORMATS])
def test_threads(name: str, memory: str) -> None:
    """One or several differ by rounding only; the same number gives the same bits again."""
    x, options = draw(700, 100), dict[str, Any]()  # enough to be shared out
    if memory != "rows":
        x, options = draw(40, 17, 10, 10).contiguous(memory_format=FORMATS[memory]), {"axes": (2, 3)}
    _, layer = pair(name, x.shape[1], dtype=torch.float32, **options)
    found = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found[threads], again = (results(layer, x.float()) for _ in range(2))
        assert all(map(torch.equal, found[threads], again))
    for threads in (2, 3):
        assert all(map(torch.equal, found[threads][:2], found[1][:2]))  # rows do not depend on each other
        for mine, alone in zip(found[threads][2:], found[1][2:], strict=True):
            torch.testing.assert_close(mine, alone, rtol=1e-5, atol=1e-5 * float(alone.abs().max()))
