"""Synthetic parallel text, a substitute for WMT and Multi30k: English sentences and their German translations.

The sentences come from a small grammar. Neither copying words nor translating them one by one is enough:

- German articles and adjectives agree in gender, number and case, and verbs in number.
- In a German main clause, a participle or a separable prefix comes last; in a subordinate clause, the finite verb.
- If a German sentence begins with an adverb, the finite verb precedes the subject.
- An English compound of two nouns is one German word, often with a linking element.

Each English sentence has exactly one translation.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from rmsexp.data.parallel import Corpus, Pairs
from rmsexp.data.synthetic import RandomChoices

_NOUNS = {  # kind -> nouns separated by commas: English singular and plural, German gender, singular and plural
    "person": """gardener gardeners m Gärtner Gärtner, baker bakers m Bäcker Bäcker, friend friends m Freund Freunde,
        woman women f Frau Frauen, sister sisters f Schwester Schwestern, aunt aunts f Tante Tanten,
        child children n Kind Kinder, girl girls n Mädchen Mädchen""",
    "animal": """dog dogs m Hund Hunde, bird birds m Vogel Vögel, cat cats f Katze Katzen, duck ducks f Ente Enten,
        horse horses n Pferd Pferde, pig pigs n Schwein Schweine""",
    "food": """apple apples m Apfel Äpfel, cake cakes m Kuchen Kuchen, pear pears f Birne Birnen,
        egg eggs n Ei Eier, roll rolls n Brötchen Brötchen""",
    "thing": """gate gates n Tor Tore, door doors f Tür Türen, window windows n Fenster Fenster,
        bag bags f Tasche Taschen, table tables m Tisch Tische, lamp lamps f Lampe Lampen, bed beds n Bett Betten,
        hat hats m Hut Hüte, book books n Buch Bücher, letter letters m Brief Briefe, song songs n Lied Lieder""",
}
NOUNS = {kind: [noun.split() for noun in table.split(",")] for kind, table in _NOUNS.items()}
MODIFIERS = {  # first part of a compound with a thing, English -> German; the German part has the linking element
    "garden": "Garten",
    "kitchen": "Küchen",
    "school": "Schul",
    "dog": "Hunde",
    "sun": "Sonnen",
    "wedding": "Hochzeits",
    "work": "Arbeits",
}
ADJECTIVES = {"old": "alt", "new": "neu", "small": "klein", "big": "groß", "beautiful": "schön", "strange": "fremd"}
ADVERBS = {"today": "heute", "here": "hier", "there": "dort", "outside": "draußen", "at night": "nachts"}
# "case gender" -> the article, the ending of a determiner such as dies-, and that of an adjective after either
ENDINGS = {
    "nominative m": ("der", "er", "e"),
    "accusative m": ("den", "en", "en"),
    **dict.fromkeys(("nominative f", "accusative f"), ("die", "e", "e")),
    **dict.fromkeys(("nominative n", "accusative n"), ("das", "es", "e")),
    **dict.fromkeys(("nominative plural", "accusative plural"), ("die", "e", "en")),
}
DETERMINERS = {False: ("the", "a", "this", "every", "no"), True: ("the", "these", "no")}  # by whether it is plural
STEMS = {"this": "dies", "these": "dies", "every": "jed", "a": "ein", "no": "kein"}
# (English base, third person and participle, and German third person, plural and participle; German separable prefix;
# kinds of nouns that may be objects)
VERBS = (
    ("see sees seen sieht sehen gesehen", "", "person animal food thing"),
    ("find finds found findet finden gefunden", "", "person animal food thing"),
    ("love loves loved liebt lieben geliebt", "", "person animal thing"),
    ("paint paints painted malt malen gemalt", "", "person animal"),
    ("buy buys bought kauft kaufen gekauft", "", "animal food thing"),
    ("sell sells sold verkauft verkaufen verkauft", "", "animal food thing"),
    ("carry carries carried trägt tragen getragen", "", "animal food thing"),
    ("eat eats eaten isst essen gegessen", "", "food"),
    ("call calls called ruft rufen gerufen", "an", "person"),
    ("invite invites invited lädt laden geladen", "ein", "person"),
    ("visit visits visited besucht besuchen besucht", "", "person"),
    ("sleep sleeps slept schläft schlafen geschlafen", "", ""),
    ("laugh laughs laughed lacht lachen gelacht", "", ""),
    ("work works worked arbeitet arbeiten gearbeitet", "", ""),
    ("wait waits waited wartet warten gewartet", "", ""),
)
MOST_WORDS = 14  # of an English sentence


class _Phrase(NamedTuple):
    """A noun phrase with or without adjective, in English and German."""

    english: list[str]
    german: list[str]
    plural: bool


class _Clause(NamedTuple):
    """A clause without its adverb: the English words, and in German the subject, the verbs and the object."""

    english: list[str]
    subject: list[str]
    finite: str
    last: str  # the participle or the separable prefix, or ""
    perfect: bool
    object: list[str]


def phrases(n_train: int = 6000, n_valid: int = 200, n_test: int = 200, seed: int = 0) -> Corpus:
    """Return a corpus of English sentences, no two of them equal, of at most 14 words, and German translations."""
    seen: set[str] = set()
    splits: dict[str, Pairs] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("test", n_test), ("train", n_train))):
        rng = _RandomSentences(seed, index)
        sources, targets = splits[name] = [], []
        while len(sources) < count:
            source, target = rng.sentence()
            if source not in seen and len(source.split()) <= MOST_WORDS:
                seen.add(source)
                sources.append(source)
                targets.append(target)
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()
    return Corpus("phrases", digest, True, "en", "de", {name: partial(zip, *splits[name]) for name in splits})


class _RandomSentences(RandomChoices):
    def sentence(self) -> tuple[str, str]:
        """Return an English sentence of one or two clauses, and its translation."""
        main = self._clause()
        adverb = self.choice(tuple(ADVERBS)) if self._one_in(3) else ""
        if not self._one_in(3):
            beginning = [ADVERBS[adverb], main.finite, *main.subject] if adverb else [*main.subject, main.finite]
            return _punctuated([*main.english, adverb]), _punctuated([*beginning, *main.object, main.last])
        # only the subordinate clause has an adverb: between the clauses, it could belong to either
        clause = self._clause()
        verbs = [clause.last, clause.finite] if clause.perfect else [clause.last + clause.finite]
        subordinate = [*clause.subject, ADVERBS.get(adverb, ""), *clause.object, *verbs]
        return (
            _punctuated([*main.english, "because", *clause.english, adverb]),
            _punctuated([*main.subject, main.finite, *main.object, main.last, ",", "weil", *subordinate]),
        )

    def _clause(self) -> _Clause:
        subject = self._phrase(self.choice(("person", "person", "animal")), "nominative")
        forms, prefix, kinds = self.choice(VERBS)
        base, third, participle, finite, infinitive, perfect = forms.split()
        direct_object = self._phrase(self.choice(kinds.split()), "accusative") if kinds else _Phrase([], [], False)
        if self._one_in(3):
            english = [*subject.english, "have" if subject.plural else "has", participle, *direct_object.english]
            auxiliary = "haben" if subject.plural else "hat"
            return _Clause(english, subject.german, auxiliary, prefix + perfect, True, direct_object.german)
        english = [*subject.english, base if subject.plural else third, *direct_object.english]
        verb = infinitive if subject.plural else finite
        return _Clause(english, subject.german, verb, prefix, False, direct_object.german)

    def _phrase(self, kind: str, case: str) -> _Phrase:
        singular, several, gender, target, target_plural = self.choice(NOUNS[kind])
        plural = self._one_in(3)
        determiner = self.choice(DETERMINERS[plural])
        adjective = self.choice(tuple(ADJECTIVES)) if self._one_in(2) else ""
        modifier = self.choice(tuple(MODIFIERS)) if kind == "thing" and self._one_in(2) else ""
        english = [word for word in (adjective, modifier, several if plural else singular) if word]
        article, strong, weak = ENDINGS[f"{case} {'plural' if plural else gender}"]
        bare = determiner in ("a", "no") and strong in ("er", "es")  # ein and kein have no ending, the adjective has it
        german = [article if determiner == "the" else STEMS[determiner] + ("" if bare else strong)]
        if adjective:
            german.append(ADJECTIVES[adjective] + (strong if bare else weak))
        noun = target_plural if plural else target
        german.append(MODIFIERS[modifier] + noun.lower() if modifier else noun)
        spelt = "an" if determiner == "a" and english[0][0] in "aeiou" else determiner
        return _Phrase([spelt, *english], german, plural)

    def _one_in(self, n: int) -> bool:
        return self.below(n) == 0


def _punctuated(words: Sequence[str]) -> str:
    """Return the words, without empty ones, as a sentence with a capital letter and a full stop."""
    text = " ".join(word for word in words if word).replace(" ,", ",")
    return text[0].upper() + text[1:] + "."
