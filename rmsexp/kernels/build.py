"""Compiles the C++ operators when they are first needed, and keeps the library for the next process.

What is built depends on sources, compiler, processor and torch version, and lies in a folder of that digest.
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
from functools import lru_cache
from pathlib import Path

import torch

CACHE = Path("~/.cache/rmsexp/kernels")
SOURCES = Path(__file__).parent / "cpp"
# No -ffast-math: it would make NaN undefined and, in some compilers, flush denormals in the whole process.
FLAGS = "-std=c++20 -O3 -march=native -fopenmp -fPIC -fno-math-errno -fno-trapping-math -w"


class BuildError(Exception):
    """The operators cannot be had here; the message says why in one line."""


@lru_cache(maxsize=1)
def load() -> bool:
    """Whether the operators ``torch.ops.rmsexp`` are there; the first call builds and loads them.

    Where they cannot be built a notice says why, once, and callers go on with elementary operations.
    """
    try:
        library = _library()
        try:
            torch.ops.load_library(library)
        except OSError:  # damaged; it is built anew
            library.unlink()
            torch.ops.load_library(_library())
    except (BuildError, OSError) as error:
        _say(f"notice: no fused kernels, going on with eager operations ({error})")
        return False
    from rmsexp.kernels import fakes

    fakes.register()
    if torch.cuda.is_available():
        from rmsexp.kernels import triton

        triton.register("CUDA")
    return True


def _library() -> Path:
    """The path of the library, built if there is none yet. Raises: BuildError."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("no C++ compiler found; install g++ or set CXX")
    command = [compiler, *FLAGS.split(), *_definitions()]
    sources = sorted(SOURCES.glob("*.cpp"))
    content = [path.read_bytes() for path in (*sources, *SOURCES.glob("*.h"))]
    facts = [*command, torch.__version__, _output([compiler, "--version"]), _processor()]
    digest = hashlib.sha256(b"\0".join([*content, *(fact.encode() for fact in facts)])).hexdigest()[:16]
    folder = CACHE.expanduser() / digest
    library = folder / "rmsexp.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # of several processes one builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _say("building the fused kernels (once; a minute or two)")
            _compile(command, sources, library)
            _say(f"the fused kernels are built and kept: {library}")
    return library


def _compile(command: list[str], sources: list[Path], library: Path) -> None:
    headers = Path(torch.__file__).parent / "include"
    include = [f"-I{path}" for path in (headers, headers / "torch/csrc/api/include")]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]
        jobs = [
            subprocess.Popen([*command, *include, "-c", source, "-o", to], stderr=subprocess.PIPE, text=True)
            for source, to in zip(sources, objects, strict=True)
        ]
        errors = [job.communicate()[1] for job in jobs]
        for job, error in zip(jobs, errors, strict=True):
            if job.returncode:
                raise BuildError(f"{command[0]} failed: {_first_error(error)}")
        whole = Path(scratch) / library.name
        torch_library = Path(torch.__file__).parent / "lib"
        linked = [f"-L{torch_library}", "-ltorch", "-ltorch_cpu", "-lc10"]
        # the threads that torch has itself; a second OpenMP in one process would compete with it
        openmp = next((str(path) for path in torch_library.glob("libgomp*")), "-fopenmp")
        _output([command[0], "-shared", "-o", str(whole), *map(str, objects), *linked, openmp])
        whole.replace(library)


def _definitions() -> list[str]:
    """Which vectors ATen's headers use: those that torch itself found on this processor."""
    capability = torch.backends.cpu.get_cpu_capability()
    return [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"]


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{command[0]} failed: {_first_error(done.stderr)}")
    return done.stdout


def _first_error(text: str) -> str:
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[-1])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
