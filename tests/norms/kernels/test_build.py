"""Building and caching the fused kernels, mostly with a script in place of the compiler."""

import os
import shutil
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.sites import draw, fill

from rmsexp import norms
from rmsexp.models.recurrent import GRU
from rmsexp.norms import kernels
from rmsexp.norms.kernels import build
from rmsexp.norms.kernels.norms import Kind

pytestmark = pytest.mark.slow

ARGUMENTS = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/log"
what=link
for word in "$@"; do
  case "$word" in -dM) what=version ;; -c) what=compile ;; esac
  if [ "$last" = -o ]; then to=$word; fi
  last=$word
done
"""
VERSION = 'if [ $what = version ]; then echo "compiler 1.0"; exit 0; fi\n'
WRITE = 'echo "output of $*" > "$to"\n'
SOURCES = sorted(path.name for path in build.SOURCES.glob("*.cpp"))


class Compiler:
    """A script that stands in for the compiler and logs the command lines with which it is called."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "compiler"
        self._log = folder / "log"

    def set_body(self, body: str) -> None:
        self.path.write_text(ARGUMENTS + body)
        self.path.chmod(0o755)

    def calls(self, *, version: bool = False) -> list[list[str]]:
        calls = [line.split() for line in self._log.read_text().splitlines()] if self._log.exists() else []
        return [call for call in calls if ("-dM" in call) == version]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Use an empty cache and, as the compiler, a script that writes text files in place of objects and libraries."""
    script = Compiler(tmp_path)
    script.set_body(VERSION + WRITE)
    monkeypatch.setenv("CXX", str(script.path))
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return script


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let ``load`` only record the paths of the libraries that it would load; return the list of these paths."""
    paths: list[Path] = []
    monkeypatch.setattr(torch.ops, "load_library", lambda path: paths.append(Path(path)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(build, "register_fakes", lambda: None)
    return paths


load_uncached = build._load.__wrapped__  # `load` without its cache: as called for the first time in a process


def cached_files(tmp_path: Path) -> list[str]:
    """Return the names of the files in the cache's folders."""
    return sorted(path.name for path in (tmp_path / "cache").glob("*/*"))


def test_the_library_is_built_once_and_cached(
    compiler: Compiler, loaded: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_uncached()
    *compiled, linked = compiler.calls()
    assert sorted(Path(call[call.index("-c") + 1]).name for call in compiled) == SOURCES
    assert "-shared" in linked
    (library,) = loaded
    assert cached_files(tmp_path) == ["lock", "rmsexp.so"]
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    assert library.read_text().startswith("output of")
    assert len(capsys.readouterr().err.splitlines()) == 2

    assert load_uncached()
    assert loaded == [library, library]
    assert len(compiler.calls()) == len(SOURCES) + 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("change", ["a source", "a header", "the compiler", "torch", "the number of a kind"])
def test_a_change_of_sources_compiler_torch_or_kinds_builds_another_library(
    compiler: Compiler, loaded: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    sources = shutil.copytree(build.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(build, "SOURCES", sources)
    assert load_uncached()
    if change == "the compiler":
        compiler.set_body(VERSION.replace("1.0", "1.1") + WRITE)
    elif change == "torch":
        monkeypatch.setattr(torch, "__version__", "99.0")
    elif change == "the number of a kind":
        monkeypatch.setattr(Kind, "EUCLID", 4)
    else:
        path = next(sources.glob("*.cpp" if change == "a source" else "*.h"))
        path.write_text(path.read_text() + "\n")
    assert load_uncached()
    assert len(set(loaded)) == 2
    assert len(compiler.calls()) == 2 * (len(SOURCES) + 1)


def test_one_of_several_concurrent_loads_builds(compiler: Compiler, loaded: list[Path]) -> None:
    compiler.set_body(VERSION + "sleep 0.05\n" + WRITE)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lambda _: load_uncached(), range(3)))
    assert len(loaded) == 3
    assert len(set(loaded)) == 1
    assert len(compiler.calls()) == len(SOURCES) + 1


def test_cxx_may_be_a_command_of_several_words(
    compiler: Compiler, loaded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CXX may be "ccache g++", or a compiler with options; the words after the first come first in every call."""
    monkeypatch.setenv("CXX", f"'{compiler.path}' g++ -m64")
    assert load_uncached()
    assert loaded
    for version in (True, False):
        assert all(call[:2] == ["g++", "-m64"] for call in compiler.calls(version=version))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("change", ["let others write", "give away"])
def test_a_folder_that_others_can_change_is_not_used(
    loaded: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    if change == "give away" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    spoil = {"let others write": lambda folder: folder.chmod(0o777), "give away": lambda f: os.chown(f, 12345, -1)}
    assert load_uncached()
    spoil[change](loaded[0].parent)
    assert load_uncached()
    second = loaded[1].parent
    assert second.parent == tmp_path / "temporary"
    spoil[change](second)
    capsys.readouterr()
    assert not load_uncached()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("loaded")
def test_a_library_is_linked_elsewhere_and_a_failed_link_leaves_none(compiler: Compiler, tmp_path: Path) -> None:
    listed = f"ls {tmp_path}/cache/* >> {tmp_path}/listed\n"
    compiler.set_body(VERSION + WRITE + listed + "if [ $what = link ]; then exit 1; fi\n")
    assert not load_uncached()
    assert cached_files(tmp_path) == ["lock"]
    assert "rmsexp.so" not in (tmp_path / "listed").read_text().split()
    compiler.set_body(VERSION + WRITE)
    assert load_uncached()
    assert len(compiler.calls()) == 2 * (len(SOURCES) + 1)


@pytest.mark.parametrize("damage", ["files in the place of both caches", "the compiler", "the library"])
def test_errors_of_the_system_are_one_line(
    compiler: Compiler, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    compiler.set_body(VERSION + WRITE)  # which writes a text, which cannot be loaded as a library
    if damage == "the compiler":
        compiler.path.write_bytes(b"\0 no program")
    if "both caches" in damage:
        (tmp_path / "temporary").rmdir()
        for name in ("cache", "temporary"):
            (tmp_path / name).write_text("a file in the folder's place")
    assert not load_uncached()
    lines = capsys.readouterr().err.splitlines()
    assert sum("notice" in line for line in lines) == 1
    assert sum("building" in line for line in lines) <= 1  # a library that this torch cannot load is not built again


def test_without_a_compiler_fused_is_eager_with_one_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "_load", cache(load_uncached))
    assert [kernels.load(), kernels.load()] == [False, False]
    assert capsys.readouterr().err.count("\n") == 1
    norm = norms.RMS(name="rms")
    for make in (lambda impl: norms.LayerNorm(3, impl=impl), lambda impl: GRU(replace(norm, impl=impl), "a", 3, 4)):
        eager, fused = (fill(make(impl)) for impl in ("eager", "fused"))
        assert not fused.fused
        x = draw(2, 5, 3)
        assert torch.equal(fused(x), eager(x))
