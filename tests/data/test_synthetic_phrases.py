"""Synthetic parallel text: one translation per source, every phenomenon of the grammar, and separate splits."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from rmsexp.data.pairs import Pairs
from rmsexp.data.parallel import Corpus
from rmsexp.data.synthetic import lexicon
from rmsexp.data.synthetic.phrases import Phrase, Predicate, Sentence, phrases, render_source, render_target

SPLITS = ("train", "valid", "test")
DOG, WOMAN = Phrase("the", "dog"), Phrase("the", "woman")
DOGS, WOMEN = Phrase("two", "dog", plural=True), Phrase("these", "woman", plural=True)
CHILD, CAKE = Phrase("a", "child"), Phrase("the", "cake")
SEES, SLEEPS = Predicate("see", "present", CAKE), Predicate("sleep", "present")

EXAMPLES = {
    "an adjective follows gender and case": [
        (
            Sentence(
                Phrase("a", "baker", adjective="old"), Predicate("see", "present", Phrase("a", "dog", adjective="old"))
            ),
            "An old baker sees an old dog.",
            "Ein alter Bäcker sieht einen alten Hund.",
        ),
        (
            Sentence(Phrase("this", "girl", adjective="small"), Predicate("see", "present", Phrase("no", "cat"))),
            "This small girl sees no cat.",
            "Dieses kleine Mädchen sieht keine Katze.",
        ),
    ],
    "a verb and an adjective follow number": [
        (
            Sentence(
                Phrase("two", "girl", True, "new"), Predicate("find", "future", Phrase("the", "pear", True, "red"))
            ),
            "Two new girls will find the red pears.",
            "Zwei neue Mädchen werden die roten Birnen finden.",
        ),
        (
            Sentence(Phrase("every", "girl", adjective="new"), Predicate("find", "future", Phrase("the", "pear"))),
            "Every new girl will find the pear.",
            "Jedes neue Mädchen wird die Birne finden.",
        ),
        (
            Sentence(Phrase("no", "girl", True, "new"), Predicate("find", "present", Phrase("the", "pear"))),
            "No new girls find the pear.",
            "Keine neuen Mädchen finden die Birne.",
        ),
    ],
    "participle and infinitive close the clause": [
        (
            Sentence(WOMAN, Predicate("see", "perfect", CAKE)),
            "The woman has seen the cake.",
            "Die Frau hat den Kuchen gesehen.",
        ),
        (
            Sentence(WOMEN, Predicate("see", "future", CAKE)),
            "These women will see the cake.",
            "Diese Frauen werden den Kuchen sehen.",
        ),
    ],
    "a separable prefix closes the clause": [
        (
            Sentence(WOMAN, Predicate("call", "perfect", DOG)),
            "The woman has called the dog.",
            "Die Frau hat den Hund angerufen.",
        ),
        (
            Sentence(CHILD, Predicate("hope", "present"), False, "that", (WOMAN, Predicate("call", "present", DOG))),
            "A child hopes that the woman calls the dog.",
            "Ein Kind hofft, dass die Frau den Hund anruft.",
        ),
    ],
    "the verb of a subordinate clause is last": [
        (
            Sentence(CHILD, Predicate("say", "perfect"), False, "that", (WOMEN, Predicate("see", "perfect", CAKE))),
            "A child has said that these women have seen the cake.",
            "Ein Kind hat gesagt, dass diese Frauen den Kuchen gesehen haben.",
        ),
        (
            Sentence(DOGS, SLEEPS, False, "because", (WOMAN, Predicate("see", "present", CAKE, "today"))),
            "Two dogs sleep because the woman sees the cake today.",
            "Zwei Hunde schlafen, weil die Frau heute den Kuchen sieht.",
        ),
    ],
    "a relative clause: its pronoun, verb and commas": [
        (
            Sentence(Phrase("the", "child", attribute=SEES), SLEEPS),
            "The child that sees the cake sleeps.",
            "Das Kind, das den Kuchen sieht, schläft.",
        ),
        (
            Sentence(Phrase("the", "dog", True, attribute=Predicate("eat", "perfect", CAKE)), SLEEPS, True),
            "Do the dogs that have eaten the cake sleep?",
            "Schlafen die Hunde, die den Kuchen gefressen haben?",
        ),
    ],
    "a participle moves before the noun with its object": [
        (
            Sentence(Phrase("a", "cat", False, "old", "", Predicate("eat", "progressive", CAKE)), SLEEPS),
            "An old cat eating the cake sleeps.",
            "Eine den Kuchen fressende alte Katze schläft.",
        ),
        (
            Sentence(Phrase("the", "girl", True, attribute=Predicate("call", "progressive", DOG)), SLEEPS),
            "The girls calling the dog sleep.",
            "Die den Hund anrufenden Mädchen schlafen.",
        ),
    ],
    "questions and a fronted adverb invert": [
        (Sentence(WOMAN, SEES, question=True), "Does the woman see the cake?", "Sieht die Frau den Kuchen?"),
        (
            Sentence(WOMAN, Predicate("call", "present", DOG, "at night")),
            "The woman calls the dog at night.",
            "Nachts ruft die Frau den Hund an.",
        ),
        (
            Sentence(WOMEN, Predicate("see", "perfect", CAKE, "here"), question=True),
            "Have these women seen the cake here?",
            "Haben diese Frauen hier den Kuchen gesehen?",
        ),
    ],
    "two nouns become one": [
        (
            Sentence(WOMAN, Predicate("find", "present", Phrase("a", "gate", False, "old", "garden"))),
            "The woman finds an old garden gate.",
            "Die Frau findet ein altes Gartentor.",
        ),
        (
            Sentence(WOMAN, Predicate("find", "present", Phrase("the", "shoe", True, modifier="wedding"))),
            "The woman finds the wedding shoes.",
            "Die Frau findet die Hochzeitsschuhe.",
        ),
    ],
    "a word depends on another one": [
        (Sentence(WOMAN, Predicate("eat", "present", CAKE)), "The woman eats the cake.", "Die Frau isst den Kuchen."),
        (Sentence(DOG, Predicate("eat", "present", CAKE)), "The dog eats the cake.", "Der Hund frisst den Kuchen."),
        (Sentence(WOMAN, Predicate("paint", "present", DOG)), "The woman paints the dog.", "Die Frau malt den Hund."),
        (
            Sentence(WOMAN, Predicate("paint", "present", Phrase("a", "door", adjective="light"))),
            "The woman paints a light door.",
            "Die Frau streicht eine helle Tür.",
        ),
        (
            Sentence(WOMAN, Predicate("know", "present", Phrase("a", "bag", adjective="light"))),
            "The woman knows a light bag.",
            "Die Frau kennt eine leichte Tasche.",
        ),
        (
            Sentence(WOMAN, Predicate("know", "present"), False, "that", (DOG, SLEEPS)),
            "The woman knows that the dog sleeps.",
            "Die Frau weiß, dass der Hund schläft.",
        ),
    ],
}
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


@pytest.mark.parametrize("phenomenon", EXAMPLES)
def test_grammar(phenomenon: str) -> None:
    for sentence, source, target in EXAMPLES[phenomenon]:
        assert (render_source(sentence), render_target(sentence)) == (source, target)


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


def test_lines_have_words_and_a_final_mark(text: dict[str, Pairs]) -> None:
    for sources, targets in text.values():
        for source, target in zip(sources, targets, strict=True):
            assert re.fullmatch(r"[A-Z][a-z]*( [a-z]+){3,13}[.?]", source)
            assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-ZÄÖÜa-zäöüß][a-zäöüß]*){2,15}[.?]", target)
            assert source[-1] == target[-1]


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


def test_vocabulary_is_small_and_occurs_in_training_text(text: dict[str, Pairs]) -> None:
    """All English words occur in training text; there are 150 to 250 of them, and 300 to 700 German ones."""
    words = [
        {word.strip(",.?").lower() for name in SPLITS for line in text[name][side] for word in line.split()}
        for side in (0, 1)
    ]
    assert 150 < len(words[0]) < 250
    assert 300 < len(words[1]) < 700
    trained = {word.strip(".?").lower() for word in " ".join(text["train"][0]).split()}
    assert words[0] == trained


def test_lengths_of_source_and_target_differ(text: dict[str, Pairs]) -> None:
    sources, targets = text["train"]
    lengths = [[len(line.split()) for line in lines] for lines in (sources, targets)]
    assert np.mean(lengths[0]) < 10
    assert np.mean([a == b for a, b in zip(*lengths, strict=True)]) < 0.7


def test_held_out_text_does_not_depend_on_the_amount_of_training_text() -> None:
    few, many = phrases(n_train=5), phrases(n_train=50)
    assert few.text("test") == many.text("test")
    assert few.text("train")[0] == many.text("train")[0][:5]
