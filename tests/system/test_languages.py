"""A language's code in any spelling gives the same language, tokeniser and metric."""

import pytest

from rmsexp.metrics import bleu
from rmsexp.system.languages import language
from rmsexp.tasks.translation import DataConfig

CHINESE = ("zh", "ZH", "zh_CN", "zh-CN", "zh_Hans", "zho_Hans", "zh_CN.UTF-8")
REFERENCES = ["一只小狗在公园里跑步", "天气很好我们去散步"]
HYPOTHESES = ["一只小狗在公园里走路", "天气很好他们去散步"]


def test_another_spelling_has_the_same_metric() -> None:
    assert bleu.score(HYPOTHESES, REFERENCES, "zh_CN") == bleu.score(HYPOTHESES, REFERENCES, "zh")
    assert bleu.score(HYPOTHESES, REFERENCES, "zh_CN")["bleu"] > 60
    assert bleu.signatures("en_GB", "zh_CN") == bleu.signatures("en", "zh")


SPELLINGS = ["jpn ja", "ja_JP ja", "KO-KR ko", "deu de", "de@euro de", "eng_Latn en", "EN en"]


@pytest.mark.parametrize(
    ("code", "expected"), [*((code, "zh") for code in CHINESE), (" en ", "en"), *map(str.split, SPELLINGS)]
)
def test_region_script_and_case_do_not_count(code: str, expected: str) -> None:
    assert language(code) == expected


@pytest.mark.parametrize("code", ["", "chinese", "d", "12", "zh1", "../de"])
def test_what_is_no_code_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match=f"data.target={code} is no language code; use one of ISO 639"):
        DataConfig(name="files", target=code, train="a", valid="a", test="a")


def test_builtin_data_take_every_spelling_of_their_languages() -> None:
    DataConfig(name="phrases", source="en-GB", target="deu")
    DataConfig(name="wmt14", source="DE", target="eng")
    for name, source, target in (("wmt14", "de", "de_AT"), ("multi30k", "en", "fr"), ("phrases", "de", "en")):
        with pytest.raises(
            ValueError, match=f"^data.source={source} data.target={target}: data.name={name} needs data"
        ):
            DataConfig(name=name, source=source, target=target)
