"""Compile the C++ operators when they are first needed, and cache the library for later processes.

The cache has a folder for each combination of sources, compiler, flags, processor and torch version.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch

from rmsexp.kernels.forms import Kind

CACHE = Path("~/.cache/rmsexp/kernels")
SOURCES = Path(__file__).parent / "cpp"
# No -ffast-math: it would make NaN undefined and, in some compilers, flush denormals in the whole process.
FLAGS = "-std=c++20 -O3 -march=native -fopenmp -fPIC -fno-math-errno -fno-trapping-math -w"


class BuildError(Exception):
    """The operators cannot be built on this machine. The message is one line that gives the cause, if it is known."""


@lru_cache(maxsize=1)
def load() -> bool:
    """Return whether the operators ``torch.ops.rmsexp`` are available.

    The first call loads the library of operators; if the library is not cached, the call builds it before. If this
    fails, the first call prints a notice to standard error, and all calls return False. Callers then use eager
    operations.
    """
    try:
        library = _library()
        try:
            torch.ops.load_library(library)
        except OSError:  # probably the file is damaged: build it again
            library.unlink(missing_ok=True)  # another process may have removed it, too
            torch.ops.load_library(_library())
    except (BuildError, OSError) as error:
        _print(f"notice: the fused kernels are not available, eager operations are used instead ({error})")
        return False
    from rmsexp.kernels import fakes

    fakes.register()
    if torch.cuda.is_available():
        from rmsexp.kernels import triton

        triton.register("CUDA")
    return True


def _library() -> Path:
    """Return the path of the library, building it if it is not cached. Raises: BuildError or OSError if that fails."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("no C++ compiler found; install g++ or set CXX")
    command = [compiler, *FLAGS.split(), *_definitions()]
    sources = sorted(SOURCES.glob("*.cpp"))
    content = [path.read_bytes() for path in (*sources, *sorted(SOURCES.glob("*.h")))]
    settings = [*command, torch.__version__, _output([compiler, "--version"]), _processor()]
    digest = hashlib.sha256(b"\0".join([*content, *(text.encode() for text in settings)])).hexdigest()[:16]
    folder = CACHE.expanduser() / digest
    library = folder / "rmsexp.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # one process builds, others wait for it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _print("building the fused kernels (once; a minute or two)")
            _compile(command, sources, library)
            _print(f"built the fused kernels: {library}")
    return library


def _compile(command: list[str], sources: list[Path], library: Path) -> None:
    """Compile the sources, as many at a time as there are processors, and link them. Raises: BuildError.

    The library is linked in a temporary folder and moved to its path when it is complete.
    """
    headers = Path(torch.__file__).parent / "include"
    include = [f"-I{path}" for path in (headers, headers / "torch/csrc/api/include")]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [
                pool.submit(_output, [*command, *include, "-c", str(source), "-o", target])
                for source, target in zip(sources, objects, strict=True)
            ]
        for job in jobs:
            job.result()
        linked = Path(scratch) / library.name
        torch_library = Path(torch.__file__).parent / "lib"
        libraries = [f"-L{torch_library}", "-ltorch", "-ltorch_cpu", "-lc10"]
        # link torch's own OpenMP library: a second one in the process would start threads that compete with torch's
        openmp = next((str(path) for path in torch_library.glob("libgomp*")), "-fopenmp")
        _output([command[0], "-shared", "-o", str(linked), *objects, *libraries, openmp])
        linked.replace(library)


def _definitions() -> list[str]:
    """Return compiler options that define macros: the vector instructions that torch uses, the numbers of ``Kind``."""
    capability = torch.backends.cpu.get_cpu_capability()
    kinds = [f"-DRMSEXP_KIND_{name}={value}" for name, value in vars(Kind).items() if name.isupper()]
    return [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}", *kinds]


def _processor() -> str:
    """Return the line of /proc/cpuinfo with the processor's features, on which ``-march=native`` depends.

    Without such a line, return the processor's name.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _output(command: list[str]) -> str:
    """Run a command and return its standard output. Raises: BuildError if its exit status is not 0."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise BuildError(f"{command[0]} failed: {_first_error(process.stderr)}")
    return process.stdout


def _first_error(text: str) -> str:
    """Return the first line of a command's messages that contains "error", or else the last line."""
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[-1])


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
