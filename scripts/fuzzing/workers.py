"""Give a reader one damaged input after the other, in processes with limits, and judge what it does with each."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing import hostile
from fuzzing.damage import Files, damaged
from rmsexp.system.command_line import LONGEST_MESSAGE, brief

CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES, FILE_BYTES = 5, 60, 2**30, 2**28  # limits of one input
MORE_MEMORY_BYTES = 8 * 2**30  # for inputs that asked for more than MEMORY_BYTES, but may take less
MOST_LINES = 2  # of a message; most messages also have a limit of LONGEST_MESSAGE characters
MEMORY = re.compile(r"MemoryError|not enough memory|can't allocate|Unable to allocate|std::bad_alloc")
FAULTS = ("traceback", "crash", "slow", "big", "silent", "message")  # the verdicts that are findings
VERDICTS = ("refused", "accepted", *FAULTS)
READY = "ready\n"


class Refused(Exception):
    """A command refused its arguments or an input. The text is its message."""


class Broken(Exception):
    """A command ended in a way that is not documented. The text says how."""


@dataclass(frozen=True)
class Reader:
    """A reader of files, or a command, and the inputs that it is given.

    ``prepare(folder)`` writes valid files to ``folder``, the working folder. ``vary(files, rng)`` returns them with
    damage. ``read(folder)`` reads an input. ``raises``: the documented exceptions for inputs that are refused.
    ``right``: for files that carry a digest, a function that returns, from the valid files, the results that ``read``
    may have for damaged ones. ``weight``: how much longer its inputs take than those of most readers.
    """

    name: str
    prepare: Callable[[Path], object]
    read: Callable[[Path], object]
    raises: tuple[type[Exception], ...] = ()
    right: Callable[[Path], Sequence[object]] | None = None
    vary: Callable[[Files, random.Random], Files] = damaged
    weight: int = 1


class Result(NamedTuple):
    """What a reader did with one input: a verdict, what was seen, and the seconds of processor time that it took."""

    number: int
    verdict: str
    detail: str
    seconds: float

    @property
    def kind(self) -> str:
        """Return a text that results with the same cause share: the verdict, the type of error and its place."""
        return f"{self.verdict} {self.detail.split(': ')[0]}"


def results(reader: Reader, seed: int, first: int, count: int, seconds: float, folder: Path) -> Iterator[Result]:
    """Yield the results of ``count`` inputs from number ``first`` on, or of those that are done within ``seconds``.

    Inputs are read in a child process. If one kills it, another child goes on with the next input. ``folder``: for the
    files of all readers. Input ``number`` depends on ``seed``, the reader's name and ``number`` only.
    """
    number, end = first, first + count
    while number < end and seconds > 0:
        start = None  # the making of valid files does not count
        for result in _in_child(reader, seed, range(number, end), seconds, folder):
            start = start or time.monotonic()
            yield result
            number = result.number + 1
        seconds -= time.monotonic() - (start or time.monotonic() - WALL_SECONDS)


def case(reader: Reader, seed: int, number: int, files: Files) -> Files:
    """Return input ``number`` of a reader whose valid files are ``files``. The first inputs are former findings."""
    findings = hostile.FINDINGS.get(reader.name, [])
    if number < len(findings):
        return files | hostile.finding(findings[number], files)
    return reader.vary(dict(files), random.Random(f"{seed}/{reader.name}/{number}"))


def _in_child(reader: Reader, seed: int, numbers: range, seconds: float, folder: Path) -> Iterator[Result]:
    """Yield the results of the inputs that one child process reads, and a last one if an input kills it.

    Raises: RuntimeError if the reader fails with its valid files.
    """
    receiving, sending = os.pipe()

    def work() -> None:
        os.close(receiving)
        with os.fdopen(sending, "w", buffering=1) as pipe:
            try:
                _work(reader, seed, numbers, seconds, folder, pipe.write)
            except Exception:
                pipe.write(json.dumps(traceback.format_exc()) + "\n")

    child = _fork(work)
    os.close(sending)
    number = numbers[0]
    with os.fdopen(receiving) as pipe:
        ready = pipe.readline()
        for line in pipe if ready == READY else ():
            if not line.endswith("\n"):
                break  # the child died while it was writing
            if isinstance(content := json.loads(line), str):
                raise RuntimeError(f"input {number} of {reader.name} cannot be made: {content}")
            result = Result(*content)
            number = result.number + 1
            yield result
    _, status = os.waitpid(child, 0)
    if ready != READY:
        reason = json.loads(ready) if ready else f"status {status}"
        raise RuntimeError(f"{reader.name} fails with its valid files: {reason}")
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if ended_by == signal.SIGPROF:
        yield Result(number, "slow", f"over {CPU_SECONDS} s of processor time", float(CPU_SECONDS))
    elif ended_by == signal.SIGALRM:
        yield Result(number, "slow", f"over {WALL_SECONDS} s, perhaps waiting for something", float(WALL_SECONDS))
    elif status:
        how = f"exit {status >> 8}" if ended_by is None else signal.Signals(ended_by).name
        yield Result(number, "crash", f"the process ended with {how}", 0.0)


def _fork(work: Callable[[], object]) -> int:
    """Do some work in a child process, without its output, and return the child's id. Its exit status is 0 or 1."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        work()
        status = 0
    finally:
        os._exit(status)


def _work(
    reader: Reader, seed: int, numbers: range, seconds: float, folder: Path, send: Callable[[str], object]
) -> None:
    """Read inputs and send a line with the result of each. This is all that a child process does."""
    files = valid_files(reader, folder)
    right = right_results(reader, files, folder)
    send(READY)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    reserved = pages * resource.getpagesize()
    _limit_memory(reserved + MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    environment, deadline = dict(os.environ), time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > deadline:
            return
        place = write(case(reader, seed, number, files), folder / reader.name)
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        start = time.process_time()
        verdict, detail = _judge(reader, place, right)
        taken = time.process_time() - start
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if verdict == "big":
            write(case(reader, seed, number, files), place)
            verdict, detail = _judge_with_more_memory(reader, place, right, reserved)
        send(json.dumps([number, verdict, detail.replace(str(place), "."), round(taken, 4)]) + "\n")


def valid_files(reader: Reader, folder: Path) -> Files:
    """Return the valid files of a reader. They are made once; readers with the same ``prepare`` share them."""
    os.environ["HOME"] = str(folder)
    stored = folder / f"valid-{reader.prepare.__name__}"
    if not stored.exists():
        temporary = write({}, folder / "new")
        os.chdir(temporary)
        reader.prepare(temporary)
        os.chdir(folder)
        temporary.rename(stored)
    paths = sorted(path for path in stored.rglob("*") if path.is_file())
    return {str(path.relative_to(stored)): path.read_bytes() for path in paths}


def right_results(reader: Reader, files: Files, folder: Path) -> Sequence[object]:
    """Return the results that a reader may have for damaged files if they carry a digest, otherwise nothing.

    The valid files are read in any case, so that libraries have reserved what they need before memory is limited.
    """
    place = write(files, folder / reader.name)
    os.chdir(place)
    if reader.right is not None:
        return reader.right(place)
    reader.read(place)
    return ()


def write(files: Files, folder: Path) -> Path:
    """Write files to ``folder``, whose earlier content is removed, and return it. None stands for a folder."""
    folder.mkdir(parents=True, exist_ok=True)  # it stays, because leaving a removed working folder takes milliseconds
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
    return folder


def store(reader: Reader, seed: int, number: int, folder: Path, target: Path) -> None:
    """Write input ``number`` to the folder ``target``."""

    def work() -> None:
        write(case(reader, seed, number, valid_files(reader, folder)), target)

    os.waitpid(_fork(work), 0)


def show(reader: Reader, seed: int, number: int) -> None:
    """Read one input in this process, without limits, and print the result or the traceback."""
    folder = Path(tempfile.mkdtemp(prefix="rmsexp-fuzz-"))
    files = valid_files(reader, folder)
    right = right_results(reader, files, folder)
    place = write(case(reader, seed, number, files), folder / reader.name)
    print(f"input: {place}", flush=True)
    os.chdir(place)
    try:
        result: Any = reader.read(place)
    except Exception:
        traceback.print_exc()
    else:
        print(f"accepted{'' if reader.right is None or result in right else ', with another result'}: {result!r:.500}")


def _judge(reader: Reader, place: Path, right: Sequence[object], memory: bool = True) -> tuple[str, str]:
    """Return the verdict on the input in ``place``, and what was seen. ``memory``: whether to tell errors about it."""
    try:
        result = reader.read(place)
    except reader.raises as error:
        if memory and _took_memory(error):
            return "big", _place(error)
        text = (str(error) if isinstance(error, Refused) else brief(error)).replace(str(place), ".")
        if len(text) > getattr(error, "longest", LONGEST_MESSAGE) or text.count("\n") >= MOST_LINES or not text.strip():
            return (
                "message",
                f"{_origin(error)}: {len(text)} characters, {text.count(chr(10)) + 1} lines: {text[:150]!r}",
            )
        return "refused", ""
    except BaseException as error:
        return ("big" if memory and _took_memory(error) else "traceback"), _place(error)
    if reader.right is not None and result not in right:
        return "silent", "damage was accepted and changed the result"
    return "accepted", ""


def _judge_with_more_memory(reader: Reader, place: Path, right: Sequence[object], reserved: int) -> tuple[str, str]:
    """Judge an input that asked for too much memory again: is it taken, or only reserved or refused?

    ``reserved``: bytes that this process reserved before it read its first input.
    """
    receiving, sending = os.pipe()

    def work() -> None:
        _limit_memory(reserved + MORE_MEMORY_BYTES)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        verdict, detail = _judge(reader, place, right, memory=False)
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if taken > MEMORY_BYTES:
            verdict, detail = "big", f"{taken / 2**30:.1f} GiB: {detail}"
        with os.fdopen(sending, "w") as pipe:
            pipe.write(json.dumps([verdict, detail]))

    child = _fork(work)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    verdict, detail = json.loads(text) if text else ("big", "the process with more memory was killed")
    return verdict, detail


def _limit_memory(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _took_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that was handled before it, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError) or MEMORY.search(str(error)[:10_000]):
            return True
        error = error.__context__
    return False


def _place(error: BaseException) -> str:
    return f"{_origin(error)}: {str(error)[:120]!r}"


def _origin(error: BaseException) -> str:
    """Return an error's type and the innermost line of this project that it passed."""
    here = str(Path(__file__).parents[2])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    where = f" at {Path(frames[-1].filename).relative_to(here)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
