"""The corpus grows as WMT14 does, and the measuring script writes a record for each size."""

import sys
from pathlib import Path

import data_at_size
import parallel_corpus
import pytest

TAKEN = {"seconds": 2.0, "processor": 3.0, "mebibytes": 400.0}


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
    folder, results = tmp_path / "work", tmp_path / "reference" / "machine"
    words = ["--pairs", "40", "80", "--folder", str(folder), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["scripts/data_at_size.py", *words])
    data_at_size.main()
    assert len(commands) == 2 * 2 * 2
    assert list(folder.iterdir()) == []
    assert len(list(results.glob("checks/*/check.json"))) == 2 * 2
