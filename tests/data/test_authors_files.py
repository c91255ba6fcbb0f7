"""The authors' pickles: plain data is read, references to code are refused; top4 is encoded as it is."""

import os
import pickle
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmsexp.data import DataError
from rmsexp.data.authors_files import KIND, top4, unpickled
from rmsexp.data.cloze import Examples
from rmsexp.data.files import checked

PYTHON2_FLOAT64 = (  # what Python 2 writes for numpy.float64(0.5)
    b"\x80\x02cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\nq\x01U\x02f8q\x02K\x00K\x01\x87q\x03Rq\x04"
    b"(K\x03U\x01<q\x05NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x06bU\x08" + struct.pack("<d", 0.5) + b"\x86Rq\x07."
)


def unpickle(folder: Path, content: bytes) -> Any:
    (folder / "a.pkl").write_bytes(content)
    with checked(folder / "a.pkl", KIND) as read:
        return unpickled(read)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"(lp0\n(lp1\nI4\naI17\naa(lp2\nI5\naa.", [[4, 17], [5]], id="protocol 0"),
        pytest.param(b"(dp0\nS'@entity1'\np1\nI4\nsS'the'\np2\nL5L\ns.", {"@entity1": 4, "the": 5}, id="long"),
        pytest.param(PYTHON2_FLOAT64, 0.5, id="number of numpy"),
        pytest.param(b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntR.", {}, id="defaultdict"),
    ],
)
def test_pickles_of_python_2(content: bytes, expected: Any, tmp_path: Path) -> None:
    assert unpickle(tmp_path, content) == expected


@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"], ids=["new module", "old module"])
@pytest.mark.parametrize("protocol", range(4))
def test_arrays_numbers_and_bytes(protocol: int, module: bytes, tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = pickle.dumps({"a": [array, np.int64(7), b"\xff", None, True]}, protocol)
    values = unpickle(tmp_path, re.sub(rb"numpy\._?core", module, content))["a"]
    assert np.array_equal(np.asarray(values[0]), array)
    assert np.asarray(values[0]).dtype == array.dtype
    assert values[1:] == [7, b"\xff", None, True]


@pytest.mark.parametrize("code", [b"O8", b"V8", b"S8", b"M8"])
def test_bytes_are_taken_for_nothing_but_numbers(code: bytes, tmp_path: Path) -> None:
    """An array of 8 bytes whose type is said to have no pointers; numpy would read a pointer from them."""
    content = pickle.dumps(np.array([7]), 2).replace(b"X\x02\x00\x00\x00i8", b"X\x02\x00\x00\x00" + code)
    assert code in content
    values = unpickle(tmp_path, content)
    with pytest.raises(pickle.UnpicklingError, match="which are no numbers"):
        np.asarray(values)
    with pytest.raises(DataError, match="which are no numbers"):
        unpickle(tmp_path, PYTHON2_FLOAT64.replace(b"U\x02f8", b"U\x02" + code))


class Calls:
    """An object whose pickle calls ``function(*arguments)`` when an unrestricted reader loads it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_refused_by_name_and_not_run(protocol: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for function in (os.mkdir, os.system, eval, getattr, np.load):
        with pytest.raises(DataError, match=rf"refers to [\w.]+\.{function.__name__}, which is not allowed"):
            unpickle(tmp_path, pickle.dumps([1, Calls(function, str(folder))], protocol))
    for content in (b"(S'true'\nios\nsystem\n.", b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.", b"Pname\n."):
        with pytest.raises(DataError):
            unpickle(tmp_path, content)
    assert not folder.exists()


WORDS = {"NIL": 0, "EOS": 1, "UNK": 2, "the": 4, "@entity0": 5, "@entity3": 3}
PARTS: dict[str, Any] = {
    "dict.pkl": WORDS,
    "train4_pass.pkl": [[4, 5, 6], [3, 2]],
    "train4_qs.pkl": [[4], [4, 0, 1]],
    "train4_ans.pkl": [[5], [4]],
    "valid4_pass.pkl": [[3, 4]],
    "valid4_qs.pkl": [[2]],
    "valid4_ans.pkl": [[3]],
}


def pickled(root: Path, **changed: Any) -> Path:
    """Write the files of top4 as pickles of protocol 2, which Python 2 writes, and return ``root``.

    ``valid4_ans=...`` replaces the content of valid4_ans.pkl; bytes are written without pickling them.
    """
    (root / "top4").mkdir(exist_ok=True)
    for name, content in (PARTS | {f"{name}.pkl": content for name, content in changed.items()}).items():
        data = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
        (root / "top4" / name).write_bytes(data)
    return root


def rows(examples: Examples) -> Mapping[str, list[Any]]:
    parts = {"pass": examples.passages, "qs": examples.questions}
    return {name: [part[i].tolist() for i in range(len(part))] for name, part in parts.items()} | {
        "ans": examples.answers.tolist()
    }


def test_pickles_are_read_unchanged(tmp_path: Path) -> None:
    reports: list[str] = []
    source = top4(pickled(tmp_path))
    result = source.load(reports.append)
    assert (source.name, source.builtin, len(source.digest)) == ("CNN top4", False, 64)
    assert rows(result.splits["train"]) == {"pass": [[4, 5, 6], [3, 2]], "qs": [[4], [4, 0, 1]], "ans": [5, 4]}
    assert rows(result.splits["valid"]) == {"pass": [[3, 4]], "qs": [[2]], "ans": [3]}
    assert result.words == ["NIL", "EOS", "UNK", "@entity3", "the", "@entity0", "<unused>"]
    assert result.entities.tolist() == [3, 5]
    assert reports == ["CNN top4: 2 train, 1 valid examples; 7 words, 2 of them entities"]
    again = top4(tmp_path).load(reports.append)
    assert rows(again.splits["train"]) == rows(result.splits["train"])


def test_common_end_of_zero_is_removed(tmp_path: Path) -> None:
    changed = {"train4_pass": [[4, 0], [5, 0, 0]], "train4_qs": [[4, 0], [4]]}
    train = rows(top4(pickled(tmp_path, **changed)).load(lambda _: None).splits["train"])
    assert train == {"pass": [[4], [5, 0]], "qs": [[4, 0], [4]], "ans": [5, 4]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dict", [WORDS]),
        ("dict", WORDS | {"more": 9}),
        ("dict", WORDS | {"EOS": 2}),
        ("dict", WORDS | {"UNK": 6, "@entity0": 2}),
        ("valid4_pass", {}),
        *(("valid4_pass", rows) for rows in ([], [[]], [[0]], [[7]], [[-1]], [[1.5]], [[[1]]], [["the"]], [[3], [4]])),
        ("valid4_pass", [np.array([3, None])]),
        ("valid4_ans", [[3, 4]]),
        ("valid4_qs", b""),
    ],
)
def test_damaged_pickles_of_top4_are_refused(tmp_path: Path, name: str, content: Any) -> None:
    with pytest.raises(DataError) as error:
        top4(pickled(tmp_path, **{name: content})).load(lambda _: None)
    assert str(tmp_path / "top4") in str(error.value)
    assert str(error.value).count("\n") == 1
