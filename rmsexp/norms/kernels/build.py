"""Compile the C++ operators when they are first needed, and cache the library for later processes.

The cache has a folder for each combination of sources, compiler, flags, processor and torch version. A library is code
that this process runs, so it is loaded only if its folder belongs to this user alone, and if it has the digest that was
stored when it was built; otherwise it is built again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Event, Lock

import torch

from rmsexp.norms.kernels.forms import Kind
from rmsexp.system import atomic, cores
from rmsexp.system.command_line import brief, inform
from rmsexp.system.file_lock import locked
from rmsexp.system.private import belongs_to_user, cache_folder

CACHE = Path("~/.cache/rmsexp/kernels")
SOURCES = Path(__file__).parent / "cpp"
# No -ffast-math: it would make NaN undefined and, in some compilers, flush denormals in the whole process.
# No contraction of products and sums to one operation, which compilers choose differently for loops with the same
# formula: kernels that share a formula then give equal results. fmadd() is written where it is meant.
FLAGS = "-std=c++20 -O3 -march=native -fopenmp -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=off -w"


_loading = Lock()  # held by the thread that loads, because operators can be registered only once


class BuildError(Exception):
    """The operators cannot be built on this machine. The message is one line that gives the cause, if it is known."""


def load() -> bool:
    """Return whether the operators ``torch.ops.rmsexp`` are available.

    The first call loads the library of operators; if the library is not cached, the call builds it before. If this
    fails, the first call prints a notice to standard error, and all calls return False. Callers then use eager
    operations.
    """
    with _loading:
        return _load()


@lru_cache(maxsize=1)
def _load() -> bool:
    try:
        torch.ops.load_library(_library())
    except (BuildError, OSError) as error:  # an intact library that cannot be loaded does not fit to this torch
        inform(brief(f"notice: the fused kernels are not available, eager operations are used instead ({error})"))
        return False
    from rmsexp.norms.kernels import fakes

    fakes.register()
    if torch.cuda.is_available():
        try:
            from rmsexp.norms.kernels import triton
        except ImportError as error:  # torch can be installed without triton
            inform(brief(f"notice: the fused kernels for GPUs are not available ({error}); use norm.impl=eager there"))
            return True
        triton.register("CUDA")
    return True


def _library() -> Path:
    """Return the path of an intact library, building it if there is none. Raises: BuildError or OSError if it fails."""
    compiler = _compiler()
    command = [*compiler, *FLAGS.split(), *_definitions()]
    sources = sorted(SOURCES.glob("*.cpp"))
    content = [path.read_bytes() for path in (*sources, *sorted(SOURCES.glob("*.h")))]
    settings = [*command, torch.__version__, _output([*compiler, "--version"]), _processor()]
    key = hashlib.sha256(b"\0".join([*content, *(text.encode() for text in settings)])).hexdigest()[:16]
    folder = cache_folder(CACHE, key)
    library = folder / "rmsexp.so"
    if _is_intact(library):
        return library
    # one process builds, others wait for it
    with locked(folder / "lock", lambda: inform("waiting for another process that builds the fused kernels")):
        if not _is_intact(library):
            inform("building the fused kernels (once; a minute or two)")
            _compile(compiler, command, sources, library)
            inform(f"built the fused kernels: {library}")
    return library


def _compiler() -> list[str]:
    """Return the words of the command that calls the compiler: those in CXX, such as "ccache g++", or c++ or g++.

    clang++ is called only if CXX says so: a library that it builds may need another OpenMP library than torch's.

    Raises: BuildError if the program is not found.
    """
    try:
        words = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"CXX is not a command: {error}") from None
    program = shutil.which(words[0]) if words else shutil.which("c++") or shutil.which("g++")
    if program is None:
        cause = f"CXX names {words[0]}, which is not found" if words else "no C++ compiler found"
        raise BuildError(f"{cause}; install g++ or set CXX")
    return [program, *words[1:]]


def _is_intact(library: Path) -> bool:
    """Return whether a library has the digest that was stored when it was built, and nobody else can write to it."""
    try:
        return belongs_to_user(library) and _digest(library) == _digest_path(library).read_text()
    except (OSError, ValueError):
        return False


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _digest_path(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _compile(compiler: list[str], command: list[str], sources: list[Path], library: Path) -> None:
    """Compile the sources by ``command``, link them, and store the library's digest. Raises: BuildError.

    Most of the time of a compilation goes into torch's headers, so each compiler that runs compiles several sources as
    one. The library is linked in another folder and moved to its path when it is complete and on the disk.
    """
    headers = Path(torch.__file__).parent / "include"
    include = [f"-I{path}" for path in (SOURCES, headers, headers / "torch/csrc/api/include")]
    n_parts = min(cores.threads(), len(sources))
    scratch = library.parent / "build"
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    try:
        parts = [scratch / f"part{number}.cpp" for number in range(n_parts)]
        for number, part in enumerate(parts):
            part.write_text("".join(f'#include "{source.name}"\n' for source in sources[number::n_parts]))
        objects = [str(part.with_suffix(".o")) for part in parts]
        _run([[*command, *include, "-c", str(part), "-o", name] for part, name in zip(parts, objects, strict=True)])
        linked = scratch / library.name
        torch_library = Path(torch.__file__).parent / "lib"
        libraries = [f"-L{torch_library}", "-ltorch", "-ltorch_cpu", "-lc10"]
        # link torch's own OpenMP library: a second one in the process would start threads that compete with torch's
        openmp = next((str(path) for path in torch_library.glob("libgomp*")), "-fopenmp")
        _run([[*compiler, "-shared", "-o", str(linked), *objects, *libraries, openmp]])
        linked.chmod(0o700)
        with linked.open("rb") as file:
            os.fsync(file.fileno())
        digest = _digest(linked)
        linked.replace(library)
        atomic.write_atomic(_digest_path(library), digest)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(commands: Sequence[Sequence[str]]) -> None:
    """Run commands, as many at a time as this process may use threads.

    If a command fails, or a signal stops this process, end those that are running with all processes that they started.

    Raises: BuildError if a command fails.
    """
    running: list[subprocess.Popen[str]] = []
    stopping = Event()

    def note(process: subprocess.Popen[str]) -> None:
        running.append(process)
        if stopping.is_set():  # its thread was about to start it when those that ran were ended
            _end_group(process)

    with ThreadPoolExecutor(cores.threads()) as pool:
        try:
            for job in [pool.submit(_output, command, note) for command in commands]:
                job.result()
        except BaseException:  # a signal may also come while commands are submitted
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                _end_group(process)
            raise


def _end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):  # it has ended, and its thread has not yet noted that
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _definitions() -> list[str]:
    """Return compiler options that define macros: the vector instructions that torch uses, the numbers of ``Kind``."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.isidentifier():  # "NO AVX", "Z VECTOR"
        capability = "DEFAULT"
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


def _output(command: Sequence[str], note: Callable[[subprocess.Popen[str]], None] | None = None) -> str:
    """Run a command, as the leader of a process group, and return its standard output.

    ``note``: is called with the process once it has started. Raises: BuildError if the exit status is not 0.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace", process_group=0) as process:
        if note is not None:
            note(process)
        output, messages = process.communicate()
    if process.returncode:
        raise BuildError(f"{command[0]} failed: {_first_error(messages)}")
    return output


def _first_error(text: str) -> str:
    """Return the first line of a command's messages that contains "error", or else the last line."""
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[-1])
