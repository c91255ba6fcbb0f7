"""Synthetic parallel text, a substitute for WMT and Multi30k: English sentences and their German translations.

The sentences come from a small grammar. Neither copying words nor translating them one by one is enough:

- German articles and adjectives agree in gender, number and case, and verbs in number.
- In a German main clause, a participle, an infinitive or a separable prefix comes last; in a subordinate clause, the
  finite verb.
- The German finite verb precedes the subject in questions and after an adverb at the beginning.
- An English participle and its object follow the noun; the German ones precede it.
- An English compound of two nouns is one German word, often with a linking element.
- The translation of some words depends on another word of the sentence, which may be far away.

Each English sentence has exactly one translation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rmsexp.data.pairs import Pairs
from rmsexp.data.parallel import Corpus
from rmsexp.data.synthetic.lexicon import (
    ADJECTIVE_SENSES,
    ADJECTIVES,
    ADVERBS,
    ARTICLES,
    AUXILIARIES,
    CLAUSE_VERBS,
    CONJUNCTIONS,
    GENERAL_VERBS,
    HEADS,
    HELD_OUT,
    MODIFIERS,
    NOUNS,
    NOUNS_OF_KIND,
    QUALITIES,
    STRONG,
    TARGET_AUXILIARIES,
    TARGET_VERBS,
    VERBS,
    WEAK,
)
from rmsexp.data.synthetic.random_choices import RandomChoices

WORDS = (4, 14)  # the least and the greatest number of words of an English sentence
# The entries of the following lists are drawn with equal probability, so repeated ones are drawn more often. "light" is
# repeated because it has two translations.
SUBJECTS = "person person animal"  # kinds of nouns that may be subjects
PERSON_ADJECTIVES, OTHER_ADJECTIVES = tuple(QUALITIES), (*ADJECTIVES, "light", "light")
TENSES = ("present", "present", "perfect", "future")
SINGULAR, PLURAL = ("the", "the", "a", "a", "this", "every", "no"), ("the", "the", "these", "two", "no")


@dataclass(frozen=True)
class Phrase:
    """A noun phrase, in English words.

    ``attribute`` is rendered as a relative clause, or as a participle if its tense is progressive.
    """

    determiner: str  # from SINGULAR or PLURAL
    noun: str
    plural: bool = False
    adjective: str = ""
    modifier: str = ""  # the first noun of a compound
    attribute: Predicate | None = None


@dataclass(frozen=True)
class Predicate:
    """A verb with its object and adverb, if any, in English words.

    ``tense`` is present, perfect or future, or progressive in the attribute of a noun phrase.
    """

    verb: str
    tense: str
    object: Phrase | None = None
    adverb: str = ""


@dataclass(frozen=True)
class Sentence:
    """A sentence. ``clause`` has the subject and the predicate of a subordinate clause after ``conjunction``."""

    subject: Phrase
    predicate: Predicate
    question: bool = False
    conjunction: str = ""
    clause: tuple[Phrase, Predicate] | None = None


def phrases(n_train: int = 6000, n_valid: int = 200, n_test: int = 200, seed: int = 0) -> Corpus:
    """Return a corpus of English sentences with German translations.

    The English sentences have 4 to 14 words; no two of them, in any splits, are equal. Validation and test text also
    has compounds that do not occur in training text, although both their nouns do.
    """
    seen: set[str] = set()
    splits: dict[str, Pairs] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("test", n_test), ("train", n_train))):
        rng = _RandomSentences(seed, index, held_out=name != "train")
        sources, targets = splits[name] = [], []
        while len(sources) < count:
            sentence = rng.sentence()
            source = render_source(sentence)
            if source not in seen and WORDS[0] <= len(source.split()) <= WORDS[1]:
                seen.add(source)
                sources.append(source)
                targets.append(render_target(sentence))
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()
    return Corpus("phrases", digest, True, "en", "de", {name: partial(zip, *splits[name]) for name in splits})


def render_source(sentence: Sentence) -> str:
    """Return the sentence in English, with a capital letter and a full stop or question mark."""
    words = _source_clause(_source_phrase(sentence.subject), sentence.subject, sentence.predicate, sentence.question)
    if sentence.clause:
        subject, predicate = sentence.clause
        words += [sentence.conjunction, *_source_clause(_source_phrase(subject), subject, predicate)]
    return _punctuated(words, sentence.question)


def _source_clause(words: list[str], subject: Phrase, predicate: Predicate, question: bool = False) -> list[str]:
    """Return the English words of a clause, or of a participle with its object if the tense is progressive.

    ``words`` are those of the subject, or "that" in a relative clause; ``subject`` decides between singular and plural.
    Optional words that are absent are "".
    """
    verb = VERBS[predicate.verb]
    rest = [*(_source_phrase(predicate.object) if predicate.object else []), predicate.adverb]
    if predicate.tense == "progressive":
        return [verb.progressive, *rest]
    main = verb.perfect if predicate.tense == "perfect" else predicate.verb
    auxiliary = AUXILIARIES[predicate.tense][subject.plural]
    if question:
        return [auxiliary, *words, main, *rest]
    if predicate.tense == "present":
        return [*words, predicate.verb if subject.plural else verb.third, *rest]
    return [*words, auxiliary, main, *rest]


def _source_phrase(phrase: Phrase) -> list[str]:
    noun = NOUNS[phrase.noun].plural if phrase.plural else phrase.noun
    words = [word for word in (phrase.adjective, phrase.modifier, noun) if word]
    determiner = "an" if phrase.determiner == "a" and words[0][0] in "aeiou" else phrase.determiner
    if phrase.attribute:
        words += _source_clause(["that"], phrase, phrase.attribute)
    return [determiner, *words]


def render_target(sentence: Sentence) -> str:
    """Return the German translation of the sentence, with commas around subordinate and relative clauses."""
    subject = _target_phrase(sentence.subject, "nominative")
    adverb, direct_object, finite, last = _target_predicate(sentence.subject, sentence.predicate)
    if sentence.question:
        words = [finite, *subject, adverb, *direct_object, last]
    elif adverb:
        words = [adverb, finite, *subject, *direct_object, last]
    else:
        words = [*subject, finite, *direct_object, last]
    if sentence.clause:
        words += [",", CONJUNCTIONS[sentence.conjunction], *_target_phrase(sentence.clause[0], "nominative")]
        words += _verb_final(*sentence.clause)
    return _punctuated(words, sentence.question)


def _target_phrase(phrase: Phrase, case: str) -> list[str]:
    noun = NOUNS[phrase.noun]
    gender = "plural" if phrase.plural else noun.gender
    determiner, ending = _determiner(phrase.determiner, case, gender)
    before, after = [determiner], []
    if phrase.attribute and phrase.attribute.tense == "progressive":
        _, direct_object, participle, _ = _target_predicate(phrase, phrase.attribute)
        before += [*direct_object, participle + ending]
    elif phrase.attribute:
        after = [",", ARTICLES["nominative"][gender], *_verb_final(phrase, phrase.attribute), ","]
    if phrase.adjective:
        sense = ADJECTIVE_SENSES.get(f"{phrase.adjective} {noun.kind}", ADJECTIVES[phrase.adjective])
        before.append(sense + ending)
    word = noun.target_plural if phrase.plural else noun.target
    return [*before, MODIFIERS[phrase.modifier] + word.lower() if phrase.modifier else word, *after]


def _determiner(source: str, case: str, gender: str) -> tuple[str, str]:
    """Return the German determiner, and the ending of an adjective after it."""
    strong, weak = STRONG[case][gender], WEAK[case][gender]
    if source == "two":
        return "zwei", strong
    if source in ("a", "no"):
        stem = "ein" if source == "a" else "kein"
        return (stem, strong) if strong in ("er", "es") else (stem + strong, weak)
    if source == "the":
        return ARTICLES[case][gender], weak
    return ("jed" if source == "every" else "dies") + strong, weak


def _target_predicate(subject: Phrase, predicate: Predicate) -> tuple[str, list[str], str, str]:
    """Return, in German, the adverb, the words of the object, the finite verb, and the last word of a main clause.

    The last word is a participle, an infinitive, or a separable prefix. Absent words are "" and an absent object is [].
    For the progressive tense, the third entry is the present participle without its ending, and not a finite verb.
    """
    kind = NOUNS[predicate.object.noun].kind if predicate.object else "that"
    keys = (f"{NOUNS[subject.noun].kind} {predicate.verb}", f"{predicate.verb} {kind}", predicate.verb)
    verb = TARGET_VERBS[next(key for key in keys if key in TARGET_VERBS)]
    direct_object = _target_phrase(predicate.object, "accusative") if predicate.object else []
    adverb = ADVERBS.get(predicate.adverb, "")
    if predicate.tense == "progressive":
        return adverb, direct_object, verb.prefix + verb.infinitive + "d", ""
    if predicate.tense == "present":
        return adverb, direct_object, verb.infinitive if subject.plural else verb.third, verb.prefix
    last = verb.prefix + (verb.perfect if predicate.tense == "perfect" else verb.infinitive)
    return adverb, direct_object, TARGET_AUXILIARIES[predicate.tense][subject.plural], last


def _verb_final(subject: Phrase, predicate: Predicate) -> list[str]:
    """Return the German words of a subordinate clause after its subject; the finite verb is the last one."""
    adverb, direct_object, finite, last = _target_predicate(subject, predicate)
    verbs = [last + finite] if predicate.tense == "present" else [last, finite]
    return [adverb, *direct_object, *verbs]


def _punctuated(words: Sequence[str], question: bool) -> str:
    """Return the words, without empty ones, as a sentence with a capital letter and a full stop or question mark.

    A comma before another comma or at the end is removed.
    """
    text = " ".join(word for word in words if word).replace(" ,", ",").replace(",,", ",").rstrip(",")
    return text[0].upper() + text[1:] + ("?" if question else ".")


class _RandomSentences(RandomChoices):
    """Draws random sentences. With ``held_out=True``, they may contain the compounds in HELD_OUT."""

    def __init__(self, *seed: int, held_out: bool) -> None:
        super().__init__(*seed)
        self._held_out = held_out

    def sentence(self) -> Sentence:
        conjunction = self.choice(("", "", "", "", "that", "because"))
        subject, question = self._phrase(SUBJECTS, attribute=not conjunction), self._one_in(5)
        if not conjunction:
            return Sentence(subject, self._predicate(self.choice(TENSES), adverb=True), question)
        # only the last clause may have an adverb: between the clauses, it could belong to either
        if conjunction == "that":
            main = Predicate(self.choice(CLAUSE_VERBS), self.choice(TENSES))
        else:
            main = self._predicate(self.choice(TENSES), adverb=False)
        clause = self._phrase(SUBJECTS), self._predicate(self.choice(TENSES), adverb=True)
        return Sentence(subject, main, question, conjunction, clause)

    def _phrase(self, kinds: str, attribute: bool = False) -> Phrase:
        kind = self.choice(kinds.split())
        noun = self.choice(NOUNS_OF_KIND[kind])
        plural = self._one_in(3)
        determiner = self.choice(PLURAL if plural else SINGULAR)
        adjective = self.choice(PERSON_ADJECTIVES if kind == "person" else OTHER_ADJECTIVES) if self._one_in(2) else ""
        modifiers = [word for word in MODIFIERS if self._held_out or (word, noun) not in HELD_OUT]
        modifier = self.choice(modifiers) if noun in HEADS and not self._one_in(3) else ""
        predicate = None
        if attribute and self._one_in(5):
            predicate = self._predicate(self.choice((*TENSES, "progressive", "progressive")), adverb=False)
        return Phrase(determiner, noun, plural, adjective, modifier, predicate)

    def _predicate(self, tense: str, adverb: bool) -> Predicate:
        verb = self.choice(GENERAL_VERBS)
        kinds = VERBS[verb].objects
        direct_object = self._phrase(kinds) if kinds else None
        return Predicate(verb, tense, direct_object, self.choice(tuple(ADVERBS)) if adverb and self._one_in(3) else "")

    def _one_in(self, n: int) -> bool:
        return self.below(n) == 0
