"""BLEU and chrF against values worked out by hand."""

import math
import sys
from importlib.metadata import version

import pytest

from rmsexp.metrics import bleu


@pytest.mark.parametrize(
    ("hypothesis", "reference", "precisions", "brevity"),
    [
        ("the cat sat on the mat today", "the cat sat on the mat", [6 / 7, 5 / 6, 4 / 5, 3 / 4], 1),
        ("the the the the", "the cat sat on the mat", [2 / 4, 1 / (2 * 3), 1 / (4 * 2), 1 / (8 * 1)], math.exp(-0.5)),
    ],
    ids=["too long", "too short, with clipped counts, halved for each order without a match"],
)
def test_bleu_by_hand(hypothesis: str, reference: str, precisions: list[float], brevity: float) -> None:
    expected = 100 * brevity * math.prod(precisions) ** (1 / 4)
    assert bleu.score([hypothesis], [reference])["bleu"] == pytest.approx(expected)


def test_counts_are_pooled_over_the_corpus() -> None:
    scores = bleu.score(["a b c d", "a b c x"], ["a b c d", "a b c d"])
    assert scores["bleu"] == pytest.approx(100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** (1 / 4))


def test_words_of_chinese_are_its_characters() -> None:
    """With the tokeniser of European languages, a sentence without spaces would be a single word."""
    assert bleu.score(["你好世界你好"], ["你好世界大家"])["bleu"] == 0
    assert bleu.score(["你好世界你好"], ["你好世界大家"], "zh")["bleu"] > 40
    assert "tok:zh" in bleu.signatures("en", "zh")["bleu"]


def test_a_tokeniser_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(ValueError, match="sacrebleu"):
        bleu.signatures("en", "ja")


def test_signatures_describe_the_scores() -> None:
    signatures = bleu.signatures("en", "de")
    parts = {name: dict(part.split(":") for part in signature.split("|")) for name, signature in signatures.items()}
    common = {"nrefs": "1", "lang": "en-de", "case": "mixed", "version": version("sacrebleu")}
    assert parts["bleu"] == common | {"eff": "no", "tok": "13a", "smooth": "exp"}
    assert parts["chrf"] == common | {"eff": "yes", "nc": "6", "nw": "0", "space": "no"}
