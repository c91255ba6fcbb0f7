"""BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) of detokenised text, as sacreBLEU computes them (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmsexp.system.languages import language

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF


def score(hypotheses: Sequence[str], references: Sequence[str], target: str = "") -> dict[str, float]:
    """Return ``bleu`` and ``chrf``, from 0 to 100, of detokenised lines with one reference per line; case matters.

    ``target``: the code of the language in any spelling, such as ``zh_CN``, or "". It selects BLEU's
    tokeniser: sacreBLEU has special ones for Chinese, Japanese and Korean, and 13a for others.

    Raises: ValueError if ``target`` is no code of a language, or if a package that the tokeniser needs is missing.
    """
    bleu, chrf = metrics(references, target)
    return {"bleu": bleu.corpus_score(hypotheses, None).score, "chrf": chrf.corpus_score(hypotheses, None).score}


def signatures(source: str, target: str) -> dict[str, str]:
    """Return sacreBLEU's signatures, with its version and the settings, by metric: ``bleu`` and ``chrf``.

    ``source`` and ``target`` are language codes such as ``de``. Raises: ValueError as :func:`score`.
    """
    languages = f"{language(source)}-{language(target)}"
    signature_texts = {}
    for name, metric in zip(("bleu", "chrf"), metrics([""], target), strict=True):
        signature = metric.get_signature()
        signature.update("lang", languages)
        signature_texts[name] = str(signature)
    return signature_texts


def metrics(references: Sequence[str], target: str) -> tuple[BLEU, CHRF]:
    """Return sacreBLEU's metrics for these references; target and errors: see :func:`score`."""
    from sacrebleu.metrics.bleu import BLEU  # sacreBLEU is imported here because only evaluations need it
    from sacrebleu.metrics.chrf import CHRF

    code = language(target) if target else ""
    try:
        bleu = BLEU(references=[references], trg_lang=code)
    except RuntimeError:
        raise ValueError(f"BLEU of the language {code} needs: pip install 'sacrebleu[{code}]'") from None
    return bleu, CHRF(references=[references])
