"""Results that are computed in parts: the same in several processes, and after a kill at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.parallel_text import corpus, phrases

from rmsexp.data import DataError, moses, parts, translation
from rmsexp.data.parts import stored
from rmsexp.data.translation import TextOptions, prepare

OPTIONS = {
    "sentencepiece": TextOptions("sentencepiece", 120, 0, max_length=17, overlong="drop"),
    "moses_bpe": TextOptions("moses_bpe", 90, 9, max_length=17, overlong="cut"),
}


def write(item: str, folder: Path) -> None:
    if item == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "item").write_text(f"{item} {os.getpid()}")


def made(folder: Path, items: str, processes: int) -> list[list[str]]:
    """Return the items in the parts and the ids of the processes that made them."""
    found = stored(folder, write, items.split(), processes, lambda _: None)
    return [(path / "item").read_text().split() for path in found]


def test_parts_are_in_order_and_made_once(tmp_path: Path) -> None:
    first = made(tmp_path, "a b c d e", 2)
    assert [item for item, _ in first] == [*"abcde"]
    assert str(os.getpid()) not in {pid for _, pid in first}
    assert made(tmp_path, "a b c d e f", 1) == [*first, ["f", str(os.getpid())]]


def test_a_killed_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"was killed; .* too little memory\.\nStart the command again: it goes on"):
        made(tmp_path, "a killed b", 2)


def prepared(kind: str, cache: Path, report: Callable[[str], None], chunk: int = 80) -> list[bytes]:
    """Return the encoded training text of the phrases, computed in parts of ``chunk`` pairs."""
    moses.CHUNK = translation.CHUNK = chunk
    text = corpus({"train": phrases(), "valid": phrases(), "test": phrases()})
    train = prepare(text, OPTIONS[kind], cache, report).train
    return [array[:].tobytes() for side in (train.source, train.target) for array in (side.tokens, side.offsets)]


def kill_at(kind: str, cache: Path, beginning: str) -> None:
    """Prepare the phrases in another process, which kills itself when it reports a line with this beginning."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_parts
from pathlib import Path
from rmsexp.data import parts
parts.MOST = {1 if beginning.startswith(("learning", "encoded 160")) else 2}
def report(line):
    if line.startswith({beginning!r}):
        os.kill(os.getpid(), signal.SIGKILL)
test_parts.prepared({kind!r}, Path({str(cache)!r}), report)
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, timeout=120)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "beginning", "again"),
    [
        ("sentencepiece", "encoded 80 of 225", ["encoding 225 training pairs (once)", "encoded 80 of 225 pairs"]),
        pytest.param(
            *("moses_bpe", "tokenised 80 of 225", ["learning 90 subwords from 225 pairs (once)", "tokenised 80 of"]),
            marks=pytest.mark.minutes,
        ),
        ("moses_bpe", "learning 90 merges", ["learning 90 subwords from 225 pairs (once)", "tokenised 80 of"]),
        ("moses_bpe", "encoded 160 of 225", ["encoding 225 training pairs (once)", "encoded 80 of 225 pairs"]),
    ],
)
def test_a_killed_preparation_goes_on_after_its_parts(
    kind: str, beginning: str, again: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (moses, translation):
        monkeypatch.setattr(module, "CHUNK", module.CHUNK)  # restored at the end
    expected = prepared(kind, tmp_path / "whole", lambda _: None, 1000)
    cache = tmp_path / "killed"
    kill_at(kind, cache, beginning)
    kept = {path: path.stat().st_mtime_ns for path in cache.glob("*/.*.parts/**/digest")}
    assert kept
    monkeypatch.setattr(parts, "MOST", 1)
    lines, seen = list[str](), dict[Path, int]()

    def report(line: str) -> None:
        lines.append(line)
        seen.update({path: path.stat().st_mtime_ns for path in kept if path.exists()})

    assert prepared(kind, cache, report) == expected
    assert [line.startswith(start) for line, start in zip(lines, again, strict=False)] == [True, True]
    assert seen == kept


@pytest.mark.parametrize("options", [{"vocabulary": 9999}, {"max_length": 1}], ids=str)
def test_parts_of_what_fails_again_are_removed(options: dict[str, int], tmp_path: Path) -> None:
    text = corpus({"train": phrases(), "valid": phrases(), "test": phrases()})
    with pytest.raises((ValueError, DataError)):
        prepare(text, replace(OPTIONS["moses_bpe"], overlong="drop", **options), tmp_path, lambda _: None)
    assert list(tmp_path.glob("*/.*.parts")) == []


def test_parts_are_removed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (moses, translation):
        monkeypatch.setattr(module, "CHUNK", module.CHUNK)
    monkeypatch.setattr(parts, "MOST", 1)
    reports: list[str] = []
    first = prepared("moses_bpe", tmp_path, reports.append)
    assert list(tmp_path.glob("*/.*.parts")) == []
    reports.clear()
    assert prepared("moses_bpe", tmp_path, reports.append) == first
    assert len(reports) == 1  # the summary: all is read from the cache
