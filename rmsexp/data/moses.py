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
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rmsexp.data import Report
from rmsexp.data.codec import EOS, FIRST_SUBWORD, PAD, UNK, UNKNOWN
from rmsexp.data.files import digest_of
from rmsexp.data.parallel import SIDES, Corpus, Pairs, in_chunks
from rmsexp.data.workers import in_processes
from rmsexp.system.languages import language

CHUNK = 50_000  # pairs that a process tokenises at a time, or lines that it truecases
MOST_CACHED = 100_000  # words of which a process keeps the subwords


def learn(corpus: Corpus, vocabulary: int, threshold: int, folder: Path, report: Report) -> None:
    """Write a file with the merges and the vocabularies, and one with the casing of each side, to ``folder``.

    ``vocabulary`` is the number of merges. A subword that occurs fewer than ``threshold`` times in its language's
    training text is split into shorter ones.

    Raises: ValueError if the text gives fewer merges, or if no subword occurs ``threshold`` times.
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
        _write_json(folder / f"{side}_casing.json", _casing(found))
    words: list[Counter[str]] = [Counter(), Counter()]
    for number, counts in in_processes(partial(_count, folder), _in_chunks(tokenised)):
        words[number].update(counts)
    for path in tokenised:
        path.unlink()
    report(f"learning {vocabulary:,} merges")
    merges = _merges(words[0] + words[1], vocabulary, corpus.name)
    sides = []
    for code, counts in zip(languages, words, strict=True):
        frequent = list[str]()
        if threshold:
            tokens = _token_counts(counts, _bpe(merges, frequent))
            frequent = sorted(token for token, count in tokens.items() if count >= threshold)
            if not frequent:
                raise ValueError(
                    f"data.threshold={threshold}: no subword of the {code} training text of "
                    f"{corpus.name} occurs so often; lower it"
                )
        tokens = _token_counts(counts, _bpe(merges, frequent))
        sides.append({"frequent": frequent, "vocabulary": sorted(tokens, key=lambda token: (-tokens[token], token))})
    _write_json(folder / "model.json", {"merges": merges, "sides": sides})


def digest(folder: Path) -> str:
    """Return a digest of what :func:`learn` wrote."""
    return digest_of(sorted(folder.glob("*.json")))[:16]


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


def _casing(forms: Counter[str]) -> dict[str, Any]:
    """Return the model of sacremoses' truecaser: the most frequent form of each word in lower case, and all forms.

    sacremoses itself would keep a tuple for each word of the text in memory.
    """
    best: dict[str, str] = {}
    for form, _ in forms.most_common():
        best.setdefault(form.lower(), form)
    return {"best": best, "known": list(forms)}


@lru_cache(maxsize=2)
def _truecaser(path: Path) -> Callable[[str], list[str]]:
    from sacremoses import MosesTruecaser

    truecaser, casing = MosesTruecaser(), _read_json(path)
    truecaser.model = {"best": casing["best"], "known": set(casing["known"])}
    # use_known, as in Moses' script: inside a sentence, a form that occurred in training text is not changed
    return partial(truecaser.truecase, use_known=True)


def _in_chunks(files: Sequence[Path]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of a file and some of its lines."""
    for number, path in enumerate(files):
        with path.open(encoding="utf-8", newline="\n") as file:
            while lines := list(islice(file, CHUNK)):
                yield number, lines


def _count(folder: Path, part: tuple[int, list[str]]) -> tuple[int, Counter[str]]:
    """Return the number of a side, and how often each truecased word occurs in some of its lines."""
    number, lines = part
    return number, Counter(chain.from_iterable(map(_truecaser(folder / f"{SIDES[number]}_casing.json"), lines)))


def _merges(counts: Counter[str], vocabulary: int, name: str) -> str:
    """Return the merges in the format of subword-nmt: a line with the version, then one line per merge.

    Raises: ValueError if the words of ``counts``, those of the corpus ``name``, give fewer than ``vocabulary``.
    """
    from subword_nmt.learn_bpe import learn_bpe

    merges = io.StringIO()
    if any(len(word) > 1 for word in counts):  # learn_bpe needs a pair of letters
        with contextlib.redirect_stderr(io.StringIO()):
            learn_bpe((f"{word} {count}" for word, count in counts.items()), merges, vocabulary, is_dict=True)
    found = max(0, merges.getvalue().count("\n") - 1)
    if found < vocabulary:
        raise ValueError(
            f"data.vocabulary={vocabulary} is more than the {found:,} merges that the training text of "
            f"{name} gives; lower it"
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
        model = _read_json(folder / "model.json")
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
        return [self._join([self._tokens[i] for i in ids if i not in (PAD, EOS)]) for ids in sequences]

    def _join(self, tokens: list[str]) -> str:
        words = re.sub(r"@@( |$)", "", " ".join(tokens))
        return self._detokenise(self._detruecase(words))


@lru_cache(maxsize=2)
def loaded(folder: Path, side: str, code: str) -> MosesBPE:
    return MosesBPE(folder, side, code)
