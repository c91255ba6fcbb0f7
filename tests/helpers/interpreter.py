"""Run the tests of a file with the Triton kernels, in Triton's interpreter on CPU, in place of the C++ kernels.

A separate process does so, because Triton chooses between interpreter and compiler when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rmsexp import kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # whether this process is such a process


def load_kernels() -> bool:
    """Load the C++ kernels, in an interpreting process replaced by the Triton kernels; return whether this works."""
    if not kernels.load():
        return False
    if INTERPRETED:
        from rmsexp.kernels import triton

        triton.register("CPU")
    return True


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the tests of the kernels."""
    folder = Path(__file__).parents[1] / "kernels"
    command = [sys.executable, *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True)


def assert_passes_in_the_interpreter(file: str) -> None:
    """Assert that the tests of a file pass in an interpreting process."""
    process = run_python("-m", "pytest", "-p", "no:cacheprovider", file, TRITON_INTERPRET="1")
    assert process.returncode == 0, process.stdout[-8000:]
