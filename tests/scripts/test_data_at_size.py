"""The corpus grows as WMT14 does, and the measuring script writes a record for each size."""

from __future__ import annotations

import sys
from pathlib import Path

import data_at_size
import numpy as np
import parallel_corpus
import pytest

TAKEN = {"seconds": 2.0, "processor": 3.0, "mebibytes": 400.0}


def test_the_vocabulary_and_the_lengths_are_those_of_wmt14() -> None:
    types = [
        int(language.types(np.array([words]))[0])
        for language, words in ((parallel_corpus.ENGLISH, 116e6), (parallel_corpus.GERMAN, 110e6))
    ]
    assert 1.4e6 < sum(types) < 1.6e6
    sides = next(parallel_corpus.chunks(20_000, 0))
    means = [np.mean([len(line.split()) for line in lines]) for lines in sides]
    assert np.allclose(means, [116 / 4.5, 110 / 4.5], rtol=0.02)
    assert max(len(line.split()) for lines in sides for line in lines) == parallel_corpus.LONGEST


def test_each_size_is_measured_and_its_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def watched(what: str, command: list[str]) -> dict[str, float]:  # noqa: ARG001
        commands.append(command)
        root = next(Path(word.removeprefix("data.root=")) for word in command if word.startswith("data.root="))
        root.mkdir(parents=True, exist_ok=True)
        return TAKEN

    for language in (parallel_corpus.ENGLISH, parallel_corpus.GERMAN):
        monkeypatch.setitem(vars(language), "scale", language.scale / 10)
    monkeypatch.setattr(data_at_size, "watched", watched)
    for name in ("HELD_OUT", "CHUNK"):
        monkeypatch.setattr(parallel_corpus, name, 5)
    monkeypatch.setattr(data_at_size, "HELD_OUT_IMAGES", 3)
    folder, results = tmp_path / "work", tmp_path / "reference" / "machine"
    words = ["--pairs", "40", "80", "--images", "6", "--folder", str(folder), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["scripts/data_at_size.py", *words])
    data_at_size.main()
    assert len(commands) == 1 + 2 * 2 * 2
    assert list(folder.iterdir()) == []
    assert len(list(results.glob("checks/*/check.json"))) == 1 + 2 * 2


def test_memory_and_time_of_a_process_and_its_children_are_summed() -> None:
    child = "import time; x = b'1' * (64 << 20)\nwhile time.process_time() < 0.3: pass\ntime.sleep(0.5)"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    found = data_at_size.watched("a test", command)
    assert found["mebibytes"] > 64
    assert found["seconds"] > found["processor"] > 0.2
