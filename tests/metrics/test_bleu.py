"""BLEU and chrF: signatures, and a missing package."""

import sys
from importlib.metadata import version

import pytest

from rmsexp.metrics import bleu


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
