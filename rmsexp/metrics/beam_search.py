"""Beam search as in Nematus, for any model that continues hypotheses token by token.

During the search, hypotheses are ranked by the sum of the log probabilities of their tokens. When a hypothesis ends
with EOS, its sentence continues with one slot of the beam fewer. A sentence is done when it has no slot left or its
maximum length is reached. Complete hypotheses are those that ended with EOS and those that reached the maximum length
without it. The translation is the complete hypothesis with the largest sum of log probabilities divided by a function
of the length (``NORMALISATIONS``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from rmsexp import checks

# For each normalisation: the divisor of a hypothesis's sum of log probabilities, from its length (with EOS) and alpha.
NORMALISATIONS: dict[str, Callable[[int, float], float]] = {
    "length": lambda length, _: length,
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, equation 14, lp (no coverage penalty)
}


class State(Protocol):
    """The state of a decoder between steps, with one row per hypothesis."""

    def select(self, rows: Tensor, *, memory: bool) -> Self:
        """Return a state that consists of the rows with the indices ``rows``, in this order.

        With ``memory=False`` the caller promises that there are as many rows as before and that each row keeps its
        sentence. Tensors that depend on the sentence alone are then reused without a copy.
        """
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search.

    ``beam``: largest number of hypotheses per sentence. ``normalisation``: a key of ``NORMALISATIONS``. ``alpha``:
    exponent of "gnmt", unused by "length". ``forbid_empty``: whether EOS is excluded as the first token.

    Raises: ValueError if a value is out of range.
    """

    beam: int
    normalisation: str
    alpha: float
    forbid_empty: bool

    def __post_init__(self) -> None:
        checks.at_least("decoding.beam", self.beam, 1, checks.LARGEST_BEAM)
        checks.choice("decoding.normalisation", self.normalisation, tuple(NORMALISATIONS))
        checks.at_least("decoding.alpha", self.alpha, 0)


@torch.no_grad()
def beam_search(
    step: Callable[[Tensor, S], tuple[Tensor, S]],
    state: S,
    max_lengths: Tensor,
    first: int,
    options: SearchOptions,
    eos: int,
) -> list[list[int]]:
    """Return the token ids of each sentence's translation, without EOS. A beam of 1 is greedy search.

    Args:
        step: takes tokens ``(rows,)`` and a state; returns logits ``(rows, vocabulary)`` and the next state.
        state: the initial state, with one row per sentence.
        max_lengths: largest number of tokens of each translation, including EOS, at least 1, ``(sentences,)``.
        first: the id that ``step`` reads at the start, where there is no previous token.
        eos: id of EOS.

    Equally probable continuations of different hypotheses keep the order of these hypotheses. A hypothesis has no
    continuation if one of its logits is NaN or +inf, or all are -inf. A sentence none of whose hypotheses becomes
    complete gets an empty translation.
    """
    beam, device = options.beam, max_lengths.device
    sentences = torch.arange(len(max_lengths), device=device)  # indices of the sentences not yet done
    ranks = torch.arange(beam, device=device)
    longest = int(max_lengths.max())
    best = max_lengths.new_full((len(sentences), longest), eos)
    best_costs = torch.full((len(sentences),), math.inf, device=device)

    state = state.select(sentences.repeat_interleave(beam), memory=True)
    tokens = max_lengths.new_full((len(sentences), beam), first)
    prefixes = best[:, None].repeat(1, beam, 1)
    costs = torch.full((len(sentences), beam), math.inf, device=device)  # infinite in empty slots
    costs[:, 0] = 0
    slots = max_lengths.new_full((len(sentences), 1), beam)  # number of slots left to each sentence

    for length in range(1, longest + 1):
        logits, state = step(tokens.flatten(), state)
        banned = eos if options.forbid_empty and length == 1 else None
        costs, parents, tokens = _continuations(costs, logits, banned)
        costs = costs.masked_fill(ranks >= slots, math.inf)
        prefixes = prefixes.gather(1, parents[..., None].expand_as(prefixes))
        prefixes[..., length - 1] = tokens

        exists, at_end = costs.isfinite(), length >= max_lengths
        ended = exists & (tokens == eos)
        divisor = NORMALISATIONS[options.normalisation](length, options.alpha)
        complete_costs, slot = (costs / divisor).masked_fill(~(ended | at_end[:, None]), math.inf).min(1)
        better = complete_costs < best_costs[sentences]
        complete = prefixes[torch.arange(len(slot), device=device), slot]
        best[sentences] = torch.where(better[:, None], complete, best[sentences])
        best_costs[sentences] = torch.where(better, complete_costs, best_costs[sentences])

        costs = costs.masked_fill(ended, math.inf)
        slots = slots - ended.sum(1, keepdim=True)
        rows = parents + beam * torch.arange(len(parents), device=device)[:, None]
        active = (costs.isfinite().any(1) & ~at_end).nonzero().squeeze(1)  # nonzero() waits for the device
        if any_done := len(active) < len(sentences):
            sentences, max_lengths, slots = sentences[active], max_lengths[active], slots[active]
            costs, prefixes, tokens, rows = costs[active], prefixes[active], tokens[active], rows[active]
        if not len(active):
            break
        state = state.select(rows.flatten(), memory=any_done)
    return [row[: row.index(eos)] if eos in row else row for row in best.tolist()]


def _continuations(costs: Tensor, logits: Tensor, banned: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return cost, parent and token of each sentence's cheapest continuations, in ascending order of cost.

    A cost is minus the sum of the log probabilities of all tokens so far. A continuation's parent is the hypothesis
    that it continues, as an index in the beam. ``costs`` and the three results have shape ``(sentences, beam)``;
    ``logits`` has shape ``(sentences * beam, vocabulary)``. ``banned``: id of a token that may not follow, or None.
    """
    beam, vocabulary = costs.shape[1], logits.shape[-1]
    log_probabilities = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    if banned is not None:
        log_probabilities[:, banned] = -math.inf
    # The best continuations are among the `beam` likeliest tokens of each hypothesis, so only these are sorted.
    likeliest, tokens = log_probabilities.topk(min(beam, vocabulary), dim=-1)
    candidates = (costs[..., None] - likeliest.view(-1, beam, likeliest.shape[1])).flatten(1)
    candidates.nan_to_num_(nan=math.inf, posinf=math.inf)
    order = candidates.argsort(dim=1, stable=True)[:, :beam]
    best_tokens = tokens.view(len(costs), -1).gather(1, order)
    return candidates.gather(1, order), order // likeliest.shape[1], best_tokens
