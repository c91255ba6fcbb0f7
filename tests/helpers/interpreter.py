"""Run the tests of a file with the Triton kernels, in Triton's interpreter on CPU, in place of the C++ kernels.

A separate process does so, because Triton chooses between interpreter and compiler when it is imported. Where there is
a GPU, test_triton.py and test_gpu.py also run the compiled Triton kernels on it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rmsexp.norms import kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # whether this process is such a process
ON_GPU = torch.cuda.is_available() and not INTERPRETED
only_on_gpu = pytest.mark.skipif(not ON_GPU, reason="there is no GPU")


def need_kernels() -> None:
    """Load the C++ kernels, in an interpreting process replaced by the Triton kernels.

    Skip the test where there is no C++ compiler, and fail it if they do not build or load. Compilers are those of
    rmsexp/norms/kernels/build.py. One that CXX names should be there.
    """
    if kernels.load():
        if INTERPRETED:
            from rmsexp.norms.kernels import triton

            triton.register("CPU")
        return
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        pytest.skip("the fused kernels cannot be built here; their tests need a C++ compiler")
    pytest.fail("the fused kernels do not build or load; see the message above")


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the tests of the kernels."""
    folder = Path(__file__).parents[1] / "norms/kernels"
    command = [sys.executable, *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True)
