"""The Triton kernels against plain PyTorch in float64 with autograd, and that they compile; neither needs a GPU.

They run under Triton's interpreter on CPU, in a process of their own, as it is chosen when Triton is imported.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    from rmsexp.kernels import triton as kernels

NONE, RMS, LAYER, EUCLID = range(4)
EPS = 1e-3  # large, so that its place shows
FORMS = [  # kind, share of the units in the statistic, whether eps lies inside the root
    (NONE, 1.0, True),
    (RMS, 1.0, True),
    (RMS, 0.4, True),
    (RMS, 0.4, False),
    (LAYER, 1.0, True),
    (EUCLID, 0.4, True),
    (EUCLID, 1.0, False),
]
Form = tuple[int, float, bool]
Case = tuple[Form, torch.dtype]
CASES = [(form, torch.float64) for form in FORMS] + [(form, torch.float32) for form in FORMS[3:5]]
FEW = CASES[3:5]  # what takes all paths
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def named(value: object) -> str:
    return "-".join(map(named, value)) if isinstance(value, tuple) else str(value)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    here = Path(__file__).parent
    return subprocess.run(command, env={**os.environ, **environment}, cwd=here, capture_output=True, text=True)


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
def test_under_the_interpreter() -> None:
    done = run("-m", "pytest", "-p", "no:cacheprovider", __file__, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:]


COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction
from triton.runtime.driver import driver

class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device):
        return 0

def compile_only(self, *arguments, warmup, **options):
    kernel = compile(self, *arguments, warmup=True, **options)
    print(self.fn.__module__, self.fn.__name__, "cubin" in kernel.asm, "atom" in kernel.asm["ptx"])

driver.set_active(Driver())
compile, JITFunction.run = JITFunction.run, compile_only
from test_triton import call_each
call_each()
"""


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
def test_kernels_compile_for_cuda_without_atomics(tmp_path: Path) -> None:
    done = run("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    kernels = {
        "norms": ["_forward", "_backward"] * 2,
        "gru": ["_forward", "_backward"],
        "lstm": ["_forward", "_backward"],
        "attention": ["_forward", "_backward"],
    }
    expected = [f"rmsexp.kernels.triton.{module} {name} True False" for module in kernels for name in kernels[module]]
    assert done.stdout.splitlines() == expected


def call_each() -> None:
    """Calls each operator at the sizes of a model."""
    from rmsexp.kernels import triton as kernels

    rows, hidden, length, depth = 32, 256, 20, 512
    empty = torch.empty
    for x, maps in [(empty(rows, hidden), False), (empty(2, hidden, 8, 8), True)]:
        gain, options = empty(hidden), (maps, RMS, 16, True, EPS)
        _, mean, scale = kernels.normalise_forward(x, gain, gain, *options)
        kernels.normalise_backward(x, x, gain, mean, scale, gain, *options)
    h, affine, statistics = empty(rows, hidden), empty(2, 2, 3 * hidden), empty(rows, 8)
    ax, partials = empty(rows, 3 * hidden), empty(rows, 2, 2, 3 * hidden)
    real, form = empty(rows, dtype=torch.bool), [LAYER, 2 * hidden, hidden, 1]
    kernels.gru_gates_forward(ax, ax, h, real, ax[0], affine, form, EPS, ax, statistics, h)
    kernels.gru_gates_backward(h, h, ax, ax, h, ax, statistics, real, affine, form, EPS, ax, ax, partials)
    ax, partials, affine = empty(rows, 4 * hidden), empty(rows, 2, 2, 4 * hidden), empty(2, 2, 4 * hidden)
    of_cell, gates, cell_partials = empty(2, hidden), empty(rows, 5 * hidden), empty(rows, 2, hidden)
    form = [LAYER, 4 * hidden, hidden, 1]
    kernels.lstm_gates_forward(ax, ax, h, h, real, affine, of_cell, form, EPS, gates, statistics, h, h)
    read = (h, h, h, ax, ax, h, h, gates, statistics, real, affine, of_cell)
    kernels.lstm_gates_backward(*read, form, EPS, ax, ax, partials, cell_partials)
    keys, values, alpha = empty(rows, length, hidden), empty(rows, length, depth), empty(rows, length)
    context, real, form = empty(rows, depth), empty(rows, length, dtype=torch.bool), [LAYER, hidden, 1]
    kernels.attention_forward(keys, h, values, real, h[0], of_cell, form, EPS, statistics, alpha, context)
    read = (context, keys, h, values, real, h[0], of_cell, statistics, alpha)
    kernels.attention_backward(*read, form, EPS, keys, h, empty(rows, 3, hidden))


# --- what the kernels are held against


def normalised(a: Tensor, form: Form) -> Tensor:
    """Over the last axis."""
    kind, _, inside = form
    if kind == NONE:
        return a
    if kind == LAYER:
        a = a - a.mean(-1, keepdim=True)
    k = units(form, a.shape[-1])
    mean_square = a[..., :k].square().sum(-1, keepdim=True) / (1 if kind == EUCLID else k)
    return a / ((mean_square + EPS).sqrt() if inside else mean_square.sqrt() + EPS)


def units(form: Form, n: int) -> int:
    """That enter the statistic."""
    return max(1, round(form[1] * n))


class Draws:
    """Random tensors in one dtype; what was drawn as float64 leaves, for the reference, is exactly the same."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def matrix(self, *shape: int) -> Tensor:
        """With rows, of the first axis, that lie further apart than they are long."""
        drawn = self(*shape)
        apart = torch.full((shape[0], drawn[0].numel() + 3), torch.nan, dtype=self.dtype)
        return apart[:, :-3].unflatten(1, shape[1:]).copy_(drawn)


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [of.detach().double().requires_grad_() for of in tensors]


def assert_close(ours: Tensor, reference: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[ours.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(ours.double(), reference.detach(), rtol=tolerance, atol=tolerance)


class TestNorms:
    __test__ = INTERPRETED

    LAYOUTS: dict[str, Callable[[Draws], Tensor]] = {  # noqa: RUF012 (read only)
        "rows": lambda draw: draw(3, 2, 7),
        "one unit": lambda draw: draw(5, 1),
        "many rows": lambda draw: draw(518, 5),
        "rows wider than a tile": lambda draw: draw(3, 4099),
        "rows in another order": lambda draw: draw(3, 4, 7).transpose(0, 1),
        "not rows": lambda draw: draw(7, 4).t(),
        "maps": lambda draw: draw(3, 5, 4, 3),
        "channels-last maps": lambda draw: draw(3, 5, 4, 3).to(memory_format=torch.channels_last),
        "many channels-last maps": lambda draw: draw(2, 35, 10, 15).to(memory_format=torch.channels_last),
        "neither": lambda draw: draw(3, 5, 4, 3).transpose(2, 3),
    }

    @pytest.mark.parametrize("case", CASES, ids=named)
    @pytest.mark.parametrize("layout", ["rows", "maps", "channels-last maps"])
    def test_values_and_gradients(self, layout: str, case: Case) -> None:
        self.check(layout, *case, gained=True, shifted=True)

    @pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"rows", "maps", "channels-last maps"}))
    def test_layouts(self, layout: str) -> None:
        for case in FEW:
            self.check(layout, *case, gained=True, shifted=True)

    @pytest.mark.parametrize(("gained", "shifted"), [(True, False), (False, True), (False, False)])
    @pytest.mark.parametrize("layout", ["rows", "maps", "channels-last maps"])
    def test_without_parameters(self, layout: str, gained: bool, shifted: bool) -> None:
        for form in ((RMS, 0.4, True), (LAYER, 1.0, True)):
            self.check(layout, form, torch.float64, gained, shifted)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("layout", ["rows", "rows wider than a tile", "channels-last maps"])
    def test_half_is_computed_in_float32(self, layout: str, dtype: torch.dtype) -> None:
        for form in ((RMS, 0.4, True), (LAYER, 1.0, True)):
            self.check(layout, form, dtype, gained=True, shifted=True)

    def check(self, layout: str, form: Form, dtype: torch.dtype, gained: bool, shifted: bool) -> None:
        draw = Draws(dtype)
        x = self.LAYOUTS[layout](draw)
        maps = x.ndim == 4
        width, dy = x.shape[1 if maps else -1], draw(*x.shape)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        gain, shift = draw(width), draw(width)
        n = x[0, 0].numel() if maps else width
        options = (maps, form[0], units(form, n), form[2], EPS)
        y, mean, scale = kernels.normalise_forward(x, gain if gained else None, shift if shifted else None, *options)
        given = (gain if gained else None, mean, scale, shift if shifted else None)
        dx, dgain, dshift = kernels.normalise_backward(dy, x, *given, *options)

        a, g, b = leaves(x, gain, shift)
        expected = normalised(a.flatten(2) if maps else a, form)
        along = (1, -1, 1) if maps else (-1,)
        expected = expected * g.reshape(along) if gained else expected
        expected = (expected + b.reshape(along) if shifted else expected).reshape(x.shape)
        expected.backward(dy.double())
        assert (y.dtype, y.shape, dx.dtype, dx.shape) == (dtype, x.shape, dtype, x.shape)
        assert mean.dtype == scale.dtype == dgain.dtype == dshift.dtype == wide
        assert mean.numel() == (scale.numel() if form[0] == LAYER else 0)
        assert scale.numel() == x.numel() // n
        assert_close(y, expected)
        assert_close(dx, a.grad)
        rows = 10 * TOLERANCE[wide]  # sums over rows that nearly cancel
        for ours, reference, given in ((dgain, g.grad, gained), (dshift, b.grad, shifted)):
            assert ours.shape == ((width,) if given else (0,))
            if given:
                assert_close(ours, reference, rows)

    def test_memory_is_laid_out_as_the_input(self) -> None:
        for layout in ("rows in another order", "channels-last maps"):
            x = self.LAYOUTS[layout](Draws(torch.float32))
            options = (x.ndim == 4, RMS, 3, True, EPS)
            y, mean, scale = kernels.normalise_forward(x, None, None, *options)
            dx, _, _ = kernels.normalise_backward(x.contiguous(), x, None, mean, scale, None, *options)
            assert y.stride() == dx.stride() == x.stride()

    def test_statistic_of_zero(self) -> None:
        """Outside the root, eps alone is the divisor, and the root's gradient is taken as 0."""
        x, gain = torch.zeros(2, 4, dtype=torch.float64), torch.full((4,), 3.0)
        dy = torch.ones_like(x)
        for kind in (RMS, EUCLID):
            y, mean, scale = kernels.normalise_forward(x, gain, None, False, kind, 4, False, EPS)
            dx, dgain, _ = kernels.normalise_backward(dy, x, gain, mean, scale, None, False, kind, 4, False, EPS)
            assert torch.equal(y, x)
            assert torch.equal(dgain, x[0])
            assert_close(dx, dy * 3 / EPS)

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3, 3), (3, 2, 0, 3)], ids=str)
    def test_nothing(self, shape: tuple[int, ...]) -> None:
        x, maps = torch.empty(shape), len(shape) == 4
        gain, options = torch.ones(shape[1]), (maps, RMS, 1, True, EPS)
        y, mean, scale = kernels.normalise_forward(x, gain, None, *options)
        dx, dgain, dshift = kernels.normalise_backward(y, x, gain, mean, scale, gain, *options)
        assert y.shape == dx.shape == x.shape
        assert torch.equal(dgain, torch.zeros(shape[1]))
        assert torch.equal(dshift, torch.zeros(shape[1]))


Sizes = tuple[int, int, bool, bool]
STEPS = [  # rows, hidden size, whether there is a mask (and a bias), whether this step's output was used; and the case
    *(((5, 7, True, True), case) for case in CASES),
    *(((3, 8, False, False), case) for case in FEW),
    *(((2, 1027, True, True), case) for case in FEW),  # wider than a tile
]


def norm_of(a: Tensor, affine: Tensor, form: Form) -> Tensor:
    return normalised(a, form) * affine[0] + affine[1]


class TestGates:
    __test__ = INTERPRETED

    @staticmethod
    def mask(rows: int, masked: bool) -> Tensor | None:
        """A column of a matrix, as of one time step; every other row is real."""
        return torch.stack((torch.ones(rows), torch.arange(rows) % 2), 1).bool()[:, 1] if masked else None

    @pytest.mark.parametrize(("sizes", "case"), STEPS, ids=named)
    def test_gru(self, sizes: Sizes, case: Case) -> None:
        (rows, hidden, masked, sent), (form, dtype) = sizes, case
        draw, width, mask = Draws(dtype), 3 * hidden, self.mask(rows, masked)
        ax, raw, h = (draw.matrix(rows, size) for size in (width, width, hidden))
        bias, affine = draw(width) if masked else None, draw(2, 2, width)
        dout, dh = draw.matrix(rows, hidden) if sent else None, draw.matrix(rows, hidden)
        gates, statistics, out = (draw.matrix(rows, size) for size in (width, 8, hidden))
        dax, dah, partials = draw.matrix(rows, width), draw.matrix(rows, width), draw.matrix(rows, 2, 2, width)

        at_x, at_h, state, parameters = leaves(ax, raw, h, affine)
        x, s = at_x, at_h if bias is None else at_h + bias.double()
        of_x, of_h = (
            [norm_of(a[:, part], pair[:, part], form) for part in (slice(2 * hidden), slice(2 * hidden, None))]
            for a, pair in zip((x, s), parameters, strict=True)
        )
        reset, update = torch.sigmoid(of_x[0] + of_h[0]).chunk(2, -1)
        candidate = torch.tanh(of_x[1] + reset * of_h[1])
        expected = update * state + (1 - update) * candidate
        if mask is not None:
            expected = torch.where(mask.unsqueeze(1), expected, state)
        expected.backward(dh.double() + (0 if dout is None else dout.double()))

        options = ([form[0], units(form, 2 * hidden), units(form, hidden), int(form[2])], EPS)
        ah, before = raw.clone(), partials.clone()
        kernels.gru_gates_forward(ax, ah, h, mask, bias, affine, *options, gates, statistics, out)
        kernels.gru_gates_backward(dout, dh, ax, ah, h, gates, statistics, mask, affine, *options, dax, dah, partials)
        assert_close(ah, s)
        assert_close(out, expected)
        real = slice(None) if mask is None else mask
        assert_close(gates[real], torch.cat((reset, update, candidate), 1)[real])
        assert_close(dh, state.grad)
        assert_close(dax, at_x.grad)
        assert_close(dah, at_h.grad)
        assert_close((partials - before).sum(0), parameters.grad)

    @pytest.mark.parametrize(("sizes", "case"), STEPS, ids=named)
    def test_lstm(self, sizes: Sizes, case: Case) -> None:
        (rows, hidden, masked, sent), (form, dtype) = sizes, case
        draw, width, mask = Draws(dtype), 4 * hidden, self.mask(rows, masked)
        ax, ah = draw.matrix(rows, width), draw.matrix(rows, width)
        h, c, dh, dc = (draw.matrix(rows, hidden) for _ in range(4))
        affine, cell_affine, dout = draw(2, 2, width), draw(2, hidden), draw.matrix(rows, hidden) if sent else None
        gates, statistics = draw.matrix(rows, 5 * hidden), draw.matrix(rows, 6)
        out_h, out_c = draw.matrix(rows, hidden), draw.matrix(rows, hidden)
        dax, dah = draw.matrix(rows, width), draw.matrix(rows, width)
        partials, cell_partials = draw.matrix(rows, 2, 2, width), draw.matrix(rows, 2, hidden)

        at_x, at_h, state, cell, parameters, of_cell = leaves(ax, ah, h, c, affine, cell_affine)
        summed = norm_of(at_x, parameters[0], form) + norm_of(at_h, parameters[1], form)
        i, f, o = torch.sigmoid(summed[:, : 3 * hidden]).chunk(3, -1)
        g = torch.tanh(summed[:, 3 * hidden :])
        new_cell = f * cell + i * g
        seen = torch.tanh(norm_of(new_cell, of_cell, form))
        new = o * seen
        if mask is not None:
            new = torch.where(mask.unsqueeze(1), new, state)
            new_cell = torch.where(mask.unsqueeze(1), new_cell, cell)
        through = [dh.double() + (0 if dout is None else dout.double()), dc.double()]
        inputs = [at_x, at_h, state, cell, parameters, of_cell]
        gradients = torch.autograd.grad([new, new_cell], inputs, through, materialize_grads=True)

        options = ([form[0], units(form, width), units(form, hidden), int(form[2])], EPS)
        before, cell_before = partials.clone(), cell_partials.clone()
        kernels.lstm_gates_forward(ax, ah, h, c, mask, affine, cell_affine, *options, gates, statistics, out_h, out_c)
        read = (dout, dh, dc, ax, ah, c, out_c, gates, statistics, mask, affine, cell_affine)
        kernels.lstm_gates_backward(*read, *options, dax, dah, partials, cell_partials)
        assert_close(out_h, new)
        assert_close(out_c, new_cell)
        real = slice(None) if mask is None else mask
        assert_close(gates[real], torch.cat((i, f, o, g, seen), 1)[real])
        added = [(partials - before).sum(0), (cell_partials - cell_before).sum(0)]
        for ours, reference in zip([dax, dah, dh, dc, *added], gradients, strict=True):
            assert_close(ours, reference)


class TestAttention:
    __test__ = INTERPRETED

    @pytest.mark.parametrize(
        ("sizes", "case"),
        [((3, 5, 7, 4), case) for case in CASES] + [(sizes, FEW[0]) for sizes in ((2, 19, 259, 3), (2, 1, 3, 260))],
        ids=named,
    )
    def test_values_and_gradients(self, sizes: tuple[int, int, int, int], case: Case) -> None:
        """Positions that are not real hold no number; the last row has no real one."""
        (rows, length, width, depth), (form, dtype) = sizes, case
        draw = Draws(dtype)
        mask = torch.zeros(rows, length + 2, dtype=torch.bool)[:, :length]
        mask[:-1] = torch.arange(length) % 3 != 1
        keys, dkeys = draw.matrix(rows, length, width), draw.matrix(rows, length, width)
        query, dquery = draw.matrix(rows, width), draw.matrix(rows, width)
        values, dcontext = draw.matrix(rows, length, depth), draw.matrix(rows, depth)
        score, affine, partials = draw(width), draw(2, width), draw.matrix(rows, 3, width)
        statistics, alpha, context = draw.matrix(rows, 2), draw.matrix(rows, length), draw.matrix(rows, depth)

        at_keys, at_query, at_score, parameters = leaves(keys, query, score, affine)
        energy = torch.tanh(at_keys + norm_of(at_query, parameters, form).unsqueeze(1)) @ at_score
        weights = torch.softmax(energy.masked_fill(~mask, -1e30), -1) * mask
        expected = (weights.unsqueeze(1) @ values.double()).squeeze(1)
        expected.backward(dcontext.double())

        keys[~mask] = values[~mask] = torch.nan
        before, keys_before = partials.clone(), dkeys.clone()
        options = ([form[0], units(form, width), int(form[2])], EPS)
        kernels.attention_forward(keys, query, values, mask, score, affine, *options, statistics, alpha, context)
        read = (dcontext, keys, query, values, mask, score, affine, statistics, alpha)
        kernels.attention_backward(*read, *options, dkeys, dquery, partials)
        assert_close(alpha, weights)
        assert_close(context, expected)
        assert_close(dkeys - keys_before, at_keys.grad)
        assert_close(dquery, at_query.grad)
        added = (partials - before).sum(0)
        assert_close(added[0], at_score.grad)
        assert_close(added[1:], parameters.grad)


class TestOperators:
    __test__ = INTERPRETED

    def test_tanh_near_zero(self) -> None:
        """The candidate of a GRU without norm whose state is 0 is the tanh of what enters."""
        for dtype, tolerance in ((torch.float32, 3e-7), (torch.float64, 5e-16)):
            x = torch.logspace(-10, 1, 401, dtype=dtype)
            x = torch.cat((-x, x)).unsqueeze(0)
            h, width = torch.zeros_like(x), 3 * x.shape[1]
            ax, ah = torch.cat((h, h, x), 1), x.new_zeros(1, width)
            affine = x.new_tensor([1, 0]).reshape(1, 2, 1).repeat(2, 1, width)
            gates, statistics, form = torch.empty_like(ax), x.new_empty(1, 8), [NONE, 1, 1, 1]
            kernels.gru_gates_forward(ax, ah, h, None, None, affine, form, EPS, gates, statistics, h)
            torch.testing.assert_close(gates[:, -x.shape[1] :].double(), torch.tanh(x.double()), rtol=tolerance, atol=0)

    def test_registration(self) -> None:
        """Their arguments are those with which the operators are defined, and the dispatcher finds them."""
        schemas = {}
        for source in Path(kernels.__file__).parents[1].glob("cpp/*.cpp"):
            for definition in re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)[,)]', source.read_text()):
                schema = "".join(re.findall(r'"([^"]*)"', definition))
                schemas[schema.split("(")[0]] = schema
        defined = torch.library.Library("rmsexp", "FRAGMENT")
        for operator in kernels.OPERATORS:
            schema = torch._C.parse_schema(schemas[operator.__name__])
            assert [argument.name for argument in schema.arguments] == [*inspect.signature(operator).parameters]
            defined.define(schemas[operator.__name__])
        kernels.register("CPU")
        x = Draws(torch.float64)(3, 4)
        arguments = (x, x[0], None, False, RMS, 2, True, EPS)
        by_operator, directly = torch.ops.rmsexp.normalise_forward(*arguments), kernels.normalise_forward(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(by_operator, directly, strict=True))
