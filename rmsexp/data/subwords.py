"""Learn subwords on the training text, and convert text to subword ids and back.

There are two kinds.

- ``sentencepiece``: byte-pair encoding of raw text, with one model for both languages.
- ``moses_bpe``: as in the paper. Moses' punctuation normalisation, tokenisation and truecasing come first, then
  byte-pair encoding (Sennrich et al. 2016). The merges are learnt on both languages together; each language has its
  own vocabulary.

Deviation: translation at scale=paper, cleaning of the training text
    original: pairs with an empty side, more than 80 words or lengths of a high ratio are removed before truecasing and
        subwords are learnt (wmt17-scripts:training/scripts/preprocess.sh:41-42)
    ours: truecasing and subwords are learnt on all pairs; pairs with an empty side, and for RNNSearch those with more
        than 80 subwords on a side, are left out of training
    why: the paper names no cleaning, and RNNSearch's limit of 80 subwords is the stricter one
    effect: not measured
Deviation: translation at scale=paper, program for Moses' preprocessing
    original: Moses' Perl scripts (wmt17-scripts:training/scripts/preprocess.sh:28-60)
    ours: sacremoses, a port of them to Python. Typographic single quotes become single quotes, as in the scripts since
        November 2019; in older ones they become double quotes. The last period of a line stays with an abbreviation or
        a letter, as in the scripts before November 2018. An apostrophe at the end of an English, French or Italian line
        stays with its word, as in the scripts since August 2014 (`10&apos;`, before that `10 &apos;`). Colons in
        Finnish and Swedish, and apostrophes in Catalan, Irish, Somali and Tetun, are split as in other languages
    why: it needs no Perl and no checkout of Moses
    effect: of 35,017 lines of Multi30k and newstest2014, tokenised lines differ from those of the scripts of 2017 in 0
        English and 5 German lines, and from those of September 2019 in 19 and 30
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rmsexp.data import Report
from rmsexp.data.files import cached, digest_of, key
from rmsexp.data.parallel import SIDES, Corpus, Pairs, in_chunks, in_processes, read_pairs
from rmsexp.system import checks, cores
from rmsexp.system.languages import language

PAD, UNK, EOS = 0, 1, 2  # the first ids of every vocabulary, as in the authors' Transformer toolkit
FIRST_SUBWORD = 3
UNKNOWN = "⁇"  # the text that UNK is decoded to, as in sentencepiece
KINDS = ("sentencepiece", "moses_bpe")
LARGEST_VOCABULARY = 10**9  # sentencepiece takes integers of 32 bits
MOST_PAIRS = 500_000  # from which sentencepiece learns; of longer texts every n-th pair is taken
LONGEST_LINE = 1 << 22  # bytes; sentencepiece ignores longer ones, and by default those of more than 4,192
CHUNK = 50_000  # pairs that a process tokenises or truecases at a time
MOST_CACHED = 100_000  # words of which a process keeps the subwords


class Codec(Protocol):
    """Converts text of a language to ids and back. It can be pickled. ``size``: number of ids, with PAD, UNK, EOS."""

    size: int

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without EOS. A blank line has no ids."""

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return one line of detokenised text for each sequence of ids. PAD and EOS are ignored."""


@dataclass(frozen=True)
class TextOptions:
    """How subwords are learnt, and how text is converted to them.

    ``kind`` is sentencepiece or moses_bpe. ``vocabulary`` is the number of pieces, including PAD, UNK and EOS
    (sentencepiece), or of merges (moses_bpe), for both languages together. ``threshold`` must be 0 with sentencepiece.
    With moses_bpe, a subword that occurs fewer than ``threshold`` times in its language's training text is split into
    shorter ones. ``max_length`` is a number of subwords, without EOS. Training pairs whose source or target is
    longer are left out (``overlong="drop"``) or cut to ``max_length`` (``overlong="cut"``).

    Raises: ValueError for invalid values.
    """

    kind: str
    vocabulary: int
    threshold: int
    max_length: int = 80
    overlong: str = "drop"

    def __post_init__(self) -> None:
        checks.choice("data.subwords", self.kind, KINDS)
        least = FIRST_SUBWORD + 1 if self.kind == "sentencepiece" else 1
        checks.at_least("data.vocabulary", self.vocabulary, least, LARGEST_VOCABULARY)
        checks.at_least("data.threshold", self.threshold, 0)
        if self.threshold and self.kind != "moses_bpe":
            raise ValueError(f"data.threshold must be 0 with data.subwords={self.kind}, got {self.threshold}")
        checks.at_least("data.max_length", self.max_length, 1)
        checks.choice("data.overlong", self.overlong, ("drop", "cut"))


class Learnt(NamedTuple):
    """The codecs of source and target, and a digest of the subwords: other ones would give other token ids."""

    source: Codec
    target: Codec
    digest: str


def learnt(corpus: Corpus, options: TextOptions, root: Path, report: Report) -> Learnt:
    """Return the subwords. They are read from ``<root>/subwords``, or learnt on the training split and stored there.

    Raises: ValueError if ``options.vocabulary`` or ``options.threshold`` does not fit the text, or if the packages for
    moses_bpe are not installed; DataError if the training text cannot be read, or if the result cannot be stored.
    """
    moses, languages = options.kind == "moses_bpe", (corpus.source, corpus.target)
    if moses and not all(map(importlib.util.find_spec, ("sacremoses", "subword_nmt"))):
        raise ValueError('data.subwords=moses_bpe needs sacremoses and subword-nmt: pip install "rmsexp[parity]"')
    chosen = options.kind, options.vocabulary, options.threshold
    folder = root / "subwords" / key(__file__, corpus.digest, languages, *chosen)

    def make(folder: Path) -> None:
        report(f"learning {options.vocabulary:,} subwords (once)")
        if moses:
            _learn_moses(corpus, options, folder, report)
        else:
            pairs = sum(1 for _ in corpus.splits["train"]())
            lines = chain.from_iterable(islice(corpus.splits["train"](), 0, None, -(-pairs // MOST_PAIRS)))
            ids = {"pad_id": PAD, "unk_id": UNK, "eos_id": EOS}
            (folder / "model").write_bytes(learn_pieces(lines, options.vocabulary, corpus.name, **ids))

    def load(folder: Path) -> Learnt:
        if moses:
            source, target = (loaded(folder, *side) for side in zip(SIDES, languages, strict=True))
            return Learnt(source, target, digest_of(sorted(folder.glob("*.json")))[:16])
        codec = _SentencePiece((folder / "model").read_bytes())
        return Learnt(codec, codec, digest_of_pieces(codec.processor))

    return cached(folder, load, make)


def learn_pieces(lines: Iterable[str], vocabulary: int, name: str, **options: Any) -> bytes:
    """Return a model of sentencepiece with ``vocabulary`` pieces, learnt from ``lines``.

    ``name``: the data set's, for messages. ``options``: further ones of sentencepiece.

    Raises: ValueError if the text is empty, has too few different words for as many pieces, or more characters.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            bos_id=-1,
            minloglevel=2,
            max_sentence_length=LONGEST_LINE,
            num_threads=cores.threads(),
            **{"character_coverage": 1.0} | options,
        )
    except RuntimeError as error:
        problem = str(error).strip().rpartition("] ")[2]  # without the place in sentencepiece's own code
        raise ValueError(
            f"data.vocabulary={vocabulary} does not fit the training text of {name}; sentencepiece says: {problem}"
        ) from None
    return model.getvalue()


def load_pieces(model: bytes) -> Any:
    """Return the SentencePieceProcessor of a model. Raises: RuntimeError if the model is damaged."""
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=model)


def digest_of_pieces(processor: Any) -> str:
    """Return a digest, 16 hexadecimal digits, of the pieces of a model, with their ids and scores.

    The model file also has the number of threads with which it was learnt, which differs between machines.
    """
    content = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


class _SentencePiece:
    def __init__(self, model: bytes) -> None:
        self.processor = load_pieces(model)
        self.size: int = self.processor.get_piece_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self.processor.encode(list(lines), num_threads=1)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [self.processor.decode([int(i) for i in ids if i not in (PAD, EOS)]) for ids in sequences]


def _learn_moses(corpus: Corpus, options: TextOptions, folder: Path, report: Report) -> None:
    """Write a file with the merges and the vocabularies, and one with the casing of each side, to ``folder``.

    Raises: ValueError if the text gives too few merges, or if no subword occurs ``options.threshold`` times.
    """
    languages = corpus.source, corpus.target
    tokenised = [folder / f"{side}.txt" for side in SIDES]
    forms: list[Counter[str]] = [Counter(), Counter()]
    chunks, done = in_chunks(corpus.splits["train"](), CHUNK), 0
    for part in in_processes(partial(_tokenise, languages), chunks):
        for path, total, (lines, found) in zip(tokenised, forms, part, strict=True):
            with path.open("a", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
            total.update(found)
        done += len(part[0][0])
        report(f"tokenised {done:,} pairs")
    for side, found in zip(SIDES, forms, strict=True):
        best: dict[str, str] = {}  # sacremoses itself would keep a tuple for each word of the text in memory
        for form, _ in found.most_common():
            best.setdefault(form.lower(), form)
        _write_json(folder / f"{side}_casing.json", {"best": best, "known": list(found)})
    words: list[Counter[str]] = [Counter(), Counter()]
    for counted in in_processes(partial(_count, folder), in_chunks(read_pairs(*tokenised), CHUNK)):
        for total, found in zip(words, counted, strict=True):
            total.update(found)
    for path in tokenised:
        path.unlink()
    report(f"learning {options.vocabulary:,} merges")
    merges = _merges(words[0] + words[1], options.vocabulary, corpus.name)
    sides = []
    for code, counts in zip(languages, words, strict=True):
        frequent = list[str]()
        if options.threshold:
            tokens = _token_counts(counts, _bpe(merges, frequent))
            frequent = sorted(token for token, count in tokens.items() if count >= options.threshold)
            if not frequent:
                raise ValueError(
                    f"data.threshold={options.threshold}: no subword of the {code} training text of "
                    f"{corpus.name} occurs so often; lower it"
                )
        tokens = _token_counts(counts, _bpe(merges, frequent))
        sides.append({"frequent": frequent, "vocabulary": sorted(tokens, key=lambda token: (-tokens[token], token))})
    _write_json(folder / "model.json", {"merges": merges, "sides": sides})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _tokenise(languages: tuple[str, str], pairs: Pairs) -> list[tuple[list[str], Counter[str]]]:
    """Return the tokenised lines of each side, and how often each form of a word occurs inside a sentence."""
    from sacremoses import MosesTruecaser

    truecaser, sides = MosesTruecaser(), []
    for lines, code in zip(pairs, languages, strict=True):
        tokenised = list(map(_tokeniser(code), lines))
        weights = (truecaser.learn_truecase_weights(line.split()) for line in tokenised)
        sides.append((tokenised, Counter(form for line in weights for _, form, _ in line)))  # each weight is 1
    return sides


@lru_cache
def _tokeniser(code: str) -> Callable[[str], str]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normaliser, tokeniser = MosesPunctNormalizer(language(code)), MosesTokenizer(language(code))

    def tokenise(line: str) -> str:
        # a line has its end, as in Moses' script, whose rule for ." needs a character after it
        return tokeniser.tokenize(normaliser.normalize(f"{line}\n"), aggressive_dash_splits=True, return_str=True)

    return tokenise


@lru_cache(maxsize=2)
def _truecaser(path: Path) -> Callable[[str], list[str]]:
    from sacremoses import MosesTruecaser

    truecaser, casing = MosesTruecaser(), json.loads(path.read_text(encoding="utf-8"))
    truecaser.model = {"best": casing["best"], "known": set(casing["known"])}
    # use_known, as in Moses' script: inside a sentence, a form that occurred in training text is not changed
    return partial(truecaser.truecase, use_known=True)


def _count(folder: Path, pairs: Pairs) -> list[Counter[str]]:
    """Return how often each truecased word occurs in tokenised lines of each side."""
    truecasers = (_truecaser(folder / f"{side}_casing.json") for side in SIDES)
    sides = zip(truecasers, pairs, strict=True)
    return [Counter(chain.from_iterable(map(truecase, lines))) for truecase, lines in sides]


def _merges(counts: Counter[str], vocabulary: int, name: str) -> str:
    """Return the merges in the format of subword-nmt: a line with the version, then one line per merge.

    Raises: ValueError if the words of ``counts`` give fewer than ``vocabulary`` merges.
    """
    from subword_nmt.learn_bpe import learn_bpe

    merges = io.StringIO()
    if any(len(word) > 1 for word in counts):  # learn_bpe needs a pair of letters
        with contextlib.redirect_stderr(io.StringIO()):
            learn_bpe((f"{word} {count}" for word, count in counts.items()), merges, vocabulary, is_dict=True)
    found = max(0, merges.getvalue().count("\n") - 1)
    if found < vocabulary:
        raise ValueError(
            f"data.vocabulary={vocabulary} is too large: the training text of {name} gives only {found:,} merges"
        )
    return merges.getvalue()


def _bpe(merges: str, frequent: list[str]) -> Any:
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO(merges), vocab=set(frequent) or None)


def _segmented(words: Iterable[str], bpe: Any) -> list[str]:
    if len(bpe.cache) > MOST_CACHED:
        bpe.cache.clear()
    return bpe.segment_tokens(words)


def _token_counts(words: Counter[str], bpe: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for token in _segmented([word], bpe):
            counts[token] += count
    return counts


class MosesBPE:
    """The codec of a language. ``side`` is one of SIDES; ``folder`` has what :func:`_learn_moses` wrote."""

    def __init__(self, folder: Path, side: str, code: str) -> None:
        from sacremoses import MosesDetokenizer, MosesDetruecaser

        self._place = folder, side, code
        model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        content: Mapping[str, list[str]] = model["sides"][SIDES.index(side)]
        self._bpe = _bpe(model["merges"], content["frequent"])
        self._tokenise, self._truecase = _tokeniser(code), _truecaser(folder / f"{side}_casing.json")
        self._detruecase, self._detokenise = MosesDetruecaser().detruecase, MosesDetokenizer(language(code)).detokenize
        self._tokens = ["", UNKNOWN, "", *content["vocabulary"]]
        self._ids = {token: i for i, token in enumerate(content["vocabulary"], FIRST_SUBWORD)}
        self.size = len(self._tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, self._place  # another process reads the model once

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        tokens = (_segmented(self._truecase(self._tokenise(line)), self._bpe) for line in lines)
        return [[self._ids.get(token, UNK) for token in line] for line in tokens]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        lines = (" ".join(self._tokens[i] for i in ids if i not in (PAD, EOS)) for ids in sequences)
        return [self._detokenise(self._detruecase(re.sub(r"@@( |$)", "", line))) for line in lines]


@lru_cache(maxsize=2)
def loaded(folder: Path, side: str, code: str) -> MosesBPE:
    return MosesBPE(folder, side, code)
