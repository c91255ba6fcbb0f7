"""The attentive reader: bidirectional LSTMs over passage and question, and attention over the passage.

Source: Hermann et al. 2015, with the similarity term and the skip connection of the code of Cooijmans et al. 2017
(its options ``use_dq_sims`` and ``use_desc_skip_c_g``). The norm is applied at 12 sites, 3 in each of 4 LSTMs.
BN-Everywhere (``norm=bn norm.everywhere=true``) adds 5 sites, in the attention and the readout.

Shapes: words and masks ``(batch, time)``; embeddings and hidden states ``(batch, time, d)``, where d is the width;
annotations ``(batch, time, 2 d)``, the hidden states of both directions concatenated.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.models.recurrent import LSTM
from rmsexp.norms import Norm
from rmsexp.task import Noise


class Batch(NamedTuple):
    """Word ids ``(batch, time)``, and answers ``(batch,)``; masks are false on padding."""

    passage: Tensor
    passage_mask: Tensor
    question: Tensor
    question_mask: Tensor
    answer: Tensor


class BidirectionalLSTM(nn.Module):
    """Two LSTMs that read a sequence in opposite directions. Initial hidden states are learned; initial cells are 0."""

    def __init__(self, norm: Norm, name: str, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.forward_lstm = LSTM(norm, f"{name}.forward", input_size, hidden_size)
        self.backward_lstm = LSTM(norm, f"{name}.backward", input_size, hidden_size)
        self.initial = nn.Parameter(torch.zeros(2, hidden_size))

    def forward(self, x: Tensor, mask: Tensor, noise: Noise | None, dropout: float) -> tuple[Tensor, Tensor]:
        """Return the hidden states of the forward and of the backward LSTM, each at the positions of the words it read.

        ``x``, ``(batch, time, input_size)``: embedded words, to which the two LSTMs apply different dropout.
        """
        ahead, back = (x, x) if noise is None else (noise.dropout(x, dropout), noise.dropout(x, dropout))
        hidden = [state.expand(len(x), -1) for state in self.initial]
        cell = torch.zeros_like(hidden[0])
        return (
            self.forward_lstm(ahead, mask, (hidden[0], cell)),
            self.backward_lstm(back, mask, (hidden[1], cell), reverse=True),
        )


class AttentiveReader(nn.Module):
    """Map passages and questions to logits of the answer over the whole vocabulary.

    ``words``: size of the vocabulary. ``width``: d, the size of embeddings, hidden states and attention. ``dropout``:
    dropout rate of embeddings (drawn separately for each direction) and of the output matrix's input.
    """

    def __init__(self, norm: Norm, words: int, *, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        annotation_size = 2 * width
        self.embedding = nn.Parameter(torch.full((words, width), float("nan")))
        self.passage = BidirectionalLSTM(norm, "passage", width, width)
        self.question = BidirectionalLSTM(norm, "question", width, width)
        self.similarity = norm.plain("attention.similarity", annotation_size, annotation_size, bias=False)
        self.key = norm.at(role="key").optional("attention.key", annotation_size, width)
        self.query = norm.at(role="query").optional("attention.query", annotation_size, width, bias=False)
        self.score = norm.plain("attention.score", width, 1, bias=False)
        self.of_context = norm.at(role="output").optional("readout.context", annotation_size, width, bias=False)
        self.of_question = norm.at(role="output").optional("readout.question", annotation_size, width)
        self.of_passage = norm.at(role="output").optional("readout.passage", annotation_size, width, bias=False)
        self.output = nn.Parameter(torch.full((words, width), float("nan")))
        self.output_bias = nn.Parameter(torch.zeros(words))

    def forward(self, batch: Batch, noise: Noise | None = None) -> Tensor:
        """Return logits ``(batch, words)``; ``noise=None``, as in evaluation, applies no dropout."""
        mask = batch.passage_mask
        passage, words = F.embedding(batch.passage, self.embedding), F.embedding(batch.question, self.embedding)
        annotations = torch.cat(self.passage(passage, mask, noise, self.dropout), -1)
        ahead, back = self.question(words, batch.question_mask, noise, self.dropout)
        question = torch.cat([ahead[:, -1], back[:, 0]], -1)  # each LSTM's state after the whole question
        weights = mask.unsqueeze(-1).to(annotations.dtype)
        mean = (annotations * weights).sum(1) / weights.sum(1)
        attention = self._attend(annotations, question, mask)
        context = torch.bmm(attention.unsqueeze(1), annotations).squeeze(1)
        readout = torch.tanh(self.of_context(context) + self.of_question(question) + self.of_passage(mean))
        if noise is not None:
            readout = noise.dropout(readout, self.dropout)
        return F.linear(readout, self.output, self.output_bias)

    def _attend(self, annotations: Tensor, question: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights ``(batch, time)`` over the passage, 0 on padding.

        ``score_t = w . tanh(D_t Wd + b + q Wq + (D_t B) . (q B))`` for the annotation D_t at position t and the vector
        q of the question. The last term, the similarity, is one number per position, which is added to each of the d
        units. It is computed as ``D_t . (B B^T q)``, so that the products with B and its transpose are needed once per
        question instead of once per position.
        """
        weight = self.similarity.effective_weight()
        similarity = torch.bmm(annotations, ((question @ weight.T) @ weight).unsqueeze(-1))
        hidden = self.key(annotations, mask=mask) + self.query(question).unsqueeze(1) + similarity
        scores = self.score(torch.tanh(hidden)).squeeze(-1)
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
