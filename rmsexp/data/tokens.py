"""Convert plain text to tokens for language models: bytes, or the pieces of sentencepiece's byte-pair encoding."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Report, pieces
from rmsexp.data import text as texts
from rmsexp.data.cache import cached, key
from rmsexp.data.text import SPLITS, PlainText
from rmsexp.system import cores

KINDS = ("bytes", "sentencepiece")
MOST_LINES = 1_000_000  # from which pieces are learnt; of longer texts every n-th line is taken
LINES = 100_000  # encoded at a time, because lists of ids take ten times the memory of arrays
UNK, LINE_END = 0, 1  # the first ids of pieces; UNK does not occur, as unknown characters become bytes
LOSSLESS = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "character_coverage": 0.9999,
}


@dataclass(frozen=True)
class Tokens:
    """A text as tokens.

    ``splits`` has an array of ids for each split, perhaps memory-mapped. ``subwords``: a digest of the pieces that were
    learnt; "" for bytes.
    """

    tokeniser: Bytes | Pieces
    splits: Mapping[str, np.ndarray]
    subwords: str = ""


class Bytes:
    """Converts text to token ids and back without loss. :class:`Pieces` has the same attributes and methods.

    ``size``: number of ids. ``line_end``: the id of the line feed. ``lengths``: number of bytes of each token, int64 of
    shape (size,).
    """

    size, line_end = 256, 10
    lengths = np.ones(256, dtype=np.int64)

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids of a text, of shape (token,). Raises: UnicodeDecodeError if pieces need UTF-8."""
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with U+FFFD for bytes that are not UTF-8."""
        return bytes(ids).decode(errors="replace")


class Pieces:
    """The pieces of a model of sentencepiece, which take U+2581 for a space and do not extend over lines."""

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
        parts = []
        for start in range(0, len(lines), LINES):
            ids = self._processor.encode(lines[start : start + LINES], num_threads=cores.threads_while_others_wait())
            parts.append(np.fromiter((token for line in ids for token in (*line, LINE_END)), dtype=dtype))
        return np.concatenate(parts)[:-1]  # no line feed follows the last line

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

    Raises: DataError if the text cannot be read or is not UTF-8, or if the result cannot be stored; ValueError if
    ``vocabulary`` does not fit the text.
    """
    if kind == "bytes":
        return Tokens(Bytes(), {split: Bytes().encode(read()) for split, read in text.splits.items()})
    code = (key(pieces.__file__), key(texts.__file__))  # the latter divides LAMBADA's files into splits
    folder = root / "tokens" / key(__file__, *code, text.digest, vocabulary)

    def read(folder: Path) -> Tokens:
        splits = {split: np.asarray(np.load(folder / f"{split}.npy", mmap_mode="r")) for split in SPLITS}
        tokeniser = Pieces((folder / "model").read_bytes())
        return Tokens(tokeniser, splits, tokeniser.digest)

    def make(folder: Path) -> None:
        model = _learn(text, vocabulary, report)
        (folder / "model").write_bytes(model)
        for split, read_split in text.splits.items():
            report(f"encoding {split} (once)")
            try:
                np.save(folder / f"{split}.npy", Pieces(model).encode(read_split()))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"The {split} text of {text.name} is not UTF-8 ({error.reason} at byte {error.start}).\n"
                    "Convert it to UTF-8, or use data.tokens=bytes."
                ) from None

    return cached(folder, read, make)


def _learn(text: PlainText, vocabulary: int, report: Report) -> bytes:
    content = text.splits["train"]()
    if not content.strip():
        raise DataError(
            f"The training text of {text.name} is empty: there is nothing to learn pieces from.\nReplace the file."
        )
    every = -(-(content.count(b"\n") + 1) // MOST_LINES)
    report(f"learning {vocabulary:,} pieces (once)")
    chosen = (line.rstrip(b"\n") for line in islice(io.BytesIO(content), 0, None, every))
    decoded = (line.decode(errors="replace") for line in chosen if line)
    return pieces.learn(decoded, vocabulary, text.name, unk_id=UNK, eos_id=LINE_END, pad_id=-1, **LOSSLESS)
