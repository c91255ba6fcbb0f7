"""The records of checks: their path, command and content."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import check_record
import pytest

from rmsexp.train import provenance


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


def test_a_part_of_other_code_is_not_kept(tmp_path: Path) -> None:
    parts = check_record.Parts("words", tmp_path, [{"number": number} for number in range(2)])
    same = {"dirty": False, "code": provenance.code(), "machine": provenance.machine_id()}
    parts.add(same)
    with pytest.raises(
        SystemExit, match=r"the code changed during the check, so .*words\.jsonl has 1 before it: restore"
    ):
        parts.add(same | {"code": "newer"})
    with (tmp_path / "checks/words.jsonl").open("a") as file:
        file.write('{"number": 1, "da')  # the disk was full
    parts = check_record.Parts("words", tmp_path, [{"number": number} for number in range(2)])
    assert parts.left == range(1, 2)
    parts.add(same)
    assert not check_record.Parts("words", tmp_path, [{"number": number} for number in range(2)]).left


@pytest.mark.parametrize("dirty", [[False, False, False], [True, False, False], [False, True, False]])
def test_a_check_of_parts_is_from_a_changed_tree_if_one_of_them_is(
    dirty: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "git", lambda: {"commit": "abc", "dirty": False})
    planned = [{"number": number} for number in range(3)]
    for state in dirty:  # each in a process of its own, which goes on after the parts before
        parts = check_record.Parts("words", tmp_path, planned)
        parts.add({"dirty": state, "code": provenance.code(), "machine": provenance.machine_id()})
    parts.write({"parts": parts.done})
    assert not list(tmp_path.rglob("*.jsonl"))
    (record,) = tmp_path.rglob(check_record.FILE)
    assert json.loads(record.read_text())["session"]["git"] == {"commit": "abc", "dirty": any(dirty)}
