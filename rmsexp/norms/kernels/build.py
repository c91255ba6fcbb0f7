"""Compile the C++ operators when they are first needed, and cache the library for later processes.

The cache has a folder for each combination of sources, compiler, flags, processor and torch version, which only this
user can change. A library appears in it when it is complete, and is never changed.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import torch

from rmsexp.norms.kernels.norms import Kind, register_fakes
from rmsexp.system.command_line import brief, inform
from rmsexp.system.files import cache_folder
from rmsexp.system.lock import locked

CACHE = Path("~/.cache/rmsexp/kernels")
SOURCES = Path(__file__).parent / "cpp"
# No -ffast-math: it would make NaN undefined and, in some compilers, flush denormals in the whole process.
# No contraction of products and sums to one operation, which compilers choose differently for loops with the same
# formula: kernels that share a formula then give equal results. fmadd() is written where it is meant.
FLAGS = "-std=c++20 -O3 -march=native -fopenmp -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=off -w"

_loading = Lock()  # held by the thread that loads, because operators can be registered only once


def load() -> bool:
    """Return whether the operators ``torch.ops.rmsexp`` are available on CPU. If not, callers use eager operations.

    The first call loads their library, or builds it if it is not cached, and registers the kernels for GPUs if there is
    one. If one of these fails, it prints a notice to standard error; without kernels for GPUs the result is still True.
    """
    with _loading:
        return _load()


@lru_cache(maxsize=1)
def _load() -> bool:
    try:
        torch.ops.load_library(_library())
    except (OSError, ValueError) as error:
        inform(brief(f"notice: the fused kernels are not available, eager operations are used instead ({error})"))
        return False
    register_fakes()
    if torch.cuda.is_available():
        try:
            from rmsexp.norms.kernels import triton
        except ImportError as error:  # torch can be installed without triton
            inform(brief(f"notice: the fused kernels for GPUs are not available ({error}); use norm.impl=eager there"))
            return True
        triton.register("CUDA")
    return True


def _library() -> Path:
    """Return the path of the library, building it if it is not there. Raises: OSError or ValueError if it fails."""
    compiler = _compiler()
    command = [*compiler, *FLAGS.split(), *_definitions()]
    # the macros that the compiler defines tell its version, and the instructions that the processor has
    macros = _output([*command, "-dM", "-E", "-x", "c++", os.devnull])
    content = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    settings = [*command, torch.__version__, macros]
    key = hashlib.sha256(b"\0".join([*content, *(text.encode() for text in settings)])).hexdigest()[:16]
    library = cache_folder(CACHE, key) / "rmsexp.so"
    if library.exists():
        return library
    with locked(library.with_name("lock"), lambda: inform("waiting for another process that builds the fused kernels")):
        if not library.exists():
            inform("building the fused kernels (once; a minute or two)")
            _build(compiler, command, library)
            inform(f"built the fused kernels: {library}")
    return library


def _compiler() -> list[str]:
    """Return the words of the command that calls the compiler: those in CXX, such as "ccache g++", or c++ or g++.

    clang++ is called only if CXX says so: a library that it builds may need another OpenMP library than torch's.

    Raises: OSError if the program is not found; ValueError if a quotation in CXX does not end.
    """
    words = shlex.split(os.environ.get("CXX", "")) or ["c++" if shutil.which("c++") else "g++"]
    program = shutil.which(words[0])
    if program is None:
        raise OSError(f"the C++ compiler {words[0]} is not found; install g++ or set CXX")
    return [program, *words[1:]]


def _definitions() -> list[str]:
    """Return compiler options that define macros: the vector instructions that torch uses, the numbers of ``Kind``."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.isidentifier():  # "NO AVX", "Z VECTOR"
        capability = "DEFAULT"
    kinds = [f"-DRMSEXP_KIND_{name}={value}" for name, value in vars(Kind).items() if name.isupper()]
    return [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}", *kinds]


def _build(compiler: list[str], command: list[str], library: Path) -> None:
    """Compile the sources by ``command``, in parallel, and link them. Raises: OSError if a compiler fails."""
    torch_folder, sources = Path(torch.__file__).parent, sorted(SOURCES.glob("*.cpp"))
    headers = torch_folder / "include"
    include = [f"-I{path}" for path in (headers, headers / "torch/csrc/api/include")]
    with TemporaryDirectory(dir=library.parent) as scratch, ThreadPoolExecutor() as pool:
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        compiling = [
            [*command, *include, "-c", str(source), "-o", to] for source, to in zip(sources, objects, strict=True)
        ]
        list(pool.map(_output, compiling))
        linked = Path(scratch, library.name)
        libraries = [f"-L{torch_folder / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
        # link torch's own OpenMP library: a second one in the process would start threads that compete with torch's
        openmp = next(map(str, (torch_folder / "lib").glob("libgomp*")), "-fopenmp")
        _output([*compiler, "-shared", "-o", str(linked), *objects, *libraries, openmp])
        with linked.open("rb") as file:
            os.fsync(file.fileno())
        linked.replace(library)


def _output(command: Sequence[str]) -> str:
    """Run a command and return its standard output. Raises: OSError, with its first error, if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["no message"]
        raise OSError(f"{command[0]} failed: {next((line for line in lines if 'error' in line), lines[-1])}")
    return ended.stdout
