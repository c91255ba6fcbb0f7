"""Argument lists: words that commands know, values that were once misread, and random changes of both."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fuzzing.hostile import CORPUS, NUMBERS, SURROGATES, WORDS

KEYS: list[str] = CORPUS["override_keys"]
LISTS = ("[" * 3000, "[" * 300 + "]" * 300, "{a:" * 300 + "1" + "}" * 300, "(" * 3000)
VALUES = (*NUMBERS, *CORPUS["override_values"], *LISTS, *SURROGATES, "x" * 5000, "y/" * 2000)
FLAGS: dict[str, list[str]] = CORPUS["flags"] | {"sweep": CORPUS["flags"]["run"]}
OVERRIDES = ("run", "sweep", "timing", "prepare", "campaign")  # commands that take KEY=VALUE words
FIRST = {
    "run": ["results=out"],
    "sweep": ["-m", "results=out"],
    "timing": ["results=out"],
    "prepare": ["data.root=data"],
    "campaign": ["quality_cifar10", "results=out"],
}
LONGEST = 120_000  # the kernel limits a word to 128 KiB


def draw(command: str, rng: random.Random) -> list[str]:
    """Return an argument list: the words that the command needs, and a few that it may not expect."""
    if command == "rmsexp":
        names = (*FLAGS, "timin", "help", "-", "--", "1", "x" * 5000, "a\nb")
        chosen = rng.choice(names)
        return [chosen, *draw(chosen if chosen in FLAGS else "run", rng)]
    words = list(FIRST.get(command, ()))
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        words.insert(rng.randrange(len(words) + 1), _word(command, rng))
    if rng.random() < 0.1:
        rng.shuffle(words)
    if rng.random() < 0.2:
        index = rng.randrange(len(words))
        words[index] = _changed(words[index], rng)
    return [word.replace("\0", "")[:LONGEST] for word in words]


def _word(command: str, rng: random.Random) -> str:
    """Return a flag or an override, sometimes with a hostile value."""
    chance = rng.random()
    if command in OVERRIDES and chance < 0.7:
        sign = rng.choice(("", "", "", "", "", "+", "++", "~"))
        return f"{sign}{rng.choice(KEYS)}={rng.choice(VALUES)}"
    if chance < 0.9:
        return rng.choice(FLAGS[command])
    return rng.choice((*VALUES, *WORDS))


def _changed(word: str, rng: random.Random) -> str:
    """Return a word with a character removed, exchanged, repeated or inserted."""
    if not word:
        return rng.choice(VALUES)
    index = rng.randrange(len(word))
    signs: Sequence[str] = "=,[]{}()$'\"\\:@~+-*# \t\nxX0.\u2028\u0660😀"
    match rng.randrange(4):
        case 0:
            return word[:index] + word[index + 1 :]
        case 1:
            return word[:index] + rng.choice(signs) + word[index + 1 :]
        case 2:
            return word[:index] + word[index] * rng.choice((2, 50)) + word[index:]
        case _:
            return word[:index] + rng.choice(signs) + word[index:]
