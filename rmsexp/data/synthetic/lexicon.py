"""The words of the synthetic parallel text, with the forms that the grammar in phrases.py needs."""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """Forms of an English noun, and of its German translation (target)."""

    kind: str  # a key of _NOUNS
    plural: str
    gender: str  # of the German noun: m, f or n
    target: str
    target_plural: str


class Verb(NamedTuple):
    """Forms of an English verb."""

    objects: str  # kinds of nouns that may be the verb's object, separated by spaces; empty if it takes no noun
    third: str  # third person singular
    perfect: str  # past participle
    progressive: str  # present participle


class TargetVerb(NamedTuple):
    """Forms of a German verb. A separable prefix is only in ``prefix``: anrufen has the infinitive rufen."""

    third: str  # third person singular
    infinitive: str  # equal to the third person plural
    perfect: str  # past participle
    prefix: str = ""  # the separable prefix, if the verb has one


_NOUNS = {  # kind -> nouns separated by commas: English singular and plural, German gender, singular and plural
    "person": """gardener gardeners m Gärtner Gärtner, baker bakers m Bäcker Bäcker, friend friends m Freund Freunde,
        woman women f Frau Frauen, sister sisters f Schwester Schwestern, aunt aunts f Tante Tanten,
        child children n Kind Kinder, girl girls n Mädchen Mädchen""",
    "animal": """dog dogs m Hund Hunde, bird birds m Vogel Vögel, cat cats f Katze Katzen, duck ducks f Ente Enten,
        horse horses n Pferd Pferde, pig pigs n Schwein Schweine""",
    "food": """apple apples m Apfel Äpfel, cake cakes m Kuchen Kuchen, pear pears f Birne Birnen,
        egg eggs n Ei Eier, roll rolls n Brötchen Brötchen""",
    "place": """garden gardens m Garten Gärten, kitchen kitchens f Küche Küchen, school schools f Schule Schulen,
        house houses n Haus Häuser""",
    "opening": "gate gates n Tor Tore, door doors f Tür Türen, window windows n Fenster Fenster",
    "furniture": "table tables m Tisch Tische, lamp lamps f Lampe Lampen, bed beds n Bett Betten",
    "garment": "hat hats m Hut Hüte, bag bags f Tasche Taschen, shoe shoes m Schuh Schuhe",
    "text": "book books n Buch Bücher, letter letters m Brief Briefe, song songs n Lied Lieder",
}
NOUNS = {word: Noun(kind, *rest) for kind, table in _NOUNS.items() for word, *rest in map(str.split, table.split(","))}
NOUNS_OF_KIND = {kind: tuple(word for word in NOUNS if NOUNS[word].kind == kind) for kind in _NOUNS}
MODIFIERS = {  # first part of a compound, English -> German; the German part includes the linking element
    "garden": "Garten",
    "kitchen": "Küchen",
    "school": "Schul",
    "house": "Haus",
    "dog": "Hunde",
    "cat": "Katzen",
    "sun": "Sonnen",
    "winter": "Winter",
    "wedding": "Hochzeits",
    "work": "Arbeits",
}
HEADS = tuple(word for word, noun in NOUNS.items() if noun.kind in ("opening", "furniture", "garment", "text"))
# compounds (modifier, head) that may occur in validation and test text, but not in training text
HELD_OUT = {(modifier, head) for index, modifier in enumerate(MODIFIERS) for head in HEADS[index % 4 :: 4]}

QUALITIES = {"old": "alt", "new": "neu", "small": "klein", "big": "groß", "beautiful": "schön", "strange": "fremd"}
ADJECTIVES = QUALITIES | {"red": "rot", "green": "grün", "black": "schwarz", "light": "leicht"}
# "adjective kind" -> the adjective's translation before nouns of this kind, if it differs from that in ADJECTIVES
ADJECTIVE_SENSES = dict.fromkeys(("light place", "light opening", "light furniture"), "hell")
ADVERBS = {"today": "heute", "here": "hier", "there": "dort", "outside": "draußen", "at night": "nachts"}
CONJUNCTIONS = {"that": "dass", "because": "weil"}
AUXILIARIES = {"present": ("does", "do"), "perfect": ("has", "have"), "future": ("will", "will")}  # (singular, plural)
TARGET_AUXILIARIES = {"perfect": ("hat", "haben"), "future": ("wird", "werden")}
ARTICLES = {
    "nominative": {"m": "der", "f": "die", "n": "das", "plural": "die"},
    "accusative": {"m": "den", "f": "die", "n": "das", "plural": "die"},
}
STRONG = {  # endings of a determiner such as dies- or jed-, and of an adjective after a determiner without an ending
    "nominative": {"m": "er", "f": "e", "n": "es", "plural": "e"},
    "accusative": {"m": "en", "f": "e", "n": "es", "plural": "e"},
}
WEAK = {  # endings of an adjective after a determiner with an ending
    "nominative": {"m": "e", "f": "e", "n": "e", "plural": "en"},
    "accusative": {"m": "en", "f": "e", "n": "e", "plural": "en"},
}

_ANY = " ".join(_NOUNS)
_GOODS = "animal food place opening furniture garment text"
VERBS = {
    "see": Verb(_ANY, "sees", "seen", "seeing"),
    "find": Verb(_ANY, "finds", "found", "finding"),
    "love": Verb(_ANY, "loves", "loved", "loving"),
    "know": Verb(_ANY, "knows", "known", "knowing"),
    "paint": Verb("person animal place opening furniture", "paints", "painted", "painting"),
    "buy": Verb(_GOODS, "buys", "bought", "buying"),
    "sell": Verb(_GOODS, "sells", "sold", "selling"),
    "carry": Verb("animal food garment", "carries", "carried", "carrying"),
    "open": Verb("opening text", "opens", "opened", "opening"),
    "read": Verb("text", "reads", "read", "reading"),
    "eat": Verb("food", "eats", "eaten", "eating"),
    "call": Verb("person animal", "calls", "called", "calling"),
    "invite": Verb("person", "invites", "invited", "inviting"),
    "visit": Verb("person place", "visits", "visited", "visiting"),
    "say": Verb("", "says", "said", "saying"),
    "hope": Verb("", "hopes", "hoped", "hoping"),
    "sleep": Verb("", "sleeps", "slept", "sleeping"),
    "laugh": Verb("", "laughs", "laughed", "laughing"),
    "work": Verb("", "works", "worked", "working"),
    "wait": Verb("", "waits", "waited", "waiting"),
}
CLAUSE_VERBS = ("know", "say", "hope")  # verbs that are followed by a clause with "that"
GENERAL_VERBS = tuple(verb for verb in VERBS if verb not in ("say", "hope"))  # verbs that can stand without a clause
# A key is "verb"; or "kind verb" if the translation holds for subjects of this kind only; or "verb kind" if it holds
# for objects of this kind only; or "verb that" if it holds for the verb without an object only.
TARGET_VERBS = {
    "see": TargetVerb("sieht", "sehen", "gesehen"),
    "find": TargetVerb("findet", "finden", "gefunden"),
    "love": TargetVerb("liebt", "lieben", "geliebt"),
    "know": TargetVerb("kennt", "kennen", "gekannt"),
    "know that": TargetVerb("weiß", "wissen", "gewusst"),
    "paint": TargetVerb("malt", "malen", "gemalt"),
    **dict.fromkeys(("paint opening", "paint furniture"), TargetVerb("streicht", "streichen", "gestrichen")),
    "buy": TargetVerb("kauft", "kaufen", "gekauft"),
    "sell": TargetVerb("verkauft", "verkaufen", "verkauft"),
    "carry": TargetVerb("trägt", "tragen", "getragen"),
    "open": TargetVerb("macht", "machen", "gemacht", "auf"),
    "read": TargetVerb("liest", "lesen", "gelesen"),
    "eat": TargetVerb("isst", "essen", "gegessen"),
    "animal eat": TargetVerb("frisst", "fressen", "gefressen"),
    "call": TargetVerb("ruft", "rufen", "gerufen", "an"),
    "invite": TargetVerb("lädt", "laden", "geladen", "ein"),
    "visit": TargetVerb("besucht", "besuchen", "besucht"),
    "say": TargetVerb("sagt", "sagen", "gesagt"),
    "hope": TargetVerb("hofft", "hoffen", "gehofft"),
    "sleep": TargetVerb("schläft", "schlafen", "geschlafen"),
    "laugh": TargetVerb("lacht", "lachen", "gelacht"),
    "work": TargetVerb("arbeitet", "arbeiten", "gearbeitet"),
    "wait": TargetVerb("wartet", "warten", "gewartet"),
}
