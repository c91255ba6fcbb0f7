"""Damage files at random, in ways that suit their formats: bytes, text, JSON, YAML, pickles, arrays and archives."""

from __future__ import annotations

import gzip
import io
import json
import pickletools
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import yaml

from fuzzing import hostile

Files = dict[str, bytes | None]  # path -> content; None stands for a folder in the file's place
Damage = Callable[[bytes, random.Random], bytes]

LONGEST = 2**20  # larger contents are only damaged byte by byte
CUT = 2**22  # damaged contents have at most this size
TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def damaged(files: Files, rng: random.Random) -> Files:
    """Return the files with one to three of them damaged, mostly one."""
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        if not (names := [name for name, content in files.items() if content is not None]):
            break
        name = rng.choice(names)
        match rng.randrange(40):
            case 0:
                del files[name]
            case 1:
                files[name] = None
            case 2:
                files[name] = b""
            case 3 | 4:
                files[name] = files[rng.choice(names)]
            case 5 | 6 | 7 | 8:
                files[name] = rng.choice(hostile.contents(name))
            case _:
                files[name] = content(name, files[name] or b"", rng)
    return files


def content(name: str, data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with damage. The format is recognised by the content, or else by the ending of ``name``."""
    kinds = [_bytes, _bytes, *_kinds(name, data)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.choice(kinds)
        with suppress(Exception):  # data that is damaged already may have lost its format
            data = kind(data, rng)[:CUT]
    return data


def _kinds(name: str, data: bytes) -> Sequence[Damage]:
    """Return the kinds of damage for the format of ``data``, except damage to single bytes."""
    ending = name.rpartition(".")[2]
    if len(data) > LONGEST:
        return ()
    if data.startswith(b"PK\x03\x04"):
        return (_zip, _zip, _zip)
    if data.startswith(b"\x93NUMPY"):
        return (_npy, _npy)
    if data.startswith(b"\x1f\x8b"):
        return (_gzip, _gzip)
    if data.startswith(b"\x80") or ending == "pkl":
        return (_pickle, _pickle, _pickle)
    if ending == "json":
        return (_json, _json, _json, _text)
    if ending == "jsonl":
        return (_json_lines, _json_lines, _text, _lines)
    if ending in ("yaml", "yml"):
        return (_yaml, _yaml, _text, _lines)
    return (_text, _text, _lines) if _is_text(data) else ()


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip bits, or cut, insert, repeat, exchange or overwrite a piece."""
    result = bytearray(data)
    start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    small = min(len(data), start + rng.randrange(1, 17))
    match rng.randrange(9):
        case 0 | 1:
            for _ in range(rng.choice((1, 1, 2, 8))):
                result[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            del result[start:]
        case 3:
            del result[start : rng.choice((small, stop))]
        case 4:
            result[start:start] = rng.randbytes(rng.choice((1, 4, 64)))
        case 5:
            result[start:start] = result[start : rng.choice((small, stop))] * rng.choice((1, 1, 3))
        case 6:
            other = rng.randrange(len(data) + 1)
            result[start:small], result[other : other + 8] = result[other : other + 8], result[start:small]
        case 7:
            result[start:small] = rng.choice((b"\0", b"\xff", b"\x7f")) * (small - start)
        case _:
            result += rng.randbytes(rng.choice((1, 100)))
    return bytes(result)


def _text(data: bytes, rng: random.Random) -> bytes:
    """Exchange, remove, repeat or replace words, numbers and separators."""
    tokens = TOKEN.findall(data.decode())
    i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    match rng.randrange(5):
        case 0:
            tokens[i], tokens[j] = tokens[j], tokens[i]
        case 1:
            del tokens[i]
        case 2:
            tokens[i] *= rng.choice((2, 10, 10_000))
        case 3:
            numbers = [place for place, token in enumerate(tokens) if token.isdigit()]
            tokens[rng.choice(numbers or [i])] = rng.choice(hostile.NUMBERS)
        case _:
            tokens[i] = rng.choice(hostile.WORDS)
    return "".join(tokens).encode(errors="surrogateescape")


def _lines(data: bytes, rng: random.Random) -> bytes:
    """Exchange, remove or repeat lines, or replace one by a word."""
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            lines[i], lines[j] = lines[j], lines[i]
        case 1:
            del lines[i]
        case 2:
            lines[i:i] = [lines[j]] * rng.choice((1, 2, 100))
        case _:
            lines[i] = rng.choice(hostile.WORDS).encode(errors="surrogateescape")
    return b"\n".join(lines)


def _json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(tree(json.loads(data), rng)).encode()


def _json_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    i = rng.randrange(len(lines))
    lines[i] = _json(lines[i], rng)
    return b"\n".join(lines) + b"\n"


def _yaml(data: bytes, rng: random.Random) -> bytes:
    return yaml.safe_dump(tree(yaml.safe_load(data), rng), sort_keys=False).encode()


def tree(value: Any, rng: random.Random) -> Any:
    """Return nested dicts and lists with a change at a random place: a value, a key, or an exchange of two places."""
    root = [value]
    places = list(_places(root))
    container, key = rng.choice(places)
    other, other_key = rng.choice(places)
    match rng.randrange(8):
        case 0 | 1 | 2:
            container[key] = rng.choice(hostile.VALUES)
        case 3:
            container[key] = _converted(container[key], rng)
        case 4 if container is not root:
            del container[key]
        case 5 if isinstance(container, dict):
            container[rng.choice(hostile.KEYS)] = (
                container.pop(key) if rng.random() < 0.5 else rng.choice(hostile.VALUES)
            )
        case 6:
            container[key] = [container[key]] if rng.random() < 0.5 else {"a": container[key]}
        case _:
            container[key] = json.loads(json.dumps(other[other_key]))
    return root[0] if root else None


def _places(container: Any) -> Any:
    """Yield (container, key) of every value in nested dicts and lists."""
    for key in list(container) if isinstance(container, dict) else range(len(container)):
        yield container, key
        if isinstance(container[key], dict | list):
            yield from _places(container[key])


def _converted(value: Any, rng: random.Random) -> Any:
    """Return a value of another type or size that resembles ``value``."""
    if isinstance(value, bool | None):
        return rng.choice((str(value), int(bool(value)), not value))
    if isinstance(value, int | float):
        return rng.choice((str(value), -value, value + 1, value * 10**9, value / 3, bool(value)))
    return rng.choice((str(value), len(value), [value]))


def _npy(data: bytes, rng: random.Random) -> bytes:
    """Change the header of an array, and keep its length valid."""
    length = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + length].decode("latin1"), data[10 + length :]
    if rng.random() < 0.3:
        return data[: 10 + length] + _bytes(body, rng)
    if rng.random() < 0.6:
        key = rng.choice(("descr", "fortran_order", "shape"))
        pattern = {"descr": r"'[^']*'", "fortran_order": "True|False", "shape": r"\([^)]*\)"}[key]
        replacement = rng.choice(hostile.HEADERS[key])
        header = re.sub(rf"'{key}': (?:{pattern})", lambda _: f"'{key}': {replacement}", header)
    else:
        header = _text(header.encode(), rng).decode(errors="replace")
    encoded = header.encode("latin1", errors="replace")[:65535]
    return data[:8] + len(encoded).to_bytes(2, "little") + encoded + body


def _gzip(data: bytes, rng: random.Random) -> bytes:
    return gzip.compress(content("lines.txt", gzip.decompress(data), rng), mtime=0)


def _zip(data: bytes, rng: random.Random) -> bytes:
    """Damage, remove, rename, repeat or exchange members of an archive; the checksums of the result are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    i, j = rng.randrange(len(members)), rng.randrange(len(members))
    name, inner = members[i]
    match rng.randrange(10):
        case 0:
            del members[i]
        case 1:
            members[i] = rng.choice((members[j][0], "../x", "/x", "", name + "/", "x" * 300)), inner
        case 2:
            members[i] = name, members[j][1]
        case 3:
            members.append(members[i])
        case 4:
            members[i] = name, rng.choice(hostile.contents(name))
        case _:
            members[i] = name, content(name, inner, rng)
    result = io.BytesIO()
    with zipfile.ZipFile(
        result, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, inner in members:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), inner)
    return result.getvalue()


def _pickle(data: bytes, rng: random.Random) -> bytes:
    """Exchange, remove, repeat or replace operations of a pickle, or change the argument of one."""
    starts = [position for _, _, position in pickletools.genops(data) if position is not None]
    operations = [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]
    i, j = rng.randrange(len(operations)), rng.randrange(len(operations))
    match rng.randrange(7):
        case 0:
            operations[i], operations[j] = operations[j], operations[i]
        case 1:
            del operations[i]
        case 2:
            operations[i:i] = [operations[j]] * rng.choice((1, 1, 5))
        case 3:
            operations[i] = operations[i][:1] + rng.randbytes(len(operations[i]) - 1)
        case 4:
            operations[i] = _bytes(operations[i], rng)
        case 5:
            operations[i:i] = [rng.choice(hostile.OPERATIONS)]
        case _:
            operations[i] = operations[j]
    return b"".join(operations)
