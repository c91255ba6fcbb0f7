"""The Triton kernels compile for CUDA; this needs no GPU."""

from pathlib import Path

import pytest
import torch
from helpers.interpreter import run_python

from rmsexp.norms.kernels.norms import Kind

pytestmark = pytest.mark.minutes

pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")

EPS = 1e-3

COMPILE = r"""
import re, sys
sys.path.append("../..")
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
    program = re.search(r"(%\S+) = tt.get_program_id x", kernel.asm["ttir"])[1]
    uses = re.findall(rf"= (\S+) {program}\b", kernel.asm["ttir"])
    print(self.fn.__module__, self.fn.__name__, "cubin" in kernel.asm, "atom" in kernel.asm["ptx"], *set(uses))

driver.set_active(Driver())
compile, JITFunction.run = JITFunction.run, compile_only
from test_triton_compile import call_every_operator
call_every_operator()
"""


def test_kernels_compile_for_cuda_without_atomics(tmp_path: Path) -> None:
    """Kernels extend the number of the program to 64 bits before they compute with it: a tensor may have 2^31 rows."""
    process = run_python("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))
    assert process.returncode == 0, process.stderr[-4000:]
    modules = [*["norms"] * 5, "steps", "steps", "attention"]
    names = [f"rmsexp.norms.kernels.triton.{module} {name}" for module in modules for name in ("_forward", "_backward")]
    assert process.stdout.splitlines() == [f"{name} True False arith.extsi" for name in names]


def call_every_operator() -> None:
    """Call each operator with the shapes of a model; the normalise operators with rows and with feature maps."""
    from rmsexp.norms.kernels import triton as kernels

    rows, hidden, length, depth = 32, 256, 20, 512
    empty = torch.empty
    for x, maps in [(empty(rows, hidden), False), (empty(2, hidden, 8, 8), True)]:
        gain, options = empty(hidden), (maps, Kind.RMS, 16, True, EPS)
        _, mean, scale, _ = kernels.normalise_forward(x, None, gain, gain, *options)
        kernels.normalise_backward(x, None, x, gain, mean, scale, gain, *options)
    for x, kind, maps in [(empty(rows, hidden), Kind.TANH, False), (empty(2, hidden, 8, 8), Kind.ERF, True)]:
        options, none = (maps, kind, 1, True, EPS, 1.0, empty(1), empty(1) if maps else None), empty(0)
        kernels.normalise_forward(x, None, gain, gain, *options)
        kernels.normalise_backward(x, None, x, gain, none, none, gain, *options)
    x, gain, options = empty(rows, hidden), empty(hidden), (False, Kind.RMS, 16, True, EPS)
    _, mean, scale, _ = kernels.normalise_forward(x, x, gain, gain, *options)
    kernels.normalise_backward(x, x, x, gain, mean, scale, gain, *options)
    h, affine, statistics = empty(rows, hidden), empty(2, 2, 3 * hidden), empty(rows, 8)
    ax, partials = empty(rows, 3 * hidden), empty(rows, 2, 2, 3 * hidden)
    mask, form = empty(rows, dtype=torch.bool), [Kind.LAYER, 2 * hidden, hidden, 1]
    kernels.gru_gates_forward(ax, ax, h, mask, ax[0], affine, form, EPS, ax, statistics, h)
    kernels.gru_gates_backward(h, h, ax, ax, h, ax, statistics, mask, affine, form, EPS, ax, ax, partials)
    ax, partials, affine = empty(rows, 4 * hidden), empty(rows, 2, 2, 4 * hidden), empty(2, 2, 4 * hidden)
    cell_affine, gates, cell_partials = empty(2, hidden), empty(rows, 5 * hidden), empty(rows, 2, hidden)
    statistics = empty(rows, 6)
    form = [Kind.LAYER, 4 * hidden, hidden, 1]
    kernels.lstm_gates_forward(ax, ax, h, h, mask, affine, cell_affine, form, EPS, gates, statistics, h, h)
    inputs = (h, h, h, ax, ax, h, h, gates, statistics, mask, affine, cell_affine)
    kernels.lstm_gates_backward(*inputs, form, EPS, ax, ax, partials, cell_partials)
    keys, values, alpha = empty(rows, length, hidden), empty(rows, length, depth), empty(rows, length)
    statistics, context = empty(rows, 2), empty(rows, depth)
    mask, form = empty(rows, length, dtype=torch.bool), [Kind.LAYER, hidden, 1]
    kernels.attention_forward(keys, h, values, mask, h[0], cell_affine, form, EPS, statistics, alpha, context)
    inputs = (context, keys, h, values, mask, h[0], cell_affine, statistics, alpha)
    kernels.attention_backward(*inputs, form, EPS, keys, h, empty(rows, 3, hidden))
