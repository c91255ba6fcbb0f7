"""Beam search as Nematus does it, over any model that continues hypotheses token by token.

Hypotheses are ranked by the plain sum of their log probabilities. One that ends keeps its place, so the beam of those
that go on is one smaller from then on. A sentence stops when each of its places has ended or its maximum length is
reached; the best of the ended ones, and of the unfinished ones at the maximum length, is the one whose sum is best
after division by a function of its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from rmsexp import checks

# What the sum of log probabilities is divided by, of the length (EOS counted) and alpha.
NORMALISATIONS: dict[str, Callable[[int, float], float]] = {
    "length": lambda length, _: length,
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, equation 14, without coverage
}


class State(Protocol):
    """What a decoder carries between steps for each of its rows (hypotheses)."""

    def select(self, rows: Tensor, *, memory: bool) -> Self:
        """The state of ``rows``, in this order.

        Without ``memory`` there are as many rows as before and row i's sentence is what it was, so that what belongs to
        the sentence need not be copied.
        """
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search; ``alpha`` is used by ``gnmt`` only. With ``forbid_empty`` EOS cannot come first.

    Raises: ValueError if a value is out of range.
    """

    beam: int
    normalisation: str
    alpha: float
    forbid_empty: bool

    def __post_init__(self) -> None:
        checks.at_least("decoding.beam", self.beam, 1)
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
    """The best token ids of each sentence, without EOS; greedy search with a beam of 1.

    ``state`` has one row a sentence. ``step`` takes tokens ``(rows,)`` and a state, and returns logits
    ``(rows, vocabulary)`` and the state after them; ``first`` is what it reads before the first token. ``max_lengths``,
    ``(sentences,)``, is the largest number of tokens, EOS counted, and at least 1.

    Equally probable candidates rank as their hypotheses do. A hypothesis whose logits are not numbers has no
    continuation; a sentence that is left without any hypothesis gives no tokens.
    """
    beam, device = options.beam, max_lengths.device
    sentences = torch.arange(len(max_lengths), device=device)  # those that go on
    ranks = torch.arange(beam, device=device)
    longest = int(max_lengths.max())
    best = max_lengths.new_full((len(sentences), longest), eos)
    best_costs = torch.full((len(sentences),), math.inf, device=device)

    state = state.select(sentences.repeat_interleave(beam), memory=True)
    tokens = max_lengths.new_full((len(sentences), beam), first)
    prefixes = best[:, None].repeat(1, beam, 1)
    costs = torch.full((len(sentences), beam), math.inf, device=device)  # infinite where there is no hypothesis
    costs[:, 0] = 0
    places = max_lengths.new_full((len(sentences), 1), beam)  # those that have not ended

    for length in range(1, longest + 1):
        logits, state = step(tokens.flatten(), state)
        banned = eos if options.forbid_empty and length == 1 else None
        costs, parents, tokens = _continuations(costs, logits, banned)
        costs = costs.masked_fill(ranks >= places, math.inf)
        prefixes = prefixes.gather(1, parents[..., None].expand_as(prefixes))
        prefixes[..., length - 1] = tokens

        exists, at_end = costs.isfinite(), length >= max_lengths
        ended = exists & (tokens == eos)
        penalty = NORMALISATIONS[options.normalisation](length, options.alpha)
        found, which = (costs / penalty).masked_fill(~(ended | at_end[:, None]), math.inf).min(1)
        better = found < best_costs[sentences]
        chosen = prefixes[torch.arange(len(which), device=device), which]
        best[sentences] = torch.where(better[:, None], chosen, best[sentences])
        best_costs[sentences] = torch.where(better, found, best_costs[sentences])

        costs = costs.masked_fill(ended, math.inf)
        places = places - ended.sum(1, keepdim=True)
        rows = parents + beam * torch.arange(len(parents), device=device)[:, None]
        going = (costs.isfinite().any(1) & ~at_end).nonzero().squeeze(1)  # the one wait for the device in a step
        if leaving := len(going) < len(sentences):
            sentences, max_lengths, places = sentences[going], max_lengths[going], places[going]
            costs, prefixes, tokens, rows = costs[going], prefixes[going], tokens[going], rows[going]
        if not len(going):
            break
        state = state.select(rows.flatten(), memory=leaving)
    return [row[: row.index(eos)] if eos in row else row for row in best.tolist()]


def _continuations(costs: Tensor, logits: Tensor, banned: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The cheapest continuations of each sentence, in order: costs, the rank of what each continues, and its token.

    ``costs``, ``(sentences, beam)``, are negative log probabilities; all that is returned has the same shape.
    """
    beam, vocabulary = costs.shape[1], logits.shape[-1]
    log_probabilities = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    if banned is not None:
        log_probabilities[:, banned] = -math.inf
    # Of each hypothesis only its best tokens can be among the best: the long dimension is looked through once.
    likeliest, tokens = log_probabilities.topk(min(beam, vocabulary), dim=-1)
    candidates = (costs[..., None] - likeliest.view(-1, beam, likeliest.shape[1])).flatten(1)
    candidates.nan_to_num_(nan=math.inf, posinf=math.inf)
    order = candidates.argsort(dim=1, stable=True)[:, :beam]
    chosen = tokens.view(len(costs), -1).gather(1, order)
    return candidates.gather(1, order), order // likeliest.shape[1], chosen
