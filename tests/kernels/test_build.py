"""How the fused kernels are built and kept: by compilers that fail, by small scripts in place of one, and by none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rmsexp import kernels
from rmsexp.kernels import build, fakes

ARGUMENTS = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/log"
what=link
for word in "$@"; do
  case "$word" in --version) what=version ;; -c) what=compile ;; esac
  if [ "$last" = -o ]; then to=$word; fi
  last=$word
done
"""
VERSION = 'if [ $what = version ]; then echo "compiler 1.0"; exit 0; fi\n'
WRITE = 'echo "made of $*" > "$to"\n'
SOURCES = sorted(path.name for path in build.SOURCES.glob("*.cpp"))
NOTICE = "notice: no fused kernels, going on with eager operations ({})"


class Compiler:
    """A script that stands where CXX says, and the calls that it was given."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "compiler"
        self._log = folder / "log"

    def does(self, body: str) -> None:
        self.path.write_text(ARGUMENTS + body)
        self.path.chmod(0o755)

    def calls(self, *, version: bool = False) -> list[list[str]]:
        calls = [line.split() for line in self._log.read_text().splitlines()] if self._log.exists() else []
        return [call for call in calls if ("--version" in call) == version]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """One that makes files that are no libraries, with a cache of its own."""
    made = Compiler(tmp_path)
    made.does(VERSION + WRITE)
    monkeypatch.setenv("CXX", str(made.path))
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    return made


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The libraries that would have been loaded; this process may have the real one."""
    paths: list[Path] = []
    monkeypatch.setattr(torch.ops, "load_library", lambda path: paths.append(Path(path)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(fakes, "register", lambda: None)
    return paths


new_process = build.load.__wrapped__  # what `load` does where it was not called before


def kept(tmp_path: Path) -> list[str]:
    """What lies in the cache's folders."""
    return sorted(path.name for path in (tmp_path / "cache").glob("*/*"))


# --- built once


def test_what_is_built_is_kept(
    compiler: Compiler, loaded: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_process()
    *compiled, linked = compiler.calls()
    assert sorted(Path(word).name for call in compiled for word in call if word.endswith(".cpp")) == SOURCES
    assert all("-c" in call for call in compiled)
    assert "-shared" in linked
    (library,) = loaded
    assert kept(tmp_path) == ["lock", "rmsexp.so"]
    assert library.read_text().startswith("made of")
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "building the fused kernels (once; a minute or two)",
        f"the fused kernels are built and kept: {library}",
    ]

    assert new_process()
    assert loaded == [library, library]
    assert len(compiler.calls()) == len(SOURCES) + 1
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("loaded")
def test_the_library_appears_whole(compiler: Compiler, tmp_path: Path) -> None:
    """It is linked in a folder that is gone afterwards, and then moved."""
    compiler.does(VERSION + WRITE + f'echo "$to" >> {tmp_path}/places; ls {tmp_path}/cache/* >> {tmp_path}/listing\n')
    assert new_process()
    places = [Path(place) for place in (tmp_path / "places").read_text().split()]
    assert len(places) == len(SOURCES) + 1
    assert len({place.parent for place in places}) == 1
    assert not places[0].parent.exists()
    assert "rmsexp.so" not in (tmp_path / "listing").read_text().split()


@pytest.mark.parametrize("what", ["a source", "a header", "the compiler", "torch"])
def test_what_the_library_depends_on_builds_another(
    compiler: Compiler, loaded: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    sources = shutil.copytree(build.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(build, "SOURCES", sources)
    assert new_process()
    if what == "the compiler":
        compiler.does(VERSION.replace("1.0", "1.1") + WRITE)
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "99.0")
    else:
        path = next(sources.glob("*.cpp" if what == "a source" else "*.h"))
        path.write_text(path.read_text() + "\n")
    assert new_process()
    assert len(set(loaded)) == 2
    assert len(compiler.calls()) == 2 * (len(SOURCES) + 1)


def test_of_several_at_once_one_builds(
    compiler: Compiler, loaded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    compiler.does(VERSION + "sleep 0.3\n" + WRITE)
    with ThreadPoolExecutor(3) as several:
        assert all(several.map(lambda _: new_process(), range(3)))
    assert len(loaded) == 3
    assert len(set(loaded)) == 1
    assert len(compiler.calls()) == len(SOURCES) + 1
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.usefixtures("compiler")
def test_without_cuda_triton_is_not_needed(loaded: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rmsexp.kernels.triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(kernels, "cuda", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert new_process()
    assert loaded


# --- half-built


@pytest.mark.usefixtures("loaded")
def test_a_link_that_failed_leaves_nothing(compiler: Compiler, tmp_path: Path) -> None:
    compiler.does(VERSION + WRITE + "if [ $what = link ]; then exit 1; fi\n")
    assert not new_process()
    assert kept(tmp_path) == ["lock"]
    compiler.does(VERSION + WRITE)
    assert new_process()
    assert len(compiler.calls()) == 2 * (len(SOURCES) + 1)


LOAD = "from pathlib import Path; from rmsexp.kernels import build; build.CACHE = Path({!r}); build.load()"


def test_a_process_that_was_killed_while_it_linked_leaves_nothing(
    compiler: Compiler, loaded: list[Path], tmp_path: Path
) -> None:
    compiler.does(VERSION + WRITE + "if [ $what = link ]; then kill -9 $PPID; fi\n")
    killed = subprocess.run([sys.executable, "-c", LOAD.format(str(tmp_path / "cache"))], capture_output=True)
    assert killed.returncode == -9
    compiler.does(VERSION + WRITE)
    assert new_process()
    assert len(compiler.calls()) == 2 * (len(SOURCES) + 1)
    assert "rmsexp.so" in kept(tmp_path)
    assert loaded[0].parent.parent == tmp_path / "cache"


# --- not built

FAILS: dict[str, tuple[str, str]] = {  # what a compiler does, and what is said of it
    "an error in a source": (
        VERSION + 'if [ $what = compile ]; then printf "In file\\na.cpp:1: error: no\\n^ here\\n" >&2; exit 1; fi\n',
        "{} failed: a.cpp:1: error: no",
    ),
    "an end without a word": (VERSION + "exit 3\n", "{} failed: no message"),
    "a library that is not found": (
        VERSION + WRITE + 'if [ $what = link ]; then printf "ld: cannot find -ltorch\\n" >&2; exit 1; fi\n',
        "{} failed: ld: cannot find -ltorch",
    ),
    "no version": ('echo "not licensed" >&2; exit 1\n', "{} failed: not licensed"),
}


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("why", FAILS)
def test_a_compiler_that_fails_is_quoted_in_one_line(
    compiler: Compiler, tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    body, message = FAILS[why]
    compiler.does(body)
    assert not new_process()
    *before, last = capsys.readouterr().err.splitlines()
    assert last == NOTICE.format(message.format(compiler.path))
    assert len(before) == (why != "no version")
    assert kept(tmp_path) == ["lock"] * len(before)


def spoil_the_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the folder's place")


def spoil_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "compiler").write_bytes(b"\0 no program")


def spoil_nothing(tmp_path: Path) -> None:
    """What the script makes is no library in any case."""


@pytest.mark.parametrize("spoil", [spoil_the_cache, spoil_the_compiler, spoil_nothing])
def test_whatever_the_system_refuses_is_one_line(
    compiler: Compiler, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    compiler.does(VERSION + WRITE)
    spoil(tmp_path)
    assert not new_process()
    said = [line for line in capsys.readouterr().err.splitlines() if "notice" in line]
    assert len(said) == 1
    assert said[0].startswith(NOTICE.format("")[:-1])


WITHOUT = """
import torch
from rmsexp import kernels, norms
from rmsexp.models.recurrent import GRU, LSTM
from helpers.sites import draw, fill

assert [kernels.load(), kernels.load()] == [False, False]
for build in (
    lambda impl: norms.RMSNorm(3, p=0.5, impl=impl),
    lambda impl: norms.LayerNorm(3, impl=impl),
    lambda impl: GRU(norms.RMS(name="rms", impl=impl), "a", 3, 4),
    lambda impl: LSTM(norms.LN(name="ln", impl=impl), "a", 3, 4),
):
    eager, fused = (fill(build(impl)) for impl in ("eager", "fused"))
    x = draw(2, 5, 3)
    assert torch.equal(fused(x), eager(x))
print("done")
"""


def test_without_a_compiler_fused_is_eager_and_says_so_once(tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    environment = {key: value for key, value in os.environ.items() if key != "CXX"} | empty
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=environment, cwd=here, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr == NOTICE.format("no C++ compiler found; install g++ or set CXX") + "\n"
