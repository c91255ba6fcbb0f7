"""The attentive reader: bidirectional LSTMs over passage and question, and attention over the passage.

Hermann et al. 2015, with the similarity and skip terms of the code of Cooijmans et al. 2017 (``use_dq_sims``,
``use_desc_skip_c_g``). Legend: d the width, ``[a; b]`` a concatenation. 12 sites are normalised: 3 in each of 4 LSTMs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.models.noise import Noise
from rmsexp.models.recurrent import LSTM
from rmsexp.norms import Norm


@dataclass(frozen=True)
class Batch:
    """Word ids and masks, ``(batch, time)``, the mask true on words; answers ``(batch,)``."""

    passage: Tensor
    passage_mask: Tensor
    question: Tensor
    question_mask: Tensor
    answer: Tensor


class BidirectionalLSTM(nn.Module):
    """Two LSTMs, which begin with learned hidden states and read a sequence from its two ends."""

    def __init__(self, norm: Norm, name: str, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.forward_lstm = LSTM(norm, f"{name}.forward", input_size, hidden_size)
        self.backward_lstm = LSTM(norm, f"{name}.backward", input_size, hidden_size)
        self.initial = nn.Parameter(torch.zeros(2, hidden_size))

    def forward(self, ahead: Tensor, back: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states, ``(batch, time, hidden_size)`` each, in the order of their inputs.

        ``ahead`` and ``back`` are what each direction reads: the same words with their own dropout.
        """
        hidden = [state.expand(len(ahead), -1) for state in self.initial]
        cell = torch.zeros_like(hidden[0])
        return (
            self.forward_lstm(ahead, mask, (hidden[0], cell)),
            self.backward_lstm(back, mask, (hidden[1], cell), reverse=True),
        )


class AttentiveReader(nn.Module):
    """Maps passages and questions to logits of the answer, over the whole vocabulary.

    Args:
        words: size of the vocabulary.
        width: d, of embeddings, states and attention.
        dropout: on embeddings, apart for each direction, and on what the output matrix is applied to.
    """

    def __init__(self, norm: Norm, words: int, *, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        both = 2 * width
        self.embedding = nn.Parameter(torch.full((words, width), float("nan")))
        self.passage = BidirectionalLSTM(norm, "passage", width, width)
        self.question = BidirectionalLSTM(norm, "question", width, width)
        self.similarity = norm.plain("attention.similarity", both, both, bias=False)
        self.key = norm.optional("attention.key", both, width)
        self.query = norm.optional("attention.query", both, width, bias=False)
        self.score = norm.plain("attention.score", width, 1, bias=False)
        self.of_context = norm.optional("readout.context", both, width, bias=False)
        self.of_question = norm.optional("readout.question", both, width)
        self.of_passage = norm.optional("readout.passage", both, width, bias=False)
        self.output = nn.Parameter(torch.full((words, width), float("nan")))
        self.output_bias = nn.Parameter(torch.zeros(words))

    def forward(self, batch: Batch, noise: Noise | None = None) -> Tensor:
        """Logits ``(batch, words)``."""
        mask = batch.passage_mask
        annotations = torch.cat(self._read(self.passage, batch.passage, mask, noise), -1)
        ahead, back = self._read(self.question, batch.question, batch.question_mask, noise)
        question = torch.cat([ahead[:, -1], back[:, 0]], -1)  # where each direction ends
        real = mask.unsqueeze(-1).to(annotations.dtype)
        mean = (annotations * real).sum(1) / real.sum(1)
        attention = self._attend(annotations, question, mask)
        context = torch.bmm(attention.unsqueeze(1), annotations).squeeze(1)
        result = torch.tanh(self.of_context(context) + self.of_question(question) + self.of_passage(mean))
        if noise is not None:
            result = noise.dropout(result, self.dropout)
        return F.linear(result, self.output, self.output_bias)

    def _read(
        self, reader: BidirectionalLSTM, words: Tensor, mask: Tensor, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states of both directions; each reads the words with a dropout of its own."""
        ahead = back = F.embedding(words, self.embedding)
        if noise is not None:
            ahead, back = noise.dropout(ahead, self.dropout), noise.dropout(back, self.dropout)
        states: tuple[Tensor, Tensor] = reader(ahead, back, mask)
        return states

    def _attend(self, annotations: Tensor, question: Tensor, mask: Tensor) -> Tensor:
        """Weights ``(batch, time)`` over the passage.

        ``score_t = w . tanh(D_t Wd + q Wq + (D_t B) . (q B))``; the similarity is a number a position, added to all
        units. It is computed as ``D_t . (B B' q)``, which costs nothing per position.
        """
        weight = self.similarity.effective_weight()
        similarity = torch.bmm(annotations, ((question @ weight.T) @ weight).unsqueeze(-1))
        hidden = self.key(annotations, mask=mask) + self.query(question).unsqueeze(1) + similarity
        scores = self.score(torch.tanh(hidden)).squeeze(-1)
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
