"""Systems other than Linux: macOS lacks /proc and some functions, so runs do without them; Windows is refused."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.reading_and_retrieval import tiny
from helpers.tasks import Main

from rmsexp import compare
from rmsexp.system import cores, machine


@pytest.fixture
def no_linux(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away /proc and /sys, and the functions that only Linux and glibc have."""

    def without(name: str) -> None:
        original = getattr(Path, name)

        def call(path: Path, *words: Any, **options: Any) -> Any:
            if path.parts[:2] in (("/", "proc"), ("/", "sys")):
                if name == "glob":
                    return iter(())
                raise FileNotFoundError(path)
            return original(path, *words, **options)

        monkeypatch.setattr(Path, name, call)

    for name in ("read_text", "open", "glob"):
        without(name)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    for cached in (machine._cpuinfo, machine.processor, machine.caches):
        cached.cache_clear()
    yield
    for cached in (machine._cpuinfo, machine.processor, machine.caches):
        cached.cache_clear()


@pytest.mark.usefixtures("no_linux", "small_synthetic_data")
def test_a_run_does_without_what_only_linux_has(main: Main, tmp_path: Path) -> None:
    assert cores.threads() >= 1
    done = main(*tiny("order_embedding"), "threads=null")
    assert done.status == 0
    (run,) = compare.load(tmp_path / "results").runs.to_dict("records")
    assert (run["status"], run["time_state"]) == ("finished", "disturbed")
    assert machine.processor()
    assert (machine.caches(), machine.largest_cache()) == (None, None)


def test_windows_is_refused_in_one_line() -> None:
    program = "import sys; sys.platform = 'win32'; import rmsexp"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "use the Windows Subsystem for Linux (WSL)" in done.stderr
