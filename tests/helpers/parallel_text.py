"""A small parallel corpus in English and German, with punctuation that tokenisers treat differently."""

import gzip
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rmsexp.data.parallel import Corpus, Pairs

ADJECTIVES = ["old:alte", "young:junge", "small:kleine", "red:rote", "quiet:stille"]
NOUNS = ["sailor:Seefahrt", "gate:Gartentür", "street:Straße", "night:Nacht", "bridge:Brücke"]
VERBS = ["sees:sieht", "finds:findet", "leaves:verlässt"]


def phrases() -> Pairs:
    """Return 225 sentence pairs. A quarter have a second part: quoted after a full stop, or after a dash."""
    pairs: Pairs = ([], [])
    for number, words in enumerate(itertools.product(ADJECTIVES, NOUNS, VERBS, NOUNS[:3])):
        for side, lines in enumerate(pairs):
            adjective, noun, verb, second_noun = (word.split(":")[side] for word in words)
            article = ("the", "die")[side]
            line = f"{article.capitalize()} {adjective} {noun} {verb} {article} {second_noun}"
            ends = [f'. "{line}, too"!', f" \u2013 {article} well-known {second_noun} & {noun}.", *["."] * 6]
            lines.append(line + ends[number % 8])
    return pairs


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def corpus(splits: Mapping[str, Pairs], digest: str = "a") -> Corpus:
    readers = {split: partial(zip, *pairs) for split, pairs in splits.items()}
    return Corpus("phrases en-de", digest, True, "en", "de", readers)
