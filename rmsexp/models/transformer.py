"""The Transformer (Vaswani et al. 2017), as in "zero", the toolkit of the RMSNorm paper's authors.

Shapes: tokens and masks ``(batch, time)``; activations ``(batch, time, width)``; queries, keys and values
``(batch, heads, time, width / heads)``. The norm is applied to each residual sum, or with ``pre_norm`` to the input of
each sublayer and to the outputs of encoder and decoder. There are 2 sites in an encoder layer and 3 in a decoder
layer, 30 in the base model (32 with ``pre_norm``).
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.models.translation import Batch, DecoderState
from rmsexp.norms import Norm
from rmsexp.system import checks
from rmsexp.task import Noise


@dataclass
class Sizes:
    """Sizes and dropout rates of a Transformer. The defaults are the base model's.

    ``layers``: number of layers of the encoder, and of the decoder. ``inner``: width inside the feed-forward layers.
    ``pre_norm``: whether norms come before the sublayers instead of after the residual sums, with one more norm at the
    end of encoder and of decoder. ``dropout``: rate on embeddings and on the outputs of sublayers.
    ``attention_dropout``: rate on attention weights. ``relu_dropout``: rate on the output of the ReLUs.

    Raises: ValueError if a value is out of range, if ``width`` is odd, or if ``heads`` does not divide ``width``.
    """

    width: int = 512
    heads: int = 8
    layers: int = 6
    inner: int = 2048
    pre_norm: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    relu_dropout: float = 0.1

    def __post_init__(self) -> None:
        for key in ("width", "heads", "inner"):
            checks.at_least(f"model.{key}", getattr(self, key), 1, checks.LARGEST_WIDTH)
        checks.at_least("model.layers", self.layers, 1, checks.MOST_LAYERS)
        for key in ("dropout", "attention_dropout", "relu_dropout"):
            checks.probability(f"model.{key}", getattr(self, key))
        if self.width % self.heads:
            raise ValueError(f"model.heads={self.heads} does not divide model.width={self.width}")
        if self.width % 2 or self.width < 4:
            raise ValueError(f"model.width={self.width}: encodings of positions need an even number of at least 4")


class Transformer(nn.Module):
    """Map source and target tokens to logits of the target tokens; the target embedding is also the output matrix.

    ``norm``: creates the linear layers and norms. ``source_size``, ``target_size``: sizes of the vocabularies.
    """

    def __init__(self, norm: Norm, source_size: int, target_size: int, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.source_embedding = nn.Parameter(torch.full((source_size, sizes.width), float("nan")))
        self.target_embedding = nn.Parameter(torch.full((target_size, sizes.width), float("nan")))
        self.embedding_bias = nn.Parameter(torch.full((sizes.width,), float("nan")))
        norms = [norm.at(depth=i, layers=sizes.layers) for i in range(sizes.layers)]  # of the encoder, or the decoder
        self.encoder = nn.ModuleList(EncoderLayer(each, f"encoder.{i}", sizes) for i, each in enumerate(norms))
        self.decoder = nn.ModuleList(DecoderLayer(each, f"decoder.{i}", sizes) for i, each in enumerate(norms))
        at_end = norm.at(role="output")
        self.encoder_end = at_end.value("encoder.end", sizes.width) if sizes.pre_norm else None
        self.decoder_end = at_end.value("decoder.end", sizes.width) if sizes.pre_norm else None

    def forward(self, batch: Batch, noise: Noise | None = None) -> Tensor:
        """Return logits of the real target tokens, ``(tokens, target_size)``; ``noise=None`` applies no dropout."""
        memory = self._memory(self._encode(batch.source, batch.source_mask, noise))
        embedded = F.pad(self._embed(batch.target[:, :-1], self.target_embedding), (0, 0, 1, 0))  # zeros at position 0
        x, addend = self._place(embedded, 0, noise), None
        for layer, (key, value) in zip(self.decoder, memory, strict=True):
            x, addend, _ = layer(x, addend, batch.target_mask, key, value, batch.source_mask, noise)
        if self.decoder_end is not None:
            _, x = self.decoder_end.add(x, addend, mask=batch.target_mask)
        return F.linear(x.flatten(0, 1).index_select(0, batch.real), self.target_embedding)

    def encode(self, source: Tensor, mask: Tensor) -> DecoderState:
        """Return the decoder's state before the first target token.

        Memory: the source mask, then keys and values of the source for each decoder layer. History: keys and values of
        the target positions so far for each decoder layer.
        """
        memory = self._memory(self._encode(source, mask, None))
        empty = memory[0][0][:, :, :0]  # (batch, heads, 0, width / heads), no target position
        return DecoderState((mask, *(part for pair in memory for part in pair)), (empty,) * (2 * len(memory)))

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return logits ``(rows, target_size)`` of the token after ``tokens``, ``(rows,)``, and the next state."""
        is_token = (tokens >= 0).view(-1, 1, 1)  # FIRST is negative; its embedding is zeros, without bias
        embedded = self._embed(tokens.clamp(min=0).unsqueeze(1), self.target_embedding) * is_token
        x, addend = self._place(embedded, state.step, None), None
        mask, *memory = state.memory
        history: list[Tensor] = []
        for i, layer in enumerate(self.decoder):
            pair = slice(2 * i, 2 * i + 2)
            x, addend, past = layer(x, addend, None, *memory[pair], mask, None, past=state.history[pair])
            history += past
        if self.decoder_end is not None:
            _, x = self.decoder_end.add(x, addend)
        return F.linear(x[:, 0], self.target_embedding), DecoderState(state.memory, tuple(history), state.step + 1)

    def _encode(self, source: Tensor, mask: Tensor, noise: Noise | None) -> Tensor:
        """Return the encoder's output, ``(batch, time, width)``."""
        x, addend = self._place(self._embed(source, self.source_embedding), 0, noise), None
        for layer in self.encoder:
            x, addend = layer(x, addend, mask, noise)
        return x if self.encoder_end is None else self.encoder_end.add(x, addend, mask=mask)[1]

    def _memory(self, encoded: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of the encoder's output for each decoder layer."""
        return [cast(DecoderLayer, layer).to_source.key_and_value(encoded) for layer in self.decoder]

    def _embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Return ``sqrt(width) * table[tokens] + bias``."""
        return F.embedding(tokens, table) * math.sqrt(self.sizes.width) + self.embedding_bias

    def _place(self, embedded: Tensor, start: int, noise: Noise | None) -> Tensor:
        """Return the embeddings plus the encodings of positions from ``start`` on, with dropout if there is noise."""
        x = embedded + positions(start, embedded.shape[1], self.sizes.width, embedded)
        return x if noise is None else noise.dropout(x, self.sizes.dropout)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual sum and norm.

    Residual sums are two summands as in :class:`rmsexp.models.language_model.Layer`; with post-norm the addend is None.
    """

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.attention = SelfAttention(norm.at(role="attention"), f"{name}.attention", sizes)
        self.feed_forward = FeedForward(norm.at(role="feed-forward"), f"{name}.feed_forward", sizes)
        self.attended = Residual(norm.at(role="attention"), f"{name}.attended", sizes)
        self.fed = Residual(norm.at(role="feed-forward"), f"{name}.fed", sizes)

    def forward(
        self, x: Tensor, addend: Tensor | None, mask: Tensor, noise: Noise | None
    ) -> tuple[Tensor, Tensor | None]:
        x, y = self.attended.enter(x, addend, mask)
        y = self.attention(*self.attention.parts(y), noise, mask=mask)
        x, addend = self.attended.leave(x, y, mask, noise)
        x, y = self.fed.enter(x, addend, mask)
        return self.fed.leave(x, self.feed_forward(y, noise), mask, noise)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source and feed-forward. Residual sums: see :class:`EncoderLayer`."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.attention = SelfAttention(norm.at(role="attention"), f"{name}.attention", sizes)
        self.to_source = SourceAttention(norm.at(role="attention"), f"{name}.to_source", sizes)
        self.feed_forward = FeedForward(norm.at(role="feed-forward"), f"{name}.feed_forward", sizes)
        self.attended = Residual(norm.at(role="attention"), f"{name}.attended", sizes)
        self.informed = Residual(norm.at(role="attention"), f"{name}.informed", sizes)
        self.fed = Residual(norm.at(role="feed-forward"), f"{name}.fed", sizes)

    def forward(
        self,
        x: Tensor,
        addend: Tensor | None,
        mask: Tensor | None,
        key: Tensor,
        value: Tensor,
        source_mask: Tensor,
        noise: Noise | None,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
        """Return the output as two summands, and the self-attention's keys and values of all target positions so far.

        ``x``: activations of all target positions or, with ``past``, of the single position after ``past``. ``mask``:
        true on real target positions; only batch norms use it. ``key``, ``value``: those of the source. ``past``: the
        self-attention's keys and values of the target positions before ``x``.
        """
        x, y = self.attended.enter(x, addend, mask)
        query, own_key, own_value = self.attention.parts(y)
        if past is not None:
            own_key, own_value = torch.cat([past[0], own_key], 2), torch.cat([past[1], own_value], 2)
        y = self.attention(query, own_key, own_value, noise, causal=past is None)
        x, addend = self.attended.leave(x, y, mask, noise)
        x, y = self.informed.enter(x, addend, mask)
        y = self.to_source(self.to_source.split(self.to_source.query(y)), key, value, noise, mask=source_mask)
        x, addend = self.informed.leave(x, y, mask, noise)
        x, y = self.fed.enter(x, addend, mask)
        x, addend = self.fed.leave(x, self.feed_forward(y, noise), mask, noise)
        return x, addend, (own_key, own_value)


class Residual(nn.Module):
    """The residual sum of a sublayer with dropout, and its norm N.

    Post-norm: ``N(x + dropout(sublayer(x)))``. Pre-norm: ``x + dropout(sublayer(N(x)))``. See also EncoderLayer.
    """

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.norm = norm.value(name, sizes.width)
        self.pre_norm, self.dropout = sizes.pre_norm, sizes.dropout

    def enter(self, x: Tensor, addend: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the residual sum ``x + addend``, and the input of the sublayer."""
        return self.norm.add(x, addend, mask=mask) if self.pre_norm else (x, x)

    def leave(self, x: Tensor, y: Tensor, mask: Tensor | None, noise: Noise | None) -> tuple[Tensor, Tensor | None]:
        """Return ``x`` and ``dropout(y)``, y the sublayer's output; with post-norm, the norm of their sum and None."""
        y = y if noise is None else noise.dropout(y, self.dropout)
        return (x, y) if self.pre_norm else (self.norm.add(x, y, mask=mask)[1], None)


class Attention(nn.Module):
    """Multi-head attention. Subclasses compute queries, keys and values.

    The logits, ``query . key / sqrt(width / heads)``, should stay below 1e6. With a mask and logits from about 1e10 on,
    the backward pass of torch's flash attention on CPUs returns NaN; at 1e8 no NaN was seen.
    """

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.dropout = sizes.heads, sizes.attention_dropout
        self.output = norm.plain(f"{name}.output", sizes.width, sizes.width)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        noise: Noise | None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return the attention's output after its output layer, ``(batch, queries, width)``.

        Queries, keys and values must be split into heads (:meth:`split`). ``mask``, ``(batch, keys)``, is true on real
        keys. With ``causal`` a query sees no later position.
        """
        dropout = 0.0 if noise is None else self.dropout
        if noise is not None and dropout:
            noise.seed_default(query.device)
        broadcast = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=broadcast, dropout_p=dropout, is_causal=causal)
        return self.output(y.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """Split ``(batch, time, width)`` into heads, ``(batch, heads, time, width / heads)``."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class SelfAttention(Attention):
    """Attention within one sequence; one linear layer computes queries, keys and values."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__(norm, name, sizes)
        self.joint = norm.plain(f"{name}.joint", sizes.width, 3 * sizes.width)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.split(part) for part in self.joint(x).chunk(3, -1))
        return query, key, value


class SourceAttention(Attention):
    """Attention of target positions to the source."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__(norm, name, sizes)
        self.query = norm.plain(f"{name}.query", sizes.width, sizes.width)
        self.key = norm.plain(f"{name}.key", sizes.width, sizes.width)
        self.value = norm.plain(f"{name}.value", sizes.width, sizes.width)

    def key_and_value(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.key(source)), self.split(self.value(source))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.up = norm.plain(f"{name}.up", sizes.width, sizes.inner)
        self.down = norm.plain(f"{name}.down", sizes.inner, sizes.width)
        self.dropout = sizes.relu_dropout

    def forward(self, x: Tensor, noise: Noise | None) -> Tensor:
        y = torch.relu(self.up(x))
        return self.down(y if noise is None else noise.dropout(y, self.dropout))


def positions(start: int, count: int, width: int, like: Tensor) -> Tensor:
    """Return the encodings of ``count`` positions from ``start`` on, ``(count, width)``.

    The first half of an encoding is ``sin(position * r_i)``, the second ``cos(position * r_i)``, with rates
    ``r_i = 10000 ** (-i / (width / 2 - 1))`` for i from 0. The result has the dtype and device of ``like``.
    """
    half = width // 2
    step = math.log(10_000) / (half - 1)
    rates = torch.exp(-step * torch.arange(half, dtype=torch.float32, device=like.device))
    angles = torch.arange(start, start + count, device=like.device).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], 1).to(like.dtype)
