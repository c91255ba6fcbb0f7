"""The Triton kernels equal PyTorch's autograd in float64: run by Triton's interpreter on CPU, and on a GPU if any."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import triton_reference
from helpers.interpreter import INTERPRETED, run_python
from helpers.triton_reference import EPS, ERF, LAYER, PARTIAL, RUNS, SINGLE, TOLERANCE, Case, Draws, Form, assert_close
from torch import Tensor

from rmsexp.norms.kernels.norms import Kind

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("default_device")]

triton = pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")

if RUNS:
    from rmsexp.norms.kernels import triton as kernels
    from rmsexp.norms.kernels.triton import norms as norm_kernels
    from rmsexp.norms.kernels.triton.rows import RowOperator


@pytest.mark.skipif(INTERPRETED, reason="this process already runs the interpreter")
def test_under_the_interpreter() -> None:
    """The process runs test_triton_recurrences.py, too."""
    files = [__file__, __file__.replace(".py", "_recurrences.py")]
    process = run_python("-m", "pytest", "-p", "no:cacheprovider", *files, TRITON_INTERPRET="1")
    assert process.returncode == 0, process.stdout[-8000:]


class TestNorms:
    __test__ = RUNS

    LAYOUTS: dict[str, Callable[[Draws], Tensor]] = {  # noqa: RUF012 (read only)
        "rows": lambda draw: draw(3, 2, 7),
        "one unit": lambda draw: draw(5, 1),
        "rows wider than a block": lambda draw: draw(2, 4099),
        "transposed batch": lambda draw: draw(3, 2, 7).transpose(0, 1),
        "transposed rows": lambda draw: draw(7, 4).t(),
        "maps": lambda draw: draw(2, 3, 4, 3),
        "channels-last maps": lambda draw: draw(2, 5, 4, 3).to(memory_format=torch.channels_last),
        "many channels-last maps": lambda draw: draw(2, 35, 10, 15).to(memory_format=torch.channels_last),
        "transposed maps": lambda draw: draw(2, 3, 4, 3).transpose(2, 3),
    }

    @pytest.mark.parametrize("case", triton_reference.ALL_CASES, ids=triton_reference.name_of)
    def test_values_and_gradients(self, case: Case) -> None:
        self.check("rows", *case)

    @pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"rows"}))
    def test_layouts(self, layout: str) -> None:
        pointwise = (
            [ERF] if "many" not in layout else []
        )  # hundreds of programs; several rows per block are tested below
        for case in (PARTIAL, LAYER, *pointwise):
            self.check(layout, *case)

    def test_several_rows_per_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Results are right in blocks of four rows, of which the last one may have fewer."""
        monkeypatch.setattr(norm_kernels, "block_options", lambda *_: {"BLOCK_ROWS": 4, "BLOCK_N": 8})
        for case in (PARTIAL, LAYER, ERF):
            for layout in ("rows", "maps", "channels-last maps"):
                self.check(layout, *case)

    @pytest.mark.parametrize(
        ("rows", "n", "block_rows"), [(255, 5, 1), (256, 5, 2), (518, 5, 4), (10**6, 4099, 16), (10**6, 1, 4096)]
    )
    def test_size_of_blocks(self, rows: int, n: int, block_rows: int) -> None:
        options = norm_kernels.block_options(rows, 1, n)
        assert options["BLOCK_ROWS"] == block_rows
        assert options["BLOCK_N"] == min(triton.next_power_of_2(n), 4096 // block_rows)

    @pytest.mark.parametrize("layout", ["rows", "maps"])
    def test_without_parameters(self, layout: str) -> None:
        for gain, shift in ((True, False), (False, True), (False, False)):
            self.check(layout, *LAYER, has_gain=gain, has_shift=shift)
        self.check(layout, *ERF, has_shift=False)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_half_precision_is_computed_in_float32(self, dtype: torch.dtype) -> None:
        for form in (triton_reference.FORMS[2], LAYER.form, ERF.form):
            self.check("rows", form, dtype)
        self.check("channels-last maps", LAYER.form, dtype)

    def check(self, layout: str, form: Form, dtype: torch.dtype, has_gain: bool = True, has_shift: bool = True) -> None:
        draw = Draws(dtype)
        x = self.LAYOUTS[layout](draw)
        maps, pointwise = x.ndim == 4, form.kind in (Kind.TANH, Kind.ERF)
        features, dy = x.shape[1 if maps else -1], draw(*x.shape)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        gain, shift = draw(features), draw(features)
        n = x[0, 0].numel() if maps else features
        numbers = draw(2) if pointwise else torch.tensor([1.0, 0.0])
        alpha, offset = numbers[:1] if pointwise else None, numbers[1:] if form.kind == Kind.ERF else None
        options = (maps, form.kind, form.units(n), form.inside, EPS, 1.0, alpha, offset)
        gain_argument, shift_argument = gain if has_gain else None, shift if has_shift else None
        y, mean, scale, total = kernels.normalise_forward(x, None, gain_argument, shift_argument, *options)
        saved = (x, gain_argument, mean, scale, shift_argument)
        dx, dgain, dshift, dnumbers = kernels.normalise_backward(dy, None, *saved, *options)
        assert total.shape == (0,)

        a, g, b, c = triton_reference.leaves(x, gain, shift, numbers)
        u = c[0] * a + (0 if offset is None else c[1]) if pointwise else a
        expected = triton_reference.normalised(u.flatten(2) if maps else u, form)
        broadcast = (1, -1, 1) if maps else (-1,)
        expected = expected * g.reshape(broadcast) if has_gain else expected
        expected = (expected + b.reshape(broadcast) if has_shift else expected).reshape(x.shape)
        expected.backward(dy.double())
        assert (y.dtype, y.shape, dx.dtype, dx.shape) == (dtype, x.shape, dtype, x.shape)
        if layout in ("transposed batch", "channels-last maps"):
            assert y.stride() == dx.stride() == x.stride()
        assert {each.dtype for each in (mean, scale, dgain, dshift, dnumbers)} == {wide}
        assert mean.numel() == (scale.numel() if form.kind == Kind.LAYER else 0)
        assert scale.numel() == (0 if pointwise else x.numel() // n)
        assert_close(y, expected)
        assert_close(dx, a.grad)
        tolerance = 10 * TOLERANCE[wide]  # for sums over rows, whose terms nearly cancel
        for gradient, reference, exists in ((dgain, g.grad, has_gain), (dshift, b.grad, has_shift)):
            assert gradient.shape == ((features,) if exists else (0,))
            if exists:
                assert_close(gradient, reference, tolerance)
        if pointwise:  # without an offset, its gradient is not used
            count = 1 if offset is None else 2
            torch.testing.assert_close(dnumbers[:count].double(), c.grad[:count], rtol=tolerance, atol=10 * tolerance)
        else:
            assert dnumbers.shape == (0,)

    def test_statistic_of_zero(self) -> None:
        """If eps is outside the root and the statistic is 0, then y = 0 and the gradient of x is gain * dy / eps."""
        x, gain = torch.zeros(2, 4, dtype=torch.float64), torch.full((4,), 3.0)
        dy = torch.ones_like(x)
        for kind in (Kind.RMS, Kind.EUCLID):
            y, mean, scale, _ = kernels.normalise_forward(x, None, gain, None, False, kind, 4, False, EPS)
            dx, dgain, *_ = kernels.normalise_backward(dy, None, x, gain, mean, scale, None, False, kind, 4, False, EPS)
            assert torch.equal(y, x)
            assert torch.equal(dgain, x[0])
            assert_close(dx, dy * 3 / EPS)

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3, 3), (3, 2, 0, 3)], ids=str)
    def test_empty_input(self, shape: tuple[int, ...]) -> None:
        x, maps = torch.empty(shape), len(shape) == 4
        gain, options = torch.ones(shape[1]), (maps, Kind.RMS, 1, True, EPS)
        y, mean, scale, _ = kernels.normalise_forward(x, None, gain, None, *options)
        dx, dgain, dshift, _ = kernels.normalise_backward(y, None, x, gain, mean, scale, gain, *options)
        assert y.shape == dx.shape == x.shape
        assert torch.equal(dgain, torch.zeros(shape[1]))
        assert torch.equal(dshift, torch.zeros(shape[1]))

    @pytest.mark.parametrize(
        ("case", "narrow", "strided"),  # the position of the strided tensor among x, addend, dtotal and dy
        [
            *((LAYER, torch.float64, strided) for strided in range(4)),
            *((SINGLE[0], torch.float32, 3), (SINGLE[0], torch.float16, 1), (SINGLE[0], torch.float16, 2)),
        ],
        ids=str,
    )
    def test_a_residual_sum_and_its_norm(self, case: Case, narrow: torch.dtype, strided: int) -> None:
        form, dtype = case
        draw = Draws(dtype)
        tensors = [(draw(2, 5, 7).transpose(0, 1) if place == strided else draw(5, 2, 7)) for place in range(4)]
        x, addend, dtotal, dy = tensors
        addend, gain, shift = addend.to(narrow), draw(7), draw(7)
        options = (False, form.kind, form.units(7), form.inside, EPS)
        y, mean, scale, total = kernels.normalise_forward(x, addend, gain, shift, *options)
        gradients = kernels.normalise_backward(dy, dtotal, total, gain, mean, scale, shift, *options)

        assert torch.equal(total, x + addend)
        a, *parameters = triton_reference.leaves(total, gain, shift)
        expected = triton_reference.normalised(a, form) * parameters[0] + parameters[1]
        assert_close(y, expected)
        reference = torch.autograd.grad([a, expected], [a, *parameters], [dtotal.double(), dy.double()])
        for actual, wanted in zip(gradients, reference, strict=False):
            assert_close(actual, wanted, 10 * TOLERANCE[dtype])


class TestOperators:
    __test__ = RUNS

    @pytest.mark.skipif(not INTERPRETED, reason="other tests of this process load the C++ operators of these names")
    def test_registration(self) -> None:
        """The functions have the parameter names of the C++ definitions; the dispatcher calls normalise_forward."""
        schemas = {}
        for source in Path(kernels.__file__).parents[1].glob("cpp/*.cpp"):
            for definition in re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)[,)]', source.read_text()):
                schema = "".join(re.findall(r'"([^"]*)"', definition))
                schemas[schema.split("(")[0]] = schema
        library = torch.library.Library("rmsexp", "FRAGMENT")
        for name, operator in kernels.OPERATORS.items():
            schema = torch._C.parse_schema(schemas[name])
            by_row = isinstance(operator, RowOperator)
            names = operator.names.split() if by_row else inspect.signature(operator).parameters
            assert [argument.name for argument in schema.arguments] == [*names]
            library.define(schemas[name])
        kernels.register("CPU")
        x = Draws(torch.float64)(3, 4)
        arguments = (x, None, x[0], None, False, Kind.RMS, 2, True, EPS)
        dispatched, direct = torch.ops.rmsexp.normalise_forward(*arguments), kernels.normalise_forward(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(dispatched, direct, strict=True))
