"""Beam search, for any model that continues hypotheses token by token.

During the search, hypotheses are ranked by the sum of the log probabilities of their tokens. A hypothesis ends with EOS
or at its sentence's maximum length. Its score is the sum divided by a function of its length (``NORMALISATIONS``). The
translation is the complete hypothesis with the largest score. A rule (``RULES``) says which hypotheses are complete,
which are continued, and when the search of a sentence is done.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rmsexp.system import checks

NORMALISATIONS = ("length", "gnmt")  # see :meth:`SearchOptions.divisor`
LARGEST_ALPHA = 10  # the divisors of larger exponents soon overflow
Verdict = tuple[Tensor, Tensor, Tensor]  # see :meth:`ShrinkingBeam.judge`


@dataclass
class SearchOptions:
    """Options of the search.

    ``beam``: largest number of hypotheses per sentence. ``normalisation``: one of ``NORMALISATIONS``. ``alpha``:
    exponent of "gnmt", at most 10, unused by "length". ``forbid_empty``: whether EOS is excluded as the first token.
    ``search``: a key of ``RULES``.

    Raises: ValueError if a value is out of range.
    """

    beam: int = 12
    normalisation: str = "length"
    alpha: float = 1.0
    forbid_empty: bool = False
    search: str | None = None

    def __post_init__(self) -> None:
        checks.at_least("decoding.beam", self.beam, 1, checks.LARGEST_BEAM)
        checks.choice("decoding.normalisation", self.normalisation, NORMALISATIONS)
        checks.at_least("decoding.alpha", self.alpha, 0)
        if self.alpha > LARGEST_ALPHA:
            raise ValueError(f"decoding.alpha must be at most {LARGEST_ALPHA}, got {self.alpha}")
        checks.choice("decoding.search", self.search, tuple(RULES))

    def divisor(self, length: Any) -> Any:
        """Return the divisor of the sum of log probabilities of a hypothesis.

        ``length``: its number of tokens with EOS, an integer or a tensor. The divisor is this length, or with "gnmt"
        ``((5 + length) / 6) ** alpha`` (Wu et al. 2016, equation 14, lp, without the coverage penalty).
        """
        return length if self.normalisation == "length" else ((5 + length) / 6) ** self.alpha


class ShrinkingBeam:
    """The rule of Nematus. Each hypothesis that ends with EOS takes a slot of the beam.

    A sentence is done when it has no slot left or its maximum length is reached. Complete hypotheses are those that
    ended with EOS and those that reached the maximum length without it. A beam of 1 is greedy search.
    """

    def __init__(self, options: SearchOptions, max_lengths: Tensor) -> None:
        self.width, self.max_lengths = options.beam, max_lengths
        self.slots = max_lengths.new_full((len(max_lengths), 1), options.beam)  # number of slots left to each sentence

    def judge(self, costs: Tensor, is_eos: Tensor, length: int) -> Verdict:
        """Return ``(complete, live, done)`` for the ``width`` cheapest continuations, which have ``length`` tokens.

        ``costs``: as in :func:`_continuations`, infinite where there is no continuation. ``is_eos``: whether the last
        token is EOS. ``complete``: whether a continuation may become the translation. ``live``: whether it may be
        continued. All are ``(sentences, continuations)``. ``done``, ``(sentences,)``: whether a search is done.
        """
        exists = costs.isfinite() & (torch.arange(self.width, device=costs.device) < self.slots)
        ended, live = exists & is_eos, exists & ~is_eos
        at_end = length >= self.max_lengths
        self.slots = self.slots - ended.sum(1, keepdim=True)
        return ended | (exists & at_end[:, None]), live, at_end | ~live.any(1)

    def select(self, active: Tensor) -> None:
        """Keep only the sentences with the indices ``active``."""
        self.max_lengths, self.slots = self.max_lengths[active], self.slots[active]


class FixedBeam:
    """The rule of zero, the toolkit of the RMSNorm paper's authors (zero, search.py:75-230).

    Of the ``2 * beam`` best continuations, the best ``beam`` without EOS are continued, so the beam does not shrink.
    Those with EOS go into a pool, which keeps the ``beam`` best scores. A sentence is done at its maximum length, or
    when no live hypothesis can enter the scores of the pool: when the worst score there is above the bound of the
    scores to come, which is the best live sum of log probabilities, divided as at the maximum length. Live hypotheses
    are complete only if the pool is empty at the maximum length.

    In the toolkit, a sentence goes on until all sentences of its batch are done. This matters only beyond the maximum
    length of a sentence, where the toolkit takes all continuations into the pool. Here a sentence has the same
    translation in every batch.
    """

    def __init__(self, options: SearchOptions, max_lengths: Tensor) -> None:
        self.options, self.width, self.max_lengths = options, 2 * options.beam, max_lengths
        # minus the scores in the pool, in ascending order; infinite in empty places
        self.pool = torch.full((len(max_lengths), options.beam), math.inf, device=max_lengths.device)

    def judge(self, costs: Tensor, is_eos: Tensor, length: int) -> Verdict:
        exists = costs.isfinite()
        ended, live = exists & is_eos, exists & ~is_eos
        at_end = length >= self.max_lengths
        normalised = (costs / self.options.divisor(length)).masked_fill(~ended, math.inf)
        self.pool = torch.cat([self.pool, normalised], 1).sort(1).values[:, : self.options.beam]
        empty = self.pool[:, 0].isinf()
        worst = self.pool.masked_fill(self.pool.isinf(), -math.inf).amax(1)
        bound = costs.masked_fill(~live, math.inf).amin(1) / self.options.divisor(self.max_lengths)
        complete = ended | (live & (at_end & empty)[:, None])
        return complete, live, at_end | (~empty & (worst < bound)) | ~live.any(1)

    def select(self, active: Tensor) -> None:
        self.max_lengths, self.pool = self.max_lengths[active], self.pool[active]


RULES: dict[str | None, type[ShrinkingBeam | FixedBeam]] = {None: ShrinkingBeam, "toolkit": FixedBeam}


@torch.no_grad()
def beam_search(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    state: Any,
    max_lengths: Tensor,
    first: int,
    options: SearchOptions,
    eos: int,
) -> list[list[int]]:
    """Return the token ids of each sentence's translation, without EOS.

    Args:
        step: takes tokens ``(rows,)`` and a state; returns logits ``(rows, vocabulary)`` and the next state.
        state: the initial state, with one row per sentence, and the method ``select`` of
            :class:`rmsexp.models.translation.DecoderState`.
        max_lengths: largest number of tokens of each translation, including EOS, at least 1, ``(sentences,)``.
        first: the id that ``step`` reads at the start, where there is no previous token.
        eos: id of EOS.

    Equally probable continuations of different hypotheses keep the order of these hypotheses. A hypothesis has no
    continuation if one of its logits is NaN or +inf, or all are -inf. A sentence none of whose hypotheses becomes
    complete gets an empty translation.
    """
    beam, device, rule = options.beam, max_lengths.device, RULES[options.search](options, max_lengths)
    sentences = torch.arange(len(max_lengths), device=device)  # indices of the sentences not yet done
    longest = int(max_lengths.max())
    best = max_lengths.new_full((len(sentences), longest), eos)
    best_costs = torch.full((len(sentences),), math.inf, device=device)

    state = state.select(sentences.repeat_interleave(beam), memory=True)
    tokens = max_lengths.new_full((len(sentences), beam), first)
    prefixes = best[:, None].repeat(1, beam, 1)
    costs = torch.full((len(sentences), beam), math.inf, device=device)  # infinite in empty slots
    costs[:, 0] = 0

    for length in range(1, longest + 1):
        logits, state = step(tokens.flatten(), state)
        banned = eos if options.forbid_empty and length == 1 else None
        costs, parents, tokens = _continuations(costs, logits, rule.width, banned)
        complete, live, done = rule.judge(costs, tokens == eos, length)

        complete_costs, slot = (costs / options.divisor(length)).masked_fill(~complete, math.inf).min(1, keepdim=True)
        hypotheses = _extended(prefixes, parents.gather(1, slot), tokens.gather(1, slot), length)[:, 0]
        better = complete_costs < best_costs[sentences, None]
        best[sentences] = torch.where(better, hypotheses, best[sentences])
        best_costs[sentences] = torch.where(better, complete_costs, best_costs[sentences, None])[:, 0]

        costs = costs.masked_fill(~live, math.inf)
        if rule.width > beam:
            cheapest = costs.argsort(dim=1, stable=True)[:, :beam]
            costs, parents, tokens = (values.gather(1, cheapest) for values in (costs, parents, tokens))
        prefixes = _extended(prefixes, parents, tokens, length)
        rows = parents + beam * torch.arange(len(parents), device=device)[:, None]
        active = (~done).nonzero().squeeze(1)  # nonzero() waits for the device
        if any_done := len(active) < len(sentences):
            rule.select(active)
            sentences, costs, prefixes = sentences[active], costs[active], prefixes[active]
            tokens, rows = tokens[active], rows[active]
        if not len(active):
            break
        state = state.select(rows.flatten(), memory=any_done)
    return [row[: row.index(eos)] if eos in row else row for row in best.tolist()]


def _extended(prefixes: Tensor, parents: Tensor, tokens: Tensor, length: int) -> Tensor:
    """Return the tokens of hypotheses of ``length`` tokens, ``(sentences, hypotheses, longest)``.

    ``parents``: index of the prefix of each hypothesis; ``tokens``: its last token; both ``(sentences, hypotheses)``.
    """
    extended = prefixes.gather(1, parents[..., None].expand(-1, -1, prefixes.shape[2]))
    extended[..., length - 1] = tokens
    return extended


def _continuations(costs: Tensor, logits: Tensor, count: int, banned: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return cost, parent and token of each sentence's ``count`` cheapest continuations, in ascending order of cost.

    A cost is minus the sum of the log probabilities of all tokens so far. A parent is the hypothesis that is continued,
    as an index in the beam. Shapes: ``costs`` ``(sentences, beam)``, ``logits`` ``(sentences * beam, vocabulary)``,
    results ``(sentences, count)``, or fewer if there are fewer. ``banned``: id of a token that may not follow, or None.
    """
    beam, vocabulary = costs.shape[1], logits.shape[-1]
    log_probabilities = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    if banned is not None:
        log_probabilities[:, banned] = -math.inf
    # The best continuations are among the `count` likeliest tokens of each hypothesis, so only these are sorted.
    likeliest, tokens = log_probabilities.topk(min(count, vocabulary), dim=-1)
    candidates = (costs[..., None] - likeliest.view(-1, beam, likeliest.shape[1])).flatten(1)
    candidates.nan_to_num_(nan=math.inf, posinf=math.inf)
    order = candidates.argsort(dim=1, stable=True)[:, :count]
    best_tokens = tokens.view(len(costs), -1).gather(1, order)
    return candidates.gather(1, order), order // likeliest.shape[1], best_tokens
