"""The records of checks: their path, command and content."""

import json
import sys
from pathlib import Path

import check_record
import pytest


def test_a_check_writes_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/home/x/scripts/words.py", "--results", "there", "norm=rms", "data.root=/data", "--results=there", "a b"]
    monkeypatch.setattr(sys, "argv", words)
    paths = []
    for number in range(2):
        check = check_record.Check("words", tmp_path)
        with check.measuring():
            sum(range(100_000))
            check.probe()
        paths.append(check.write({"speed": number}))
    assert paths == [tmp_path / f"checks/words{number}/check.json" for number in range(2)]
    first, second = (json.loads(path.read_text()) for path in paths)
    assert (first["results"], second["results"]) == ({"speed": 0}, {"speed": 1})
    assert (first["format"], first["check"]) == (1, "words")
    assert first["command"] == "python scripts/words.py norm=rms 'a b'"
    assert {"git", "code", "started", "device", "contention"} <= set(first["session"])
    assert first["session"]["contention"]["probes"]["number"] == 21


def test_the_same_command_goes_on_after_the_last_part(tmp_path: Path) -> None:
    def parts(*numbers: int) -> check_record.Parts:
        return check_record.Parts("words", tmp_path, [{"number": number} for number in numbers])

    parts(0, 1).add({"speed": 3})
    assert parts(0, 1).left == range(1, 2)
    with pytest.raises(SystemExit, match="another command"):
        parts(5, 1)
    last = parts(0, 1)
    last.add({"speed": 4})
    last.write({"parts": last.done})
    assert not list(tmp_path.rglob("*.jsonl"))
    (path,) = tmp_path.rglob(check_record.FILE)
    assert [part["speed"] for part in json.loads(path.read_text())["results"]["parts"]] == [3, 4]
