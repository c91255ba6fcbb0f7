"""RNNSearch as in Nematus: a bidirectional GRU encoder, attention, and a conditional GRU (two GRUs) as decoder.

Sources: Bahdanau et al. 2015; Sennrich et al. 2017, section 2. The norm is applied at 22 sites: 4 in each of 4 GRUs, 2
in the attention, 1 for the decoder's first state, 3 in the readout.

Deviation: RNNSearch, depth and length
    original: the authors' README names a recipe with a depth of 4 (encoder) and 8 (decoder), one matrix for target
        embedding and softmax, and at most 50 subwords a sentence (wmt17-scripts:training/scripts/train.sh:28-38)
    ours: a GRU in each direction of the encoder and two in the decoder, two matrices, and at most 80 subwords
    why: the paper states a GRU and 80; its seconds per 1,000 steps are those of a shallow model; tied matrices are an
        option (`model.tied=true`)
    effect: not measured
Deviation: RNNSearch in Theano, keys in decoding with WeightNorm
    original: computed with the weight before normalisation (nematus-theano:nematus/nmt.py:718-719), unlike in training
    ours: computed with the normalised weight, as in training
    why: a mistake in the original
    effect: not measured; the original's BLEU with WeightNorm is probably lower than that of its trained model

Shapes: source and target tokens and masks ``(batch, time)``; embeddings ``(batch, time, E)``; hidden states
``(batch, time, H)``; annotations, contexts and keys ``(batch, time, C)`` with C = 2 H.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.models.recurrent import DIFFERENT_NORMS, GRU, Part, Weights, affine
from rmsexp.models.translation import Batch, DecoderState
from rmsexp.norms import Norm, kernels
from rmsexp.task import Noise


class DecoderWeights(NamedTuple):
    """The effective weights of a decoder step. Training computes them once per batch, decoding at every step."""

    first: Weights
    second: Weights
    query: Tensor
    score: Tensor


class RNNSearch(nn.Module):
    """Map source and target tokens to logits of the target tokens.

    Args:
        norm: creates the linear layers and norms of the model.
        source_size, target_size: sizes of the vocabularies.
        embedding, hidden: E and H, the sizes of embeddings and of hidden states.
        dropout: dropout rate of embeddings and of the output matrix's input; the paper mentions no dropout.
        tied: whether the target embedding is the output matrix, too; else ``output_weight``, (target_size, E), is.
        score_bias: whether the attention score has a bias, as in Nematus for Theano. The softmax of the scores does not
            depend on it.
    """

    def __init__(
        self,
        norm: Norm,
        source_size: int,
        target_size: int,
        *,
        embedding: int,
        hidden: int,
        dropout: float = 0.0,
        tied: bool = True,
        score_bias: bool = False,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        context = 2 * hidden
        self.source_embedding = nn.Parameter(torch.full((source_size, embedding), float("nan")))
        self.target_embedding = nn.Parameter(torch.full((target_size, embedding), float("nan")))
        self.output_weight = None if tied else nn.Parameter(torch.full((target_size, embedding), float("nan")))
        self.output_bias = nn.Parameter(torch.zeros(target_size))
        self.forward_gru = GRU(norm, "encoder.forward", embedding, hidden)
        self.backward_gru = GRU(norm, "encoder.backward", embedding, hidden)
        self.initial = norm.linear("initial", context, hidden)
        self.first_gru = GRU(norm, "decoder.first", embedding, hidden)
        self.keys = norm.at(role="key").linear("attention.keys", context, context)
        self.query = norm.at(role="query").linear("attention.query", hidden, context, bias=False)
        self.score = norm.plain("attention.score", context, 1, bias=score_bias)
        self.second_gru = GRU(norm, "decoder.second", context, hidden, bias_of_state=True)
        self.of_previous = norm.at(role="output").linear("readout.previous", embedding, embedding)
        self.of_state = norm.at(role="output").linear("readout.state", hidden, embedding)
        self.of_context = norm.at(role="output").linear("readout.context", context, embedding)

    def forward(self, batch: Batch, noise: Noise | None = None) -> Tensor:
        """Return logits of the real target tokens, ``(tokens, target_size)``; ``noise=None`` applies no dropout."""
        start = self.encode(batch.source, batch.source_mask, noise)
        weights = self._weights()
        mask, steps = batch.target_mask, range(batch.target.shape[1])
        previous = F.pad(F.embedding(batch.target[:, :-1], self.target_embedding), (0, 0, 1, 0))  # zeros at step 0
        if noise is not None:
            previous = noise.dropout(previous, self.dropout)
        if self.first_gru.fused:
            states, contexts = self._decode_fused(previous, start, weights)
        else:
            states, contexts = self._decode_by_step(previous, start, weights, mask)
        readout = self._readout(previous, states, contexts, mask, steps)
        if noise is not None:
            readout = noise.dropout(readout, self.dropout)
        return self._logits(readout.flatten(0, 1).index_select(0, batch.real))

    def encode(self, source: Tensor, mask: Tensor, noise: Noise | None = None) -> DecoderState:
        """Return the decoder's state before the first target token; its memory is annotations, keys and source mask."""
        embedded = F.embedding(source, self.source_embedding)
        if noise is not None:
            embedded = noise.dropout(embedded, self.dropout)
        annotations = torch.cat(
            [self.forward_gru(embedded, mask), self.backward_gru(embedded, mask, reverse=True)], dim=-1
        )
        weights = mask.unsqueeze(-1).to(annotations.dtype)
        state = torch.tanh(self.initial((annotations * weights).sum(1) / weights.sum(1)))
        return DecoderState((annotations, self.keys(annotations, mask=mask), mask), (state,))

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return logits ``(rows, target_size)`` of the token after ``tokens``, ``(rows,)``, and the next state."""
        weights = self._weights()
        is_token = (tokens >= 0).unsqueeze(-1)  # FIRST is negative; its embedding is zeros
        previous = F.embedding(tokens.clamp(min=0), self.target_embedding) * is_token
        part = self.first_gru.read(previous, weights.first, None, state.step)
        new, context = self._advance(part, state.history[0], state.memory, weights, None, state.step)
        logits = self._logits(self._readout(previous, new, context, None, state.step))
        return logits, DecoderState(state.memory, (new,), state.step + 1)

    def _weights(self) -> DecoderWeights:
        first, second = self.first_gru.weights(), self.second_gru.weights()
        return DecoderWeights(first, second, self.query.effective_weight(), self.score.effective_weight())

    def _decode_by_step(
        self, previous: Tensor, start: DecoderState, weights: DecoderWeights, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states ``(batch, time, H)`` and contexts ``(batch, time, C)``, computed target step by step."""
        gates, candidate = self.first_gru.read(previous, weights.first, mask, range(previous.shape[1]))
        (state,) = start.history
        states, contexts = [], []
        for step, part in enumerate(zip(gates.unbind(1), candidate.unbind(1), strict=True)):
            state, context = self._advance(part, state, start.memory, weights, mask[:, step], step)
            states.append(state)
            contexts.append(context)
        return torch.stack(states, 1), torch.stack(contexts, 1)

    def _decode_fused(self, previous: Tensor, start: DecoderState, weights: DecoderWeights) -> tuple[Tensor, Tensor]:
        """Return the results of :meth:`_decode_by_step`, computed by one fused operator.

        It adds no bias to the scores, because their softmax does not depend on it.
        """
        annotations, keys, source_mask = start.memory
        form, eps = self.first_gru.form()
        query_form = self.query.norm.form(keys.shape[-1], keys.dtype)
        if self.second_gru.form() != (form, eps) or query_form.eps != eps:
            raise ValueError(DIFFERENT_NORMS)
        inputs = {
            "x": self.first_gru.products(previous, weights.first),
            "s0": start.history[0],
            "keys": keys,
            "values": annotations,
            "w_first": torch.cat([weights.first["gates_h"], weights.first["candidate_h"]]),
            "w_between": torch.cat([weights.query, weights.second["gates_h"], weights.second["candidate_h"]]),
            "w_context": torch.cat([weights.second["gates_x"], weights.second["candidate_x"]]),
            "score": weights.score.flatten(),
            "affine_first": self.first_gru.affine(),
            "affine_second": self.second_gru.affine(),
            "affine_query": affine((self.query,))[0],
            "bias": self.second_gru.bias_of_state(),
            "mask": source_mask,
        }
        states, contexts = kernels.sequence("decoder", (*form, *query_form[:3]), eps, inputs)
        return states, contexts

    def _advance(
        self,
        part: Part,
        state: Tensor,
        memory: tuple[Tensor, ...],
        weights: DecoderWeights,
        mask: Tensor | None,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """Run one decoder step; return the new hidden state ``(batch, H)`` and the context ``(batch, C)``.

        ``part``: the result of the first GRU's ``read``. ``mask``, ``(batch,)``: true on real tokens.
        """
        annotations, keys, source_mask = memory
        (between,) = self.first_gru.transition(part, (state,), weights.first, mask, step)
        query = self.query.norm(self.query.map(between, weights.query), mask=mask, steps=step)
        scores = self.score.map(torch.tanh(keys + query.unsqueeze(1)), weights.score).squeeze(-1)
        attention = torch.softmax(scores.masked_fill(~source_mask, float("-inf")), -1)
        context = torch.bmm(attention.unsqueeze(1), annotations).squeeze(1)
        second = self.second_gru.read(context, weights.second, mask, step)
        (new,) = self.second_gru.transition(second, (between,), weights.second, mask, step)
        return new, context

    def _readout(
        self, previous: Tensor, state: Tensor, context: Tensor, mask: Tensor | None, steps: int | range
    ) -> Tensor:
        """Return the vector that the output matrix is multiplied by, ``(…, E)``, before dropout."""
        return torch.tanh(
            self.of_previous(previous, mask=mask, steps=steps)
            + self.of_state(state, mask=mask, steps=steps)
            + self.of_context(context, mask=mask, steps=steps)
        )

    def _logits(self, readout: Tensor) -> Tensor:
        matrix = self.target_embedding if self.output_weight is None else self.output_weight
        return F.linear(readout, matrix, self.output_bias)
