"""Plain text for language models, and its tokens: bytes, or the pieces of sentencepiece's byte-pair encoding.

The text is synthetic sentences, the user's own files, LAMBADA's passages, or WikiText-103.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Report, Source, subwords
from rmsexp.data.cloze import lambada_files
from rmsexp.data.files import cached, digest_of, digest_of_contents, hub_files, hub_rows, key, read_bytes
from rmsexp.data.subwords import digest_of_pieces, learn_pieces, load_pieces
from rmsexp.data.synthetic import phrases
from rmsexp.system import cores

Text = Source[Mapping[str, bytes]]  # the text of each of SPLITS

SPLITS = ("train", "valid", "test")
# repository on the Hugging Face hub, revision, config
WIKITEXT = "Salesforce/wikitext", "b08601e04326c79dfdd32d625aee71d232d685c3", "wikitext-103-raw-v1"
KINDS = ("bytes", "sentencepiece")
LONGEST = 1 << 20  # characters of a line from which pieces are learnt; longer lines are cut
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


def sentences(n_train: int = 6000, n_valid: int = 200, n_test: int = 200) -> Text:
    """Return the English sentences of the synthetic corpus for translation, one per line."""
    corpus = phrases.phrases(n_train, n_valid, n_test)
    texts = {split: "".join(f"{line}\n" for line in corpus.text(split)[0]).encode() for split in SPLITS}
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    return Source("sentences", digest, True, lambda _: texts)


def files(train: str, valid: str, test: str) -> Text:
    """Return the text of three files of the user. The name is that of train's file.

    Raises: DataError if a file cannot be read. ``load`` raises DataError if a file is empty or no plain text.
    """
    paths = dict(zip(SPLITS, map(Path, (train, valid, test)), strict=True))
    digest = digest_of_contents(paths.values())
    return Source(paths["train"].name, digest, False, lambda _: {split: _read(path) for split, path in paths.items()})


def lambada(root: Path, held_out: int, rest: bool) -> Text:
    """Return the passages in ``<root>/lambada/lambada_{development,test}_plain_text.txt``, one per line.

    The ``held_out`` last passages of development are the validation text, the others the training text. The
    ``held_out`` first passages of test are the test text; with ``rest``, the others are training text, too.

    Raises: DataError if a file is missing, empty, no plain text, or cannot be read; ValueError if ``held_out`` leaves
    no training passage, or if there are fewer test passages.
    """
    paths = lambada_files(root)
    development, test = (_read(path).removesuffix(b"\n").split(b"\n") for path in paths)
    if held_out >= len(development):
        raise ValueError(f"data.held_out={held_out} leaves none of the {len(development)} training passages")
    if held_out > len(test):
        raise ValueError(f"data.held_out={held_out} is more than the {len(test)} test passages")
    passages = {"train": development[:-held_out], "valid": development[-held_out:], "test": test[:held_out]}
    if rest:
        passages["train"] += test[held_out:]
    texts = {split: b"".join(line + b"\n" for line in lines) for split, lines in passages.items()}
    content = f"{digest_of(paths)}, held out {held_out}{', and the rest of test' * rest}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Source("LAMBADA", digest, False, lambda _: texts)


def wikitext103(root: Path) -> Text:
    """Return WikiText-103 (Merity et al. 2017), raw: Wikipedia articles, 540 MB of training text.

    It is in ``<root>/wikitext103/wikitext-103-raw-v1/*.parquet``, as on the Hugging Face hub, from which missing files
    are downloaded. Raises: DataError if the download fails, or if a file cannot be read.
    """
    names, task = ("train", "validation", "test"), "task=language_model scale=large"
    files = hub_files("WikiText-103", root / "wikitext103", *WIKITEXT, names, task)

    def load(_: Report) -> Mapping[str, bytes]:
        lines = [hub_rows(paths, lambda row: row["text"].removesuffix("\n").encode() + b"\n") for paths in files]
        return dict(zip(SPLITS, map(b"".join, lines), strict=True))

    return Source("WikiText-103", digest_of(chain.from_iterable(files)), False, load)


def _read(path: Path) -> bytes:
    content = read_bytes(path)
    if not content or b"\0" in content[:1024]:  # as in compressed files and in text in UTF-16
        raise DataError(f"{path} is {'no plain text' if content else 'empty'}.\nReplace the file.")
    return content


@dataclass(frozen=True)
class Tokens:
    """A text as tokens. ``splits`` has an array of ids for each split, perhaps memory-mapped."""

    tokeniser: Bytes | Pieces
    splits: Mapping[str, np.ndarray]


class Bytes:
    """Converts text to token ids and back without loss. :class:`Pieces` has the same attributes and methods.

    ``size``: number of ids. ``line_end``: the id of the line feed. ``digest``: of the learnt pieces, "" for bytes.
    ``lengths``: number of bytes of each token, int64 of shape (size,).
    """

    size, line_end, digest = 256, 10, ""
    lengths = np.ones(256, dtype=np.int64)

    def encode(self, text: bytes) -> np.ndarray:
        """Return ids, uint8 (token,). Pieces returns uint16 or int32, and raises UnicodeDecodeError if not UTF-8."""
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with U+FFFD for bytes that are not UTF-8."""
        return bytes(ids).decode(errors="replace")


class Pieces:
    """The pieces of a model of sentencepiece, which take U+2581 for a space and do not extend over lines."""

    line_end = LINE_END

    def __init__(self, model: bytes) -> None:
        self._processor = load_pieces(model)
        self.size: int = self._processor.get_piece_size()

    @cached_property
    def digest(self) -> str:
        return digest_of_pieces(self._processor)

    @cached_property
    def lengths(self) -> np.ndarray:
        names = map(self._processor.id_to_piece, range(self.size))
        sizes = [len(name.replace("\u2581", " ").encode()) for name in names]
        return np.array([1 if i <= LINE_END or self._processor.is_byte(i) else size for i, size in enumerate(sizes)])

    def encode(self, text: bytes) -> np.ndarray:
        lines, dtype = text.decode().split("\n"), np.uint16 if self.size <= 1 << 16 else np.int32
        parts = []
        for start in range(0, len(lines), LINES):
            ids = self._processor.encode(lines[start : start + LINES], num_threads=cores.threads())
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


def prepare(text: Text, kind: str, vocabulary: int, root: Path, report: Report) -> Tokens:
    """Return a text as tokens of a kind in ``KINDS``; ``vocabulary``: number of pieces, if these are "sentencepiece".

    The model of pieces and the text encoded with it are read from ``<root>/tokens``, or computed and stored there.

    Raises: DataError if the text cannot be read; with "sentencepiece", also if it is not UTF-8 or the result cannot be
    stored, and ValueError if ``vocabulary`` does not fit the text.
    """
    if kind == "bytes":
        return Tokens(Bytes(), {split: Bytes().encode(content) for split, content in text.load(report).items()})
    folder = root / "tokens" / key(__file__, key(subwords.__file__), text.digest, vocabulary)

    def read(folder: Path) -> Tokens:
        splits = {split: np.asarray(np.load(folder / f"{split}.npy", mmap_mode="r")) for split in SPLITS}
        return Tokens(Pieces((folder / "model").read_bytes()), splits)

    def make(folder: Path) -> None:
        texts = text.load(report)
        training = texts["train"]
        every = -(-(training.count(b"\n") + 1) // MOST_LINES)
        report(f"learning {vocabulary:,} pieces (once)")
        chosen = (line.rstrip(b"\n") for line in islice(io.BytesIO(training), 0, None, every))
        whole = (line.decode(errors="replace") for line in chosen if line)
        # sentencepiece would leave out longer ones, such as a text that is one line
        lines = (line[start : start + LONGEST] for line in whole for start in range(0, len(line), LONGEST))
        model = learn_pieces(lines, vocabulary, text.name, unk_id=UNK, eos_id=LINE_END, pad_id=-1, **LOSSLESS)
        (folder / "model").write_bytes(model)
        for split, content in texts.items():
            report(f"encoding {split} (once)")
            try:
                np.save(folder / f"{split}.npy", Pieces(model).encode(content))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"The {split} text of {text.name} is not UTF-8 ({error.reason} at byte {error.start}).\n"
                    "Convert it to UTF-8, or use data.tokens=bytes."
                ) from None

    return cached(folder, read, make)
