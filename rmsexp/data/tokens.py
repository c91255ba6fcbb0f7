"""Convert plain text to tokens for language models: bytes, or the pieces of sentencepiece's byte-pair encoding."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from rmsexp.data import DataError, Report, pieces
from rmsexp.data import text as texts
from rmsexp.data.cache import cached, key, storing
from rmsexp.data.parts import parts_folder, processes, removed_on_error, stored
from rmsexp.data.text import SPLITS, PlainText

KINDS = ("bytes", "sentencepiece")
MOST_LINES = 1_000_000  # from which pieces are learnt; of longer texts every n-th line is taken
# Bytes; longer lines are split before pieces are learnt. A byte that is not valid UTF-8, as where a line is split,
# becomes three.
LONGEST_LINE = pieces.LONGEST_LINE // 4
LONGEST_CHUNK = 1 << 24  # bytes encoded at a time where a text has no line feed
CHUNK = 1 << 22  # bytes encoded at a time, because lists of ids take ten times the memory of arrays
UNK, LINE_END = 0, 1  # the first ids of pieces; UNK does not occur, as unknown characters become bytes
LOSSLESS = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "character_coverage": 0.9999,
}


class Tokeniser(Protocol):
    """Converts text to token ids and back without loss, except that pieces take U+2581 for a space.

    ``size``: number of ids. ``line_end``: the id of the line feed. ``lengths``: number of bytes of each token, int64 of
    shape (size,).
    """

    size: int
    line_end: int

    @property
    def lengths(self) -> np.ndarray: ...

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids of a text, of shape (token,). Raises: UnicodeDecodeError if pieces need UTF-8."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with U+FFFD for bytes that are not UTF-8."""


@dataclass(frozen=True)
class Tokens:
    """A text as tokens.

    ``splits`` has an array of ids for each split, perhaps memory-mapped. ``subwords``: a digest of the pieces that were
    learnt; "" for bytes.
    """

    tokeniser: Tokeniser
    splits: Mapping[str, np.ndarray]
    subwords: str = ""


class Bytes:
    size, line_end = 256, 10
    lengths = np.ones(256, dtype=np.int64)

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")


class Pieces:
    """The pieces of a model of sentencepiece. A line feed is LINE_END; pieces do not extend over lines."""

    line_end = LINE_END

    def __init__(self, model: bytes) -> None:
        self._processor = pieces.load(model)
        self.size: int = self._processor.get_piece_size()

    @cached_property
    def digest(self) -> str:
        return pieces.digest(self._processor)

    @cached_property
    def lengths(self) -> np.ndarray:
        names = map(self._processor.id_to_piece, range(self.size))
        sizes = [len(name.replace("\u2581", " ").encode()) for name in names]
        return np.array([1 if i <= LINE_END or self._processor.is_byte(i) else size for i, size in enumerate(sizes)])

    def encode(self, text: bytes) -> np.ndarray:
        lines, dtype = text.decode().split("\n"), np.uint16 if self.size <= 1 << 16 else np.int32
        ids = self._processor.encode(lines, num_threads=1)
        tokens = np.fromiter((token for line in ids for token in (*line, LINE_END)), dtype=dtype)
        return tokens[:-1]  # no line feed follows the last line

    def decode(self, ids: Sequence[int]) -> str:
        lines: list[list[int]] = [[]]
        for token in map(int, ids):
            if token == LINE_END:
                lines.append([])
            else:
                lines[-1].append(token)
        return "\n".join(self._processor.decode(line) for line in lines)


def prepare(text: PlainText, kind: str, vocabulary: int, root: Path, report: Report) -> Tokens:
    """Return a text as tokens of a kind in ``KINDS``.

    A model of ``vocabulary`` pieces and the encoded text are read from ``<root>/tokens``, or computed and stored there.
    The text is encoded in parts, several at a time; a computation that was killed goes on after those that are stored.

    Raises: DataError if the text cannot be read or is not UTF-8, or if the result cannot be stored; ValueError if
    ``vocabulary`` does not fit the text.
    """
    if kind == "bytes":
        tokeniser = Bytes()
        return Tokens(tokeniser, {split: tokeniser.encode(read()) for split, read in text.splits.items()})
    code = (key(pieces.__file__), key(texts.__file__))  # the latter divides LAMBADA's files into splits
    folder = root / "tokens" / key(__file__, *code, text.digest, vocabulary)
    work = parts_folder(folder)

    def read(folder: Path) -> Tokens:
        splits = {split: np.asarray(np.load(folder / f"{split}.npy", mmap_mode="r")) for split in SPLITS}
        tokeniser = Pieces((folder / "model").read_bytes())
        return Tokens(tokeniser, splits, tokeniser.digest)

    def make(folder: Path) -> None:
        with removed_on_error(work):
            _write(folder, text, vocabulary, work, report)

    with storing(f"The tokens of {text.name}", root):
        found = cached(folder, read, make, report)
    shutil.rmtree(work, ignore_errors=True)
    return found


def _write(folder: Path, text: PlainText, vocabulary: int, work: Path, report: Report) -> None:
    """Learn pieces and encode the splits, in parts that are stored in ``work``, and store both in ``folder``."""
    learn = partial(_learn, text, vocabulary, report)
    model = cached(work / "model", lambda place: (place / "model").read_bytes(), learn, report)
    (folder / "model").write_bytes(model)
    for split, read_split in text.splits.items():
        report(f"encoding {split} (once)")
        content = read_split()
        encode = partial(_encode, model, f"The {split} text of {text.name}")
        parts = stored(work / split, encode, _chunks(content), processes(len(content) // CHUNK), report)
        arrays = [np.load(part / "tokens.npy") for part in parts]
        np.save(folder / f"{split}.npy", np.concatenate(arrays))


def _learn(text: PlainText, vocabulary: int, report: Report, folder: Path) -> None:
    content = text.splits["train"]()
    if not content.strip():
        raise DataError(
            f"The training text of {text.name} is empty: there is nothing to learn pieces from.\nReplace the file."
        )
    number = content.count(b"\n") + 1
    every = -(-number // MOST_LINES)
    report(f"learning {vocabulary:,} pieces from {-(-number // every):,} lines (once)")
    chosen = (line.rstrip(b"\n") for line in islice(io.BytesIO(content), 0, None, every))
    decoded = (line.decode(errors="replace") for line in _cut(chosen))
    model = pieces.learn(decoded, vocabulary, text.name, unk_id=UNK, eos_id=LINE_END, pad_id=-1, **LOSSLESS)
    (folder / "model").write_bytes(model)


def _cut(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines in parts of at most ``LONGEST_LINE`` bytes, because sentencepiece ignores longer ones.

    Empty lines are left out.
    """
    for line in lines:
        for start in range(0, len(line), LONGEST_LINE):
            yield line[start : start + LONGEST_LINE]


def _chunks(content: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield parts of a text that end before a line feed or at its end.

    If no line feed follows within ``LONGEST_CHUNK`` bytes, a part ends between two characters.

    For each part: its first byte's place in the text, its bytes, and whether a line feed follows it.
    """
    start = 0
    while start <= len(content):
        longest = min(start + LONGEST_CHUNK, len(content))
        end = content.find(b"\n", start + CHUNK, longest)
        is_followed = end >= 0
        if not is_followed:
            end = _between_characters(content, longest)
        yield start, content[start:end], is_followed
        if end == len(content):
            return
        start = end + is_followed


def _between_characters(content: bytes, place: int) -> int:
    """Return the last place up to ``place`` between two characters of UTF-8 text.

    If the bytes around ``place`` are not UTF-8, return ``place``.
    """
    places = range(place, max(0, place - 4), -1)  # a character has up to four bytes
    return next((p for p in places if p == len(content) or content[p] & 0xC0 != 0x80), place)


def _encode(model: bytes, name: str, chunk: tuple[int, bytes, bool], folder: Path) -> None:
    """Store the tokens of a part of a text, with the line feed that follows it. ``name``: that of the text."""
    start, content, is_followed = chunk
    try:
        tokens = Pieces(model).encode(content)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8 ({error.reason} at byte {start + error.start}).\n"
            "Convert it to UTF-8, or use data.tokens=bytes."
        ) from None
    np.save(folder / "tokens.npy", np.append(tokens, tokens.dtype.type(LINE_END)) if is_followed else tokens)
