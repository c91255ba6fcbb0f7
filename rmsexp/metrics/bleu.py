"""BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) of detokenised text, as sacreBLEU computes them (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF2 of a corpus, from 0 to 100."""

    bleu: float
    chrf: float


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Return BLEU and chrF2 of a corpus of detokenised lines, with one reference per line. Both are case-sensitive.

    Raises: ValueError if there are no lines, or if the numbers of hypotheses and references differ.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references")
    if not references:
        raise ValueError("there are no lines to score")
    bleu, chrf = _metrics(references)
    return Scores(bleu.corpus_score(hypotheses, None).score, chrf.corpus_score(hypotheses, None).score)


def signatures(source: str, target: str) -> dict[str, str]:
    """Return sacreBLEU's signatures, with its version and the settings, by metric: ``bleu`` and ``chrf``.

    ``source`` and ``target`` are language codes such as ``de``. They appear in the signatures and do not affect scores.
    """
    signature_texts = {}
    for name, metric in zip(("bleu", "chrf"), _metrics([""]), strict=True):
        signature = metric.get_signature()
        signature.update("lang", f"{source}-{target}")
        signature_texts[name] = str(signature)
    return signature_texts


def _metrics(references: Sequence[str]) -> tuple[BLEU, CHRF]:
    from sacrebleu.metrics.bleu import BLEU  # sacreBLEU is imported here because only evaluations need it
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(references=[references]), CHRF(references=[references])
