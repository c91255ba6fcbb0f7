"""Codes of languages without region, script and case: zh, ZH, zh_CN and zho_Hans all stand for Chinese, ``zh``."""

import re

# other codes of the languages for which sacreBLEU and Moses have tokenisers of their own
OTHERS = {"cmn": "zh", "zho": "zh", "chi": "zh", "cn": "zh", "jpn": "ja", "kor": "ko", "eng": "en", "deu": "de"}


def language(code: str, key: str = "") -> str:
    """Return the language of a code of ISO 639, in small letters. ``key``: the option, for the message.

    Raises: ValueError if it is no such code.
    """
    match = re.match(r"([a-z]{2,3})(?![^\W_])", code.strip().lower())
    if match is None:
        raise ValueError(
            f"{key}{'=' * bool(key)}{code} is no language code; use one of ISO 639, such as en, de, zh or ja"
        )
    return OTHERS.get(match[1], match[1])
