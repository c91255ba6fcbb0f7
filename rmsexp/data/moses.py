"""Subwords as in the paper: Moses' tokenisation and truecasing, then byte-pair encoding (Sennrich et al. 2016).

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

Training text is read in parts, which several processes tokenise and count. What each of them found is stored, so a
killed computation goes on after the stored parts. Truecasing has an entry for each word of the training text; it is
kept in a file (SQLite) and not in memory, because every process needs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from rmsexp.data import Report
from rmsexp.data.cache import cached
from rmsexp.data.codec import EOS, FIRST_SUBWORD, PAD, UNK, UNKNOWN
from rmsexp.data.pairs import SIDES, Pairs, in_chunks
from rmsexp.data.parallel import Corpus
from rmsexp.data.parts import processes, stored
from rmsexp.system.languages import language

CHUNK = 50_000  # pairs that a process tokenises at a time
MOST_CACHED = 100_000  # words of which a process keeps the truecased forms, and the subwords


def learn(
    corpus: Corpus, pairs: int, vocabulary: int, threshold: int, work: Path, folder: Path, report: Report
) -> None:
    """Write ``model`` and a file with the casing of each side to ``folder``.

    ``pairs`` is the number of training pairs, ``vocabulary`` that of merges. A subword that occurs fewer than
    ``threshold`` times in its language's training text is split into shorter ones. ``work`` is the folder for parts.

    Raises: ValueError if the text gives fewer merges, or if no subword occurs ``threshold`` times.
    """
    languages = corpus.source, corpus.target
    chunks, parallel = in_chunks(corpus.splits["train"](), CHUNK), processes(-(-pairs // CHUNK))
    tokenised = []
    for part in stored(work / "tokenised", partial(_tokenise, languages), chunks, parallel, report):
        tokenised.append(part)
        report(f"tokenised {min(len(tokenised) * CHUNK, pairs):,} of {pairs:,} pairs")
    counted = {}
    for side in SIDES:
        forms = [part / f"{side}_forms.json" for part in tokenised]
        casing = cached(work / f"{side}_casing", Path, partial(_write_casing, forms), report) / "casing"
        shutil.copyfile(casing, folder / f"{side}_casing")
        parts = stored(work / f"{side}_words", partial(_count, casing, side), tokenised, parallel, report)
        counted[side] = [part / "words.json" for part in parts]
    report(f"learning {vocabulary:,} merges")
    make = partial(_write_merges, list(chain.from_iterable(counted.values())), vocabulary, corpus.name)
    learnt = cached(work / f"{vocabulary}_merges", _read_merges, make, report)
    sides = []
    for side, code in zip(SIDES, languages, strict=True):
        words, frequent = _summed(counted[side]), list[str]()
        if threshold:
            counts = _token_counts(words, _bpe(learnt, frequent))
            frequent = sorted(token for token, count in counts.items() if count >= threshold)
            if not frequent:
                raise ValueError(
                    f"data.threshold={threshold}: no subword of the {code} training text of "
                    f"{corpus.name} occurs so often; lower it"
                )
        counts = _token_counts(words, _bpe(learnt, frequent))
        sides.append({"frequent": frequent, "vocabulary": sorted(counts, key=lambda token: (-counts[token], token))})
    _write_json(folder / "model", {"merges": learnt, "sides": sides})


def _tokenise(languages: tuple[str, str], pairs: Pairs, folder: Path) -> None:
    """Store the tokenised lines of each side, and how often each form of a word occurs inside a sentence."""
    from sacremoses import MosesTruecaser

    truecaser = MosesTruecaser()
    for side, lines, code in zip(SIDES, pairs, languages, strict=True):
        tokenised = list(map(_tokeniser(code), lines))
        weights = (truecaser.learn_truecase_weights(line.split()) for line in tokenised)
        forms = Counter(form for line in weights for _, form, _ in line)  # each weight is 1
        _write_json(folder / f"{side}.json", tokenised)
        _write_json(folder / f"{side}_forms.json", forms)


@lru_cache
def _tokeniser(code: str) -> Callable[[str], str]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normaliser, tokeniser = MosesPunctNormalizer(language(code)), MosesTokenizer(language(code))

    def tokenise(line: str) -> str:
        # a line has its end, as in Moses' script, whose rule for ." needs a character after it
        return tokeniser.tokenize(normaliser.normalize(f"{line}\n"), aggressive_dash_splits=True, return_str=True)

    return tokenise


def _write_casing(files: Sequence[Path], folder: Path) -> None:
    """Write a table of the words that occur inside a sentence: in lower case, and their forms, the most frequent first.

    ``files`` have the numbers of occurrences of the forms, in the order in which they occur.
    """
    counts, forms = _summed(files), dict[str, list[str]]()
    for form in counts:
        forms.setdefault(form.lower(), []).append(form)
    rows = ((word, json.dumps(sorted(forms[word], key=counts.__getitem__, reverse=True))) for word in sorted(forms))
    with contextlib.closing(sqlite3.connect(folder / "casing")) as table:
        table.execute("CREATE TABLE casing (word TEXT PRIMARY KEY, forms TEXT) WITHOUT ROWID")
        table.executemany("INSERT INTO casing VALUES (?, ?)", rows)
        table.commit()


def digest(folder: Path) -> str:
    """Return a digest of what :func:`learn` wrote, which is the same with all versions of SQLite."""
    found = hashlib.sha256((folder / "model").read_bytes())
    for side in SIDES:
        with contextlib.closing(_opened(folder / f"{side}_casing")) as table:
            for row in table.execute("SELECT word, forms FROM casing ORDER BY word"):
                found.update(repr(row).encode())
    return found.hexdigest()[:16]


def _opened(casing: Path) -> sqlite3.Connection:
    address = f"{casing.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True, check_same_thread=False)


class _Casing:
    """Both mappings of sacremoses' truecaser, best and known, from a table that :func:`_write_casing` wrote."""

    def __init__(self, path: Path) -> None:
        self._table = _opened(path)
        self._forms = lru_cache(MOST_CACHED)(self._read)

    def get(self, word: str, default: str | None = None) -> str | None:
        forms = self._forms(word)
        return forms[0] if forms else default

    def __contains__(self, form: str) -> bool:
        return form in self._forms(form.lower())

    def _read(self, word: str) -> list[str]:
        row = self._table.execute("SELECT forms FROM casing WHERE word = ?", (word,)).fetchone()
        return json.loads(row[0]) if row else []


@lru_cache(maxsize=2)
def _truecaser(path: Path) -> Callable[[str], list[str]]:
    from sacremoses import MosesTruecaser

    truecaser, casing = MosesTruecaser(), _Casing(path)
    truecaser.model = {"best": casing, "known": casing}

    def truecase(line: str) -> list[str]:
        # use_known, as in Moses' script: inside a sentence, a form that occurred in training text is not changed
        return truecaser.truecase(line, use_known=True)

    return truecase


def _count(casing: Path, side: str, tokenised: Path, folder: Path) -> None:
    """Store the number of occurrences of each truecased word of a part."""
    lines = _read_json(tokenised / f"{side}.json")
    _write_json(folder / "words.json", Counter(chain.from_iterable(map(_truecaser(casing), lines))))


def _write_merges(files: Sequence[Path], vocabulary: int, name: str, folder: Path) -> None:
    """Write the merges as subword-nmt does: a line with the version, then one line per merge.

    ``files`` have the numbers of occurrences of the words. ``name`` is the corpus.

    Raises: ValueError if these words give fewer merges than ``vocabulary``.
    """
    from subword_nmt.learn_bpe import learn_bpe

    learnt, counts = io.StringIO(), _summed(files)
    if any(len(word) > 1 for word in counts):  # learn_bpe needs a pair of letters
        lines = (f"{word} {count}" for word, count in counts.items())
        del counts  # learn_bpe makes a table of its own; this one is freed after its last line
        with contextlib.redirect_stderr(io.StringIO()):
            learn_bpe(lines, learnt, vocabulary, is_dict=True)
    found = max(0, learnt.getvalue().count("\n") - 1)
    if found < vocabulary:
        raise ValueError(
            f"data.vocabulary={vocabulary} is more than the {found:,} merges that the training text of "
            f"{name} gives; lower it"
        )
    (folder / "merges").write_text(learnt.getvalue(), encoding="utf-8", newline="\n")


def _read_merges(folder: Path) -> str:
    with (folder / "merges").open(encoding="utf-8", newline="\n") as file:
        return file.read()


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


def _summed(files: Iterable[Path]) -> Counter[str]:
    total: Counter[str] = Counter()
    for path in files:
        total.update(_read_json(path))
    return total


def _write_json(path: Path, value: object) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)


def _read_json(path: Path) -> Any:
    with path.open(encoding="utf-8") as file:
        return json.load(file)


class MosesBPE:
    """The codec of a language. ``side`` is one of SIDES; ``folder`` has what :func:`learn` wrote."""

    def __init__(self, folder: Path, side: str, code: str) -> None:
        from sacremoses import MosesDetokenizer, MosesDetruecaser

        self._place = folder, side, code
        model = _read_json(folder / "model")
        content: Mapping[str, list[str]] = model["sides"][SIDES.index(side)]
        self._bpe = _bpe(model["merges"], content["frequent"])
        self._tokenise, self._truecase = _tokeniser(code), _truecaser(folder / f"{side}_casing")
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
        return [self._join([self._tokens[i] for i in ids if i not in (PAD, EOS)]) for ids in sequences]

    def _join(self, tokens: list[str]) -> str:
        words = re.sub(r"@@( |$)", "", " ".join(tokens))
        return self._detokenise(self._detruecase(words))


@lru_cache(maxsize=2)
def loaded(folder: Path, side: str, code: str) -> MosesBPE:
    return MosesBPE(folder, side, code)
