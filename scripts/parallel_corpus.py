"""Write a synthetic parallel corpus of any size, with the lengths and the growing vocabulary of WMT14's training text.

    python scripts/parallel_corpus.py FOLDER --pairs 4500000

Writes FOLDER/{train,valid,test}.{en,de}; valid and test have 3,000 pairs each. A smaller corpus is the beginning of a
larger one. The sides are not translations of each other: the corpus is for measuring preparation, not for training.

- Sentence lengths are log-normal, with the means of WMT14 (116 and 110 million words in 4.5 million pairs, Luong et al.
  2015), and at most 100 words.
- The number of word types grows as Heaps' law says, V(n) = K n^beta in n words: to 0.5 million English and 1 million
  German ones in 4.5 million pairs. Where V(n) grows by 1, word n is a new one. Otherwise it has rank r with a
  probability proportional to 1 / r (Zipf's law), up to rank V(n).
- Words are made of syllables. Some are numbers, some have capital letters, and some are followed by punctuation.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

CHUNK = 50_000  # pairs drawn at a time
HELD_OUT = 3000  # pairs in valid and in test
LONGEST = 100  # words of a line
SPREAD, RATIO_SPREAD = 0.65, 0.2  # standard deviation of the logarithm of lengths, and of the ratio of both sides
RATIO = 110 / 116  # German words for each English one
MEAN = 26.0  # words of an English line before lines are cut to LONGEST
COMMA, QUESTION = 0.05, 0.05  # shares of words followed by a comma, and of lines that end in a question mark
NUMBERS = 40  # one word type in so many is a number
VOWELS = ("a", "e", "i", "o", "u", "ei", "au", "ie")
ENDINGS = ("", "n", "r", "s", "t", "l", "m", "ng", "st", "ch")  # of consonants, so that no two ranks have one spelling


@dataclass(frozen=True)
class Language:
    """How many word types a language has, ``scale * words ** exponent``, and what they look like.

    ``capitals``: one word type in so many begins with a capital letter.
    """

    code: str
    scale: float
    exponent: float
    onsets: tuple[str, ...]
    capitals: int

    @cached_property
    def syllables(self) -> list[str]:
        return [onset + vowel for onset in self.onsets for vowel in VOWELS]

    def types(self, words: np.ndarray) -> np.ndarray:
        """Return the number of word types among the first ``words`` words, int64, elementwise."""
        return np.minimum(self.scale * words**self.exponent, words).astype(np.int64)

    @cached_property
    def words(self) -> list[str]:
        """The word types so far, by rank; rank 0 does not occur."""
        return []

    def named(self, ranks: np.ndarray) -> list[str]:
        """Return the word types with these ranks."""
        self.words.extend(map(self.word, range(len(self.words), int(ranks.max()) + 1)))
        return [self.words[rank] for rank in ranks.tolist()]

    def word(self, rank: int) -> str:
        """Return the word type with a rank, from 1. Each has another spelling."""
        if rank % NUMBERS == 0:
            return str(rank)
        rest, ending = divmod(rank, len(ENDINGS))
        syllables = []
        while rest >= 0:  # digits of a bijective numeral, so that leading syllables count
            rest, digit = divmod(rest, len(self.syllables))
            syllables.append(self.syllables[digit])
            rest -= 1
        word = "".join(syllables) + ENDINGS[ending]
        return word.capitalize() if rank % self.capitals == 0 else word


ENGLISH = Language("en", 18.35, 0.55, (*"bcdfghlmnprstw", "th", "sh", "st", "tr", "br", "pl"), 8)
GERMAN = Language("de", 14.96, 0.60, ("b", "d", "f", "g", "k", "l", "m", "n", "sch", "zw"), 3)


def lines(language: Language, lengths: np.ndarray, before: int, rng: np.random.Generator) -> list[str]:
    """Return lines of these ``lengths`` in words, which follow ``before`` words of the corpus."""
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    types = language.types(np.arange(before, before + total + 1, dtype=float))
    grown = np.diff(types) > 0
    ranks = np.where(grown, types[1:], (types[1:] + 1) ** rng.random(total)).astype(np.int64)
    words = language.named(ranks)
    for place in np.flatnonzero(rng.random(total) < COMMA).tolist():
        words[place] += ","
    found, start = [], 0
    for end, asks in zip(ends.tolist(), rng.random(len(ends)) < QUESTION, strict=True):
        line = " ".join(words[start:end]).removesuffix(",") + ("?" if asks else ".")
        found.append(line[:1].upper() + line[1:])
        start = end
    return found


def chunks(pairs: int, seed: int, before: int = 0) -> Iterator[tuple[list[str], list[str]]]:
    """Yield ``pairs`` pairs of lines, CHUNK at a time, as if ``before`` words of each language came before them."""
    counts = [before, before]
    for number, start in enumerate(range(0, pairs, CHUNK)):
        rng = np.random.default_rng((seed, number))
        english = rng.lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, CHUNK)
        german = RATIO * english * rng.lognormal(-(RATIO_SPREAD**2) / 2, RATIO_SPREAD, CHUNK)
        sides = []
        for place, (language, sizes) in enumerate(((ENGLISH, english), (GERMAN, german))):
            lengths = np.clip(sizes.round().astype(np.int64), 1, LONGEST)
            sides.append(lines(language, lengths, counts[place], rng)[: pairs - start])
            counts[place] += int(lengths.sum())
        yield sides[0], sides[1]


def write(folder: Path, pairs: int) -> None:
    """Write the corpus to a folder, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = round(4.5e6 * 116 / 4.5)  # words before held-out text, which has the ranks of the whole corpus
    for seed, (split, count, before) in enumerate(
        (("train", pairs, 0), ("valid", HELD_OUT, whole), ("test", HELD_OUT, whole))
    ):
        paths = [folder / f"{split}.{language.code}" for language in (ENGLISH, GERMAN)]
        with paths[0].open("w", encoding="utf-8") as english, paths[1].open("w", encoding="utf-8") as german:
            for sources, targets in chunks(count, seed, before):
                english.writelines(f"{line}\n" for line in sources)
                german.writelines(f"{line}\n" for line in targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=4_500_000, help="number of training pairs (4500000)")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.pairs)


if __name__ == "__main__":
    main()
