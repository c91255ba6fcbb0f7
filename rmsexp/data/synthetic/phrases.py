"""The built-in parallel text: English sentences of a small grammar and their German, a stand-in for WMT and Multi30k.

Neither a copy nor a bag of words does. In the target, articles and adjectives follow gender, number and case; verbs
follow their subject's number, close the clause with participle, infinitive or prefix, and stand last in subordinate
clauses; questions and a fronted adverb invert; a participle with its object moves before the noun; two nouns become one
word with a linking element; and some words depend on another one far away. A source sentence has exactly one target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rmsexp.data.parallel import Corpus, Pairs
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
from rmsexp.data.synthetic.random_choices import Draw

WORDS = (4, 14)  # of a source sentence, at least and at most
SUBJECTS = "person person animal"  # kinds; the first is drawn twice as often
PEOPLE_ARE, THINGS_ARE = tuple(QUALITIES), (*ADJECTIVES, "light", "light")  # it has two senses to be learnt
TENSES = ("present", "present", "perfect", "future")
SINGULAR, PLURAL = ("the", "the", "a", "a", "this", "every", "no"), ("the", "the", "these", "two", "no")


@dataclass(frozen=True)
class Phrase:
    """A noun and what goes with it; ``attribute`` is a relative clause, or a participle where it is progressive."""

    determiner: str  # of SINGULAR or PLURAL
    noun: str
    plural: bool = False
    adjective: str = ""
    modifier: str = ""
    attribute: Predicate | None = None


@dataclass(frozen=True)
class Predicate:
    """``tense`` is present, perfect, future or, in an attribute, progressive."""

    verb: str
    tense: str
    object: Phrase | None = None
    adverb: str = ""


@dataclass(frozen=True)
class Sentence:
    """``clause`` is a subordinate clause's subject and predicate; "that" makes it the object of the main verb."""

    subject: Phrase
    predicate: Predicate
    question: bool = False
    conjunction: str = ""
    clause: tuple[Phrase, Predicate] | None = None


def phrases(n_train: int = 6000, n_valid: int = 200, n_test: int = 200, seed: int = 0) -> Corpus:
    """The twin of the translation corpora: sentences of 4 to 14 words from English to German, no two alike.

    Validation and test text contains compounds that training text does not, of parts that it does.
    """
    seen: set[str] = set()
    splits: dict[str, Pairs] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("test", n_test), ("train", n_train))):
        draw = _Draw(seed, index, held_out=name != "train")
        sources, targets = splits[name] = [], []
        while len(sources) < count:
            sentence = draw.sentence()
            source = render_source(sentence)
            if source not in seen and WORDS[0] <= len(source.split()) <= WORDS[1]:
                seen.add(source)
                sources.append(source)
                targets.append(render_target(sentence))
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()
    return Corpus(
        "phrases twin", digest, True, "en", "de", {name: partial(splits.__getitem__, name) for name in splits}
    )


def render_source(sentence: Sentence) -> str:
    """In English, with a capital, blanks and a full stop or question mark."""
    words = _source_clause(_source_phrase(sentence.subject), sentence.subject, sentence.predicate, sentence.question)
    if sentence.clause:
        subject, predicate = sentence.clause
        words += [sentence.conjunction, *_source_clause(_source_phrase(subject), subject, predicate)]
    return _punctuated(words, sentence.question)


def _source_clause(words: list[str], subject: Phrase, predicate: Predicate, question: bool = False) -> list[str]:
    """``words`` stand for the subject, which is "that" in a relative clause."""
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
    """In German, as :func:`render_source`; commas stand around subordinate clauses."""
    subject, predicate = _target_phrase(sentence.subject, "nominative"), sentence.predicate
    adverb, patient, finite, closing = _target_predicate(sentence.subject, predicate)
    if sentence.question:
        words = [finite, *subject, adverb, *patient, closing]
    elif adverb:
        words = [adverb, finite, *subject, *patient, closing]
    else:
        words = [*subject, finite, *patient, closing]
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
        _, patient, participle, _ = _target_predicate(phrase, phrase.attribute)
        before += [*patient, participle + ending]
    elif phrase.attribute:
        after = [",", ARTICLES["nominative"][gender], *_verb_final(phrase, phrase.attribute), ","]
    if phrase.adjective:
        sense = ADJECTIVE_SENSES.get(f"{phrase.adjective} {noun.kind}", ADJECTIVES[phrase.adjective])
        before.append(sense + ending)
    word = noun.target_plural if phrase.plural else noun.target
    return [*before, MODIFIERS[phrase.modifier] + word.lower() if phrase.modifier else word, *after]


def _determiner(source: str, case: str, gender: str) -> tuple[str, str]:
    """The determiner, and the ending of an adjective after it."""
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
    """The adverb, the object, the finite verb (or participle, without its ending), and what closes a main clause."""
    kind = NOUNS[predicate.object.noun].kind if predicate.object else "that"
    keys = (f"{NOUNS[subject.noun].kind} {predicate.verb}", f"{predicate.verb} {kind}", predicate.verb)
    verb = TARGET_VERBS[next(key for key in keys if key in TARGET_VERBS)]
    patient = _target_phrase(predicate.object, "accusative") if predicate.object else []
    adverb = ADVERBS.get(predicate.adverb, "")
    if predicate.tense == "progressive":
        return adverb, patient, verb.prefix + verb.infinitive + "d", ""
    if predicate.tense == "present":
        return adverb, patient, verb.infinitive if subject.plural else verb.third, verb.prefix
    closing = verb.prefix + (verb.perfect if predicate.tense == "perfect" else verb.infinitive)
    return adverb, patient, TARGET_AUXILIARIES[predicate.tense][subject.plural], closing


def _verb_final(subject: Phrase, predicate: Predicate) -> list[str]:
    adverb, patient, finite, closing = _target_predicate(subject, predicate)
    verbs = [closing + finite] if predicate.tense == "present" else [closing, finite]
    return [adverb, *patient, *verbs]


def _punctuated(words: Sequence[str], question: bool) -> str:
    """Of two commas in a row, or a comma at the end, only one mark is written."""
    text = " ".join(word for word in words if word).replace(" ,", ",").replace(",,", ",").rstrip(",")
    return text[0].upper() + text[1:] + ("?" if question else ".")


class _Draw(Draw):
    """Trees at random."""

    def __init__(self, *seed: int, held_out: bool) -> None:
        super().__init__(*seed)
        self._held_out = held_out

    def sentence(self) -> Sentence:
        conjunction = self.one(("", "", "", "", "that", "because"))
        subject, question = self._phrase(SUBJECTS, attribute=not conjunction), self._one_in(5)
        if not conjunction:
            return Sentence(subject, self._predicate(self.one(TENSES), adverb=True), question)
        # an adverb may close the whole only, since the source does not tell whose it would be in between
        if conjunction == "that":
            main = Predicate(self.one(CLAUSE_VERBS), self.one(TENSES))
        else:
            main = self._predicate(self.one(TENSES), adverb=False)
        clause = self._phrase(SUBJECTS), self._predicate(self.one(TENSES), adverb=True)
        return Sentence(subject, main, question, conjunction, clause)

    def _phrase(self, kinds: str, attribute: bool = False) -> Phrase:
        kind = self.one(kinds.split())
        noun = self.one(NOUNS_OF_KIND[kind])
        plural = self._one_in(3)
        determiner = self.one(PLURAL if plural else SINGULAR)
        adjective = self.one(PEOPLE_ARE if kind == "person" else THINGS_ARE) if self._one_in(2) else ""
        fitting = [word for word in MODIFIERS if self._held_out or (word, noun) not in HELD_OUT]
        modifier = self.one(fitting) if noun in HEADS and not self._one_in(3) else ""
        inner = None
        if attribute and self._one_in(5):
            inner = self._predicate(self.one((*TENSES, "progressive", "progressive")), adverb=False)
        return Phrase(determiner, noun, plural, adjective, modifier, inner)

    def _predicate(self, tense: str, adverb: bool) -> Predicate:
        verb = self.one(GENERAL_VERBS)
        kinds = VERBS[verb].objects
        patient = self._phrase(kinds) if kinds else None
        return Predicate(verb, tense, patient, self.one(tuple(ADVERBS)) if adverb and self._one_in(3) else "")

    def _one_in(self, n: int) -> bool:
        return self.below(n) == 0
