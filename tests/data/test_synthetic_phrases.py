"""Synthetic parallel text: one translation per source, every phenomenon of the grammar, and separate splits."""

from __future__ import annotations

import re
from itertools import product

import pytest

from rmsexp.data.pairs import Pairs
from rmsexp.data.parallel import Corpus
from rmsexp.data.synthetic import lexicon
from rmsexp.data.synthetic.phrases import Phrase, Predicate, Sentence, phrases, render_source, render_target

SPLITS = ("train", "valid", "test")
DOG = Phrase("the", "dog")
# phenomenon -> (pattern of the source, pattern of the target); a pair that matches both has the phenomenon
PATTERNS = {
    "question": (r"\?$", r"\?$"),
    "subordinate clause": (r" because ", r", weil .* \w+\.$"),
    "relative clause": (r"^(The|This|A|An|No|Every) (\w+ )?\w+ that ", r", (der|die|das) .*, "),
    "participle before the noun": (r"^A \w+ing |ing (the|a|no|two|these|this) ", r"\w+ende[nrs]? "),
    "fronted adverb": (r" at night\.$", r"^Nachts "),
    "separable prefix": (r" (calls?|invites?) [^?]*\.$", r" (an|ein)\.$"),
    "perfect": (r"^[^?]* (has|have) ", r" (hat|haben) .*\w+(t|en)\b"),
    "to eat, of animals": (r"(dog|bird|cat|duck|horse|pig)s? .*\beat", r"fr[ei]ss"),
    "light in colour": (r" light (\w+ )?(door|gate|window|lamp|bed|table)", r" helle[nrs]? "),
    "to know that": (r"^[^?]* knows? that ", r" (weiß|wissen), dass "),
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return phrases()


@pytest.fixture(scope="module")
def text(corpus: Corpus) -> dict[str, Pairs]:
    return {name: corpus.text(name) for name in SPLITS}


def compounds(lines: list[str]) -> set[tuple[str, str]]:
    """Return the compounds in English sentences as pairs (modifier, head), with the head in the singular."""
    heads = {form: head for head in lexicon.HEADS for form in (head, lexicon.NOUNS[head].plural)}
    compound = re.compile(rf"\b({'|'.join(lexicon.MODIFIERS)}) ({'|'.join(heads)})\b")
    return {(modifier, heads[head]) for line in lines for modifier, head in compound.findall(line)}


@pytest.mark.parametrize("phenomenon", PATTERNS)
def test_phenomenon_occurs_in_every_split(phenomenon: str, text: dict[str, Pairs]) -> None:
    source_pattern, target_pattern = map(re.compile, PATTERNS[phenomenon])
    for name, least in (("train", 30), ("test", 1)):
        matches = [source_pattern.search(s) and target_pattern.search(t) for s, t in zip(*text[name], strict=True)]
        assert sum(map(bool, matches)) >= least


def test_names_splits_and_sizes(corpus: Corpus, text: dict[str, Pairs]) -> None:
    assert (corpus.name, corpus.builtin, corpus.source, corpus.target) == ("phrases", True, "en", "de")
    assert set(corpus.splits) == set(SPLITS)
    for name, count in (("train", 6000), ("valid", 200), ("test", 200)):
        assert [len(lines) for lines in text[name]] == [count, count]


def test_text_depends_on_the_seed_only(corpus: Corpus) -> None:
    small = phrases(n_train=30, n_valid=10, n_test=10)
    assert small.digest == phrases(n_train=30, n_valid=10, n_test=10).digest
    assert small.digest != corpus.digest
    assert small.digest != phrases(n_train=30, n_valid=10, n_test=10, seed=1).digest
    assert small.text("valid") == tuple(lines[:10] for lines in corpus.text("valid"))


def test_text_is_the_same_everywhere(corpus: Corpus) -> None:
    """The text has the recorded digest, which must not depend on the processor or on numpy's version."""
    assert corpus.digest == "9aab86563c78edc4212a3887cf0c02a3e1820c1b007a652def53e78e46db7558"


def test_splits_share_no_sentence(text: dict[str, Pairs]) -> None:
    sources = [source for name in SPLITS for source in text[name][0]]
    assert len(set(sources)) == len(sources) == 6400


def test_target_is_determined_by_the_source() -> None:
    """Each of more than 5,000 English sentences, from many combinations of the grammar's parts, has one translation."""
    adverbs, numbers, tenses = ("", "today"), (False, True), ("present", "perfect", "future", "progressive")
    targets: dict[str, set[str]] = {}
    for verb, tense, plural, adverb, question, conjunction in product(
        lexicon.VERBS, tenses[:3], numbers, adverbs, numbers, ("", *lexicon.CONJUNCTIONS)
    ):
        kinds = lexicon.VERBS[verb].objects.split()
        objects = [Phrase("the", lexicon.NOUNS_OF_KIND[kind][0]) for kind in kinds] or [None]
        clauses = [(DOG, Predicate("sleep", tense, None, adverb))] if conjunction else [None]
        for direct_object, clause, attribute_tense in product(objects, clauses, (None, *tenses)):
            attribute = Predicate(verb, attribute_tense, direct_object) if attribute_tense else None
            subject = Phrase("the", "cat", plural, attribute=attribute)
            predicate = Predicate(verb, tense, direct_object, "" if clause else adverb)
            sentence = Sentence(subject, predicate, question, conjunction, clause)
            targets.setdefault(render_source(sentence), set()).add(render_target(sentence))
    assert len(targets) > 5000
    assert all(len(translations) == 1 for translations in targets.values())


def test_held_out_compounds_do_not_occur_in_training_text(text: dict[str, Pairs]) -> None:
    train = compounds(text["train"][0])
    assert train.isdisjoint(lexicon.HELD_OUT)
    assert {modifier for modifier, _ in train} == set(lexicon.MODIFIERS)
    assert {head for _, head in train} == set(lexicon.HEADS)
    for name in ("valid", "test"):
        new = compounds(text[name][0]) - train
        assert len(new) >= 8
        assert new <= lexicon.HELD_OUT
        forms = {
            lexicon.MODIFIERS[modifier] + word.lower()
            for modifier, head in new
            for word in (lexicon.NOUNS[head].target, lexicon.NOUNS[head].target_plural)
        }
        assert sum(any(word.strip(",.?") in forms for word in line.split()) for line in text[name][1]) >= 8


def test_held_out_text_does_not_depend_on_the_amount_of_training_text() -> None:
    few, many = phrases(n_train=5), phrases(n_train=50)
    assert few.text("test") == many.text("test")
    assert few.text("train")[0] == many.text("train")[0][:5]
