"""Lines of parallel files are read unchanged, one pair after the other."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rmsexp.data import DataError
from rmsexp.data.pairs import in_chunks, read_pairs


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def refusal(source: Path, target: Path) -> str:
    with pytest.raises(DataError) as error:
        list(read_pairs(source, target))
    message = str(error.value)
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_only_line_feeds_end_lines(ending: str, tmp_path: Path) -> None:
    lines = ["one\u2028\u2029", "", " \x85\x0b\x0c\x1c\xa0", "a\rb", "ü 💬", "last"]
    source = write(tmp_path / f"a.en{ending}", "\n".join(lines))
    target = write(tmp_path / f"a.de{ending}", "\ufeff" + "\r\n".join(lines) + "\r\n")
    assert list(read_pairs(source, target)) == list(zip(lines, lines, strict=True))


def test_missing_file_is_named(tmp_path: Path) -> None:
    existing = write(tmp_path / "a.en", "one\n")
    for absent in (tmp_path / "a.de", tmp_path / "a.de.gz"):
        assert f"{absent} cannot be read (No such file" in refusal(existing, absent)


@pytest.mark.parametrize("damage", ["truncated", "checksum", "body", "not gzip"])
def test_damaged_gzip_is_named(damage: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.en.gz", "".join(f"line {number}\n" for number in range(500)))
    content = path.read_bytes()
    broken = {
        "truncated": content[:-20],
        "checksum": content[:-8] + bytes(8),
        "body": content[:40] + b"\xff" * 40 + content[80:],
        "not gzip": b"line 1\n",
    }
    path.write_bytes(broken[damage])
    assert f"{path} cannot be read (" in refusal(path, write(tmp_path / "a.de", "line\n" * 500))


@pytest.mark.parametrize("bad", [b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc3"])
def test_bytes_that_are_not_utf8_are_named_by_file_and_line(bad: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "a.de.gz", b"one\ntwo\n" + bad + b"\nfour\n")
    message = refusal(write(tmp_path / "a.en", "1\n2\n3\n4\n"), path)
    assert f"{path}, line 3: not UTF-8" in message


def test_different_lengths_are_named(tmp_path: Path) -> None:
    long, short = write(tmp_path / "a", "x\n" * 1001), write(tmp_path / "b", "x\n" * 1000)
    for pair in ((long, short), (short, long)):
        assert f"{short} has 1,000 lines and {long} has more" in refusal(*pair)


def test_files_without_lines_are_refused(tmp_path: Path) -> None:
    assert "are empty" in refusal(write(tmp_path / "a.en", ""), write(tmp_path / "a.de", ""))


def test_chunks_have_all_pairs_in_order() -> None:
    pairs = [(str(number), str(-number)) for number in range(7)]
    chunks = list(in_chunks(iter(pairs), 3))
    assert [len(sources) for sources, _ in chunks] == [3, 3, 1]
    assert [pair for sides in chunks for pair in zip(*sides, strict=True)] == pairs
