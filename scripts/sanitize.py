"""Test the C++ kernels with AddressSanitizer and UndefinedBehaviorSanitizer (g++ on Linux; five minutes on two cores).

    python scripts/sanitize.py

The sanitizers end a process with a report at the first read or write outside an allocation, and at the first operation
that C++ leaves undefined. The script builds the kernels with them into a temporary folder, with the other flags that
the package builds kernels with. First it plants a fault of each kind, which must be reported. Then it runs the tests of
norms and kernels that call the C++ kernels in their own process. Its exit status is 0 if both faults were reported and
the tests passed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from rmsexp.norms.kernels import build

ROOT = Path(__file__).parents[1]
# With -O1 and -g1, reports name lines. The check of vptr would need type information that torch's libraries hide.
FLAGS = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so")  # in this order, before any other library of the process
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",  # Python does not free all its memory at its end
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "ATEN_CPU_CAPABILITY": "default",  # vectors are arrays, and each access to them is checked
    "CXX": "g++",
}
PLANTED = """
#include <ATen/ATen.h>
#include <torch/library.h>

static double read_beyond(const at::Tensor& values) { return values.const_data_ptr<double>()[values.numel()]; }
static int64_t overflow(int64_t value) { return static_cast<int>(value) * 2; }

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def("read_beyond(Tensor values) -> float", read_beyond);
  m.def("overflow(int value) -> int", overflow);
}
"""
# For each planted operator, an argument with which it has a fault, and what the report must contain.
FAULTS = {
    "read_beyond": (torch.ones(8, dtype=torch.float64), "heap-buffer-overflow"),
    "overflow": (2**31 - 1, "signed integer overflow"),
}
# These files call the kernels in other processes; tests whose names have one of these words do, too, or test torch.
LEFT_OUT = ("test_build.py", "test_triton.py", "test_triton_compile.py")
WORDS = "not interpreter and not compile and not run_has_the_losses"


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(build.SOURCES, Path(folder, "cpp"))
        Path(folder, "cpp/planted.cpp").write_text(PLANTED)
        for name, (_, report) in FAULTS.items():
            ended = run_child(folder, name, stderr=subprocess.PIPE)
            if ended.returncode == 0 or report not in ended.stderr or "planted.cpp" not in ended.stderr:
                print(ended.stderr, f"the planted fault was not reported: {report}", sep="\n", file=sys.stderr)
                return 1
            print(f"a planted fault was reported: {report}", flush=True)
        return run_child(folder, "test").returncode


def run_child(folder: str, what: str, stderr: int | None = None) -> subprocess.CompletedProcess[str]:
    """Call :func:`child` in a new process with the sanitizers' libraries."""
    libraries = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in RUNTIMES]
    environment = {**os.environ, **ENVIRONMENT, "LD_PRELOAD": ":".join(libraries)}
    command = [sys.executable, __file__, "--child", folder, what]
    return subprocess.run(command, cwd=ROOT, env=environment, stderr=stderr, text=True, check=False)


def child(folder: str, what: str) -> int:
    """Load the kernels with sanitizers, then call a planted operator or run the tests; return the exit status.

    Args:
        folder: Folder with the sources, ``cpp``, and the library, which is built if it is not there.
        what: Name of the planted operator, or "test".
    """
    del os.environ["LD_PRELOAD"]  # the compiler, and other processes that tests start, run without sanitizers
    build.SOURCES, build.CACHE = Path(folder, "cpp"), Path(folder, "library")
    build.FLAGS = f"{build.FLAGS} {FLAGS}"
    if not build.load():
        return 1
    if what in FAULTS:
        getattr(torch.ops.rmsexp, what)(FAULTS[what][0])
        return 0
    files = sorted((ROOT / "tests/norms").rglob("test_*.py"))
    # --capture=sys shows reports: sanitizers write them to the file descriptor of standard error
    options = ["-q", "-x", "-p", "no:cacheprovider", "--capture=sys", "-k", WORDS]
    return int(pytest.main([*options, *(str(path) for path in files if path.name not in LEFT_OUT)]))


if __name__ == "__main__":
    sys.exit(child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main())
