"""Learn subwords on the training text, and convert text to subword ids and back.

There are two kinds.

- ``sentencepiece``: byte-pair encoding of raw text, with one model for both languages.
- ``moses_bpe``: as in the paper. Moses' punctuation normalisation, tokenisation and truecasing come first, then
  byte-pair encoding (Sennrich et al., 2016). The merges are learnt on both languages together; each language has its
  own vocabulary.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from rmsexp import checks
from rmsexp.data import DataError, Report, pieces
from rmsexp.data.cache import cached, key
from rmsexp.data.parallel import Corpus, Pairs

PAD, UNK, EOS = 0, 1, 2  # the first ids of every vocabulary, as in the authors' Transformer toolkit
FIRST_SUBWORD = 3
LARGEST_VOCABULARY = 10**9  # sentencepiece takes integers of 32 bits
UNKNOWN = "⁇"  # the text that UNK is decoded to, as in sentencepiece
REPORT_LINES = 500_000  # lines between two progress reports


@dataclass(frozen=True)
class SubwordOptions:
    """How subwords are learnt.

    ``kind`` is sentencepiece or moses_bpe. ``vocabulary`` is the number of pieces, including PAD, UNK and EOS
    (sentencepiece), or of merges (moses_bpe), for both languages together. ``threshold`` must be 0 with sentencepiece.
    With moses_bpe, a subword that occurs fewer than ``threshold`` times in its language's training text is split into
    shorter ones.

    Raises: ValueError for invalid values.
    """

    kind: str
    vocabulary: int
    threshold: int

    def __post_init__(self) -> None:
        checks.choice("data.subwords", self.kind, tuple(KINDS))
        least = FIRST_SUBWORD + 1 if self.kind == "sentencepiece" else 1
        checks.at_least("data.vocabulary", self.vocabulary, least, LARGEST_VOCABULARY)
        checks.at_least("data.threshold", self.threshold, 0)
        if self.threshold and self.kind != "moses_bpe":
            raise ValueError(f"data.threshold must be 0 with data.subwords={self.kind}, got {self.threshold}")


class Codec(Protocol):
    """Converts text of a language to ids and back. ``size`` is the number of ids, including PAD, UNK and EOS."""

    size: int

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without EOS. A blank line has no ids."""

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return one line of detokenised text for each sequence of ids. PAD and EOS are ignored."""


def codecs(corpus: Corpus, options: SubwordOptions, cache: Path, report: Report) -> tuple[Codec, Codec]:
    """Return the codecs of source and target.

    They are read from ``<cache>/subwords``, or learnt on the training split and stored there.

    Raises: ValueError if ``options.vocabulary`` is too large or too small for the text, if ``options.threshold`` is too
    large, or if the packages for moses_bpe are not installed; DataError if the training text is blank or cannot be
    read; OSError if the result cannot be stored.
    """
    if options.kind == "moses_bpe" and not all(map(importlib.util.find_spec, ("sacremoses", "subword_nmt"))):
        raise ValueError('data.subwords=moses_bpe needs sacremoses and subword-nmt: pip install "rmsexp[parity]"')
    learn, load = KINDS[options.kind]

    def read(folder: Path) -> tuple[Codec, Codec]:
        return load((folder / "model").read_bytes(), corpus)

    def make(folder: Path) -> None:
        pairs = corpus.splits["train"]()
        report(f"learning {options.vocabulary:,} subwords from {len(pairs[0]):,} pairs (once)")
        if not any(line.strip() for line in chain(*pairs)):
            raise DataError(
                f"The training text of {corpus.name} is empty: there is nothing to learn subwords from.\n"
                "Replace the files."
            )
        (folder / "model").write_bytes(learn(pairs, corpus, options, report))

    return cached(cache / "subwords" / fingerprint(corpus, options), read, make, report)


def fingerprint(corpus: Corpus, options: SubwordOptions) -> str:
    """Return 16 hexadecimal digits that depend on the corpus' digest and languages, the options and this module's code.

    They do not depend on the versions of the packages that learn the subwords.
    """
    languages = corpus.source, corpus.target
    return key(__file__, corpus.digest, languages, options.kind, options.vocabulary, options.threshold)


def _learn_sentencepiece(pairs: Pairs, corpus: Corpus, options: SubwordOptions, _report: Report) -> bytes:
    ids = {"pad_id": PAD, "unk_id": UNK, "eos_id": EOS}
    return pieces.learn(chain(*pairs), options.vocabulary, corpus.name, **ids)


class _SentencePiece:
    def __init__(self, model: bytes) -> None:
        self._processor = pieces.load(model)
        self.size: int = self._processor.get_piece_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(lines))

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [self._processor.decode([int(i) for i in ids if i not in (PAD, EOS)]) for ids in sequences]


def _load_sentencepiece(model: bytes, _corpus: Corpus) -> tuple[Codec, Codec]:
    codec = _SentencePiece(model)
    return codec, codec


def _learn_moses_bpe(pairs: Pairs, corpus: Corpus, options: SubwordOptions, report: Report) -> bytes:
    languages = corpus.source, corpus.target
    vocabularies = [_learn_words(lines, language, report) for lines, language in zip(pairs, languages, strict=True)]
    report(f"learning merges from {sum(len(words) for _, words in vocabularies):,} words")
    merges = _learn_merges(vocabularies[0][1] + vocabularies[1][1], corpus, options)
    sides = []
    for (casing, words), language in zip(vocabularies, languages, strict=True):
        frequent: list[str] = []
        if options.threshold:
            counts = _token_counts(words, _bpe(merges, frequent))
            frequent = sorted(token for token, count in counts.items() if count >= options.threshold)
            if not frequent:
                raise ValueError(
                    f"data.threshold={options.threshold}: no subword of the {language} training text of "
                    f"{corpus.name} occurs so often; lower it"
                )
        counts = _token_counts(words, _bpe(merges, frequent))
        vocabulary = sorted(counts, key=lambda token: (-counts[token], token))
        sides.append({"casing": casing, "frequent": frequent, "vocabulary": vocabulary})
    return json.dumps({"merges": merges, "sides": sides}, ensure_ascii=False).encode()


def _learn_words(lines: Iterable[str], language: str, report: Report) -> tuple[list[list[str]], Counter[str]]:
    """Learn truecasing from the lines of a language, and count its truecased words.

    Return (casing, counts). ``casing`` has a list for each word that occurs inside a sentence: its forms in upper and
    lower case there, such as ["the", "The"], the most frequent first. ``counts`` has the number of occurrences of each
    word in ``lines`` after truecasing.
    """
    from sacremoses import MosesTruecaser

    tokenise, truecaser = _tokeniser(language), MosesTruecaser()
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tokenised = []  # one string per line, because lists of tokens would take several times the memory
    for number, line in enumerate(lines, 1):
        tokenised.append(tokenise(line))
        for lower, form, weight in truecaser.learn_truecase_weights(tokenised[-1].split()):
            forms[lower][form] += weight
        if number % REPORT_LINES == 0:
            report(f"tokenised {number:,} lines of {language}")
    casing = [[form for form, _ in counts.most_common()] for counts in forms.values()]
    truecase = _truecaser(casing)
    return casing, Counter(chain.from_iterable(map(truecase, tokenised)))


def _tokeniser(language: str) -> Callable[[str], str]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normaliser, tokeniser = MosesPunctNormalizer(language), MosesTokenizer(language)

    def tokenise(line: str) -> str:
        return tokeniser.tokenize(normaliser.normalize(line), aggressive_dash_splits=True, return_str=True)

    return tokenise


def _truecaser(casing: list[list[str]]) -> Callable[[str], list[str]]:
    from sacremoses import MosesTruecaser

    truecaser = MosesTruecaser()
    best = {forms[0].lower(): forms[0] for forms in casing}
    truecaser.model = {"best": best, "known": set(chain.from_iterable(casing))}

    def truecase(line: str) -> list[str]:
        # use_known, as in Moses' script: inside a sentence, a form that occurred in training text is not changed
        return truecaser.truecase(line, use_known=True)

    return truecase


def _learn_merges(words: Counter[str], corpus: Corpus, options: SubwordOptions) -> str:
    """Return the merges as subword-nmt writes them: a line with the version, then one line per merge.

    ``words`` has the number of occurrences of each word.

    Raises: ValueError if these words give fewer merges than ``options.vocabulary``.
    """
    from subword_nmt.learn_bpe import learn_bpe

    merges = io.StringIO()
    if any(len(word) > 1 for word in words):  # learn_bpe fails if all words have one letter
        with contextlib.redirect_stderr(io.StringIO()):  # hides the progress bar
            learn_bpe([f"{word} {count}" for word, count in words.items()], merges, options.vocabulary, is_dict=True)
    count = max(0, merges.getvalue().count("\n") - 1)
    if count < options.vocabulary:
        raise ValueError(
            f"data.vocabulary={options.vocabulary} is more than the {count:,} merges that the training text of "
            f"{corpus.name} gives; lower it"
        )
    return merges.getvalue()


def _bpe(merges: str, frequent: list[str]) -> Any:
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO(merges), vocab=set(frequent) or None)


def _token_counts(words: Counter[str], bpe: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for token in bpe.segment_tokens([word]):
            counts[token] += count
    return counts


class _MosesBPE:
    def __init__(self, language: str, merges: str, casing: list, frequent: list[str], vocabulary: list[str]) -> None:
        from sacremoses import MosesDetokenizer, MosesDetruecaser

        self._tokenise, self._truecase, self._bpe = _tokeniser(language), _truecaser(casing), _bpe(merges, frequent)
        self._detruecase, self._detokenise = MosesDetruecaser().detruecase, MosesDetokenizer(language).detokenize
        self._tokens = ["", UNKNOWN, "", *vocabulary]
        self._ids = {token: i for i, token in enumerate(vocabulary, FIRST_SUBWORD)}
        self.size = len(self._tokens)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        tokens = (self._bpe.segment_tokens(self._truecase(self._tokenise(line))) for line in lines)
        return [[self._ids.get(token, UNK) for token in line] for line in tokens]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [self._join([self._tokens[i] for i in ids if i not in (PAD, EOS)]) for ids in sequences]

    def _join(self, tokens: list[str]) -> str:
        words = re.sub(r"@@( |$)", "", " ".join(tokens))
        return self._detokenise(self._detruecase(words))


def _load_moses_bpe(model: bytes, corpus: Corpus) -> tuple[Codec, Codec]:
    content = json.loads(model)
    source, target = (
        _MosesBPE(language, content["merges"], **side)
        for language, side in zip((corpus.source, corpus.target), content["sides"], strict=True)
    )
    return source, target


# data.subwords -> (function that learns a model, function that makes the codecs of source and target from the model)
KINDS: dict[str, tuple[Callable[..., bytes], Callable[[bytes, Corpus], tuple[Codec, Codec]]]] = {
    "sentencepiece": (_learn_sentencepiece, _load_sentencepiece),
    "moses_bpe": (_learn_moses_bpe, _load_moses_bpe),
}
