"""Values, words and whole files that readers of files have failed on: the texts of corpus.yaml, and what is no text."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Collection
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CORPUS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8"))
FINDINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text(encoding="utf-8"))
DEEP = 100_000  # levels of nesting
SURROGATES = "\udcff", "\udce9t\udce9"  # how Python decodes bytes that are not UTF-8 in names of files and arguments


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


NUMBERS = (*CORPUS["numbers"], "9" * 400, "9" * 5000)
LONG = ("a" * 10_000, "x " * 9_000, "[" * 3000, "{" * 3000, "(" * 3000)
WORDS = (*NUMBERS, *CORPUS["words"], *SURROGATES, *LONG)
FLOATS = (0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf"))
INTEGERS = (0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63), 10**400)
CONTAINERS = ([], {}, [[]], [None], {"": None}, ["x"] * 1000, nested(50), nested(900))
VALUES = (None, True, False, *INTEGERS, *FLOATS, *CORPUS["values"], "\ud800", "a" * 10_000, *CONTAINERS)
KEYS = (*CORPUS["keys"], "a" * 1000)
HEADERS: dict[str, list[str]] = CORPUS["headers"] | {"shape": [*CORPUS["headers"]["shape"], "(" * 200 + ")" * 200]}
MODULES = (
    b"os\nsystem",
    b"builtins\neval",
    b"numpy\nndarray",
    b"numpy\ndtype",
    b"collections\ndefaultdict",
    b"_codecs\nencode",
)
OPERATIONS = (  # of pickles; most read beyond the content, or take a lot of memory
    *(getattr(pickle, name) for name in CORPUS["operations"]),
    *(pickle.GLOBAL + name + b"\n" for name in MODULES),
    *(pickle.LONG_BINPUT + size for size in (b"\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\0\0\0\0")),
    *(
        operation + b"\xff\xff\xff\x7f"
        for operation in (pickle.BINBYTES, pickle.LONG4, pickle.BINUNICODE, pickle.LONG_BINGET)
    ),
    *(operation + b"\xff" * 7 + b"\x7f" for operation in (pickle.BINBYTES8, pickle.BYTEARRAY8, pickle.FRAME)),
    *(operation + b"\1" for operation in (pickle.BINGET, pickle.BININT1, pickle.EXT1, pickle.BINPUT)),
    *(
        pickle.LONG1 + b"\x02\xff\x7f",
        pickle.PUT + b"99999999999\n",
        pickle.INT + b"9" * 5000 + b"\n",
        pickle.FLOAT + b"nan\n",
    ),
    *(
        pickle.UNICODE + b"\\ud800\n",
        pickle.PERSID + b"x\n",
        pickle.PROTO + b"\xff",
        pickle.INST + b"os\nsystem\n",
        b"\xfe",
    ),
)


class Call:
    """Pickled as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._parts = (function, arguments)

    def __reduce__(self) -> tuple:
        return self._parts


CALLS = (Call(os.system, "true"), Call(eval, "1"), Call(OrderedDict, 5), Call(list, "abc"), nested(150))


@cache
def _pickles() -> tuple[bytes, ...]:
    """Return pickles: calls of functions, alone and inside other values, and single operations."""
    pickles = [
        pickle.dumps(placed, protocol)
        for value in CALLS
        for placed in (value, [value], {"data": value, "labels": [1]})
        for protocol in (2, 4)
    ]
    pickles += [start + operation + b"." for operation in OPERATIONS for start in (b"\x80\x02", b"\x80\x02]")]
    deep = b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b"."
    protocol_0 = b"(dp0\nS'data'\np1\n(lp2\nS'labels'\np3\nI01\ns."
    return (
        *pickles,
        deep,
        b"(" * DEEP + b".",
        b"\x80\x02(" + b"K\1" * DEEP + b"l.",
        protocol_0,
        b"(dS'data'\nS'\\xff'\ns.",
        b".",
        b"",
    )


@cache
def _yamls() -> tuple[bytes, ...]:
    """Return YAML: the corpus, text that is not UTF-8, deep nesting, and references that stand for very much."""
    aliases = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    aliases += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)]
    references = [
        "a0: xxxxxxxxxxxxxxxx",
        *(f"a{level}: {('${a' + str(level - 1) + '}') * 10}" for level in range(1, 12)),
    ]
    long = (
        b"a: " + b"[" * DEEP,
        b"a: " + b"{b: " * 2000,
        b"- " * 2000 + b"x",
        b"a: " + b"9" * 5000,
        b"a: " + b"x" * 2**20,
    )
    encodings = (b"\xff\xfea\x00", b"\xef\xbb\xbfa: 1", b"a: caf\xe9", b"a: \xed\xa0\x80")
    bombs = ("\n".join(lines).encode() for lines in (aliases[:4], aliases, references))
    return (*(text.encode() for text in CORPUS["yaml"]), *long, *encodings, *bombs)


@cache
def _jsons() -> tuple[bytes, ...]:
    long = (b"[" * DEEP, b'{"a":' * DEEP, b"[" * 900 + b"]" * 900, b"9" * 5000, b'{"step": ' + b"9" * 5000 + b"}")
    encodings = (b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b'{"a": "\xe9"}', b"\x00" * 100)
    return (*(text.encode() for text in CORPUS["json"]), *long, *encodings)


@cache
def _texts() -> tuple[bytes, ...]:
    long = (b"x" * 2**20, b"a " * 2**18, b"1,2\n" * 10_000, b"\t" * 1000, b"\n" * 1000)
    encodings = (
        b"\xff\xfeh\x00i\x00",
        b"\xef\xbb\xbfhi\n",
        b"\xe9\n",
        b"a\x00b\n",
        b"\x85\xe2\x80\xa8",
        "e\u0301 \ufeff\n".encode(),
    )
    return (b"", b"\n", b"\r\n", b" \n \n", b"=1+1\n", b"\x1b[2J\n", *long, *encodings)


def _npy(header: str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header.encode("latin1") + body


@cache
def _arrays() -> tuple[bytes, ...]:
    """Return .npy files with strange headers."""
    header = "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n"
    texts = ("", "{}", "[" * 9999, "(" * 9999, "__import__('os')", "{'a': 1}", "\x00", "1" * 6000, "-" * 9999 + "1")
    return (
        *(_npy(header.format(descr, "False", "(2,)"), bytes(64)) for descr in HEADERS["descr"]),
        *(_npy(header.format("'<f4'", "False", shape), bytes(64)) for shape in HEADERS["shape"]),
        *(_npy(text) for text in texts),
        *(_npy("{}", version=version) for version in (b"\2\0", b"\3\0", b"\xff\xff")),
        _npy(header.format("'|O'", "False", "(1,)"), pickle.dumps(Call(os.system, "true"))),
        *(b"\x93NUMPY", b"\x93NUMPY\x03\x00\xff\xff\xff\xff"),
    )


def archive(members: dict[str, bytes]) -> bytes:
    """Return a zip archive that depends on its members only."""
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return result.getvalue()


@cache
def _archives() -> tuple[bytes, ...]:
    """Return zip archives: as torch.save writes them, with forged pickles in them, and as numpy.savez writes them."""
    storage = b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0%bX\3\0\0\0cpuM\xff\x7ftQ."
    pickles = [*_pickles()[::7], *(storage % name for name in (b"0", b"1", b"/"))]
    torch_files = [archive({"a/data.pkl": content, "a/version": b"3\n", "a/data/0": bytes(64)}) for content in pickles]
    numpy_files = [archive({"Wemb.npy": content}) for content in _arrays()]
    empty = (archive({}), archive({"x": b""}), archive({"../x": b"x"}), b"PK\x05\x06" + bytes(18), b"PK\x03\x04")
    return (*torch_files, *numpy_files, *empty)


def _png(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """Return a PNG file that claims this size and has a MiB of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(2**20), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


@cache
def _images() -> tuple[bytes, ...]:
    sizes = ((0, 0), (1, 1), (2**31 - 1, 1), (1, 2**31 - 1), (9000, 9000), (13_000, 13_000), (60_000, 60_000))
    others = (b"GIF89a" + b"\xff" * 20, b"\xff\xd8\xff\xe0", b"BM" + b"\xff" * 60, b"P6 99999 99999 255 ")
    return (*(_png(*size) for size in sizes), _png(30_000, 30_000, 1, 0), _png(4, 4, 16, 6), *others)


ENDINGS = {
    **dict.fromkeys(("json", "jsonl"), _jsons),
    **dict.fromkeys(("yaml", "yml"), _yamls),
    **dict.fromkeys(("npz", "pt", "pth", "zip"), _archives),
    **dict.fromkeys(("png", "jpg"), _images),
    **dict.fromkeys(("txt", "csv", "en", "de", "question"), _texts),
    "pkl": _pickles,
    "npy": _arrays,
}


def finding(content: dict[str, str | bytes], files: Collection[str]) -> dict[str, bytes]:
    """Return the files of a former finding: contents by pattern of paths among ``files``.

    Raises: ValueError if a pattern fits no path.
    """
    result = {}
    for pattern, text in content.items():
        if not (names := [name for name in files if fnmatch(name, pattern)]):
            raise ValueError(f"no file is called {pattern}")
        result |= dict.fromkeys(names, text.encode() if isinstance(text, str) else text)
    return result


def contents(name: str) -> tuple[bytes, ...]:
    """Return whole files that suit the ending of ``name``; files without a known ending get all kinds of contents."""
    ending = name.rpartition(".")[2]
    return ENDINGS[ending]() if ending in ENDINGS else (*_pickles(), *_texts(), *_jsons())
