"""A decoder like LLaMA's (Touvron et al. 2023): rotary positions, gated feed-forward layers, grouped queries.

Shapes: tokens are (batch, time), activations (batch, time, width), queries, keys and values (batch, heads, time, width
per head); there are fewer heads of keys and values than of queries if queries are grouped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.models import init
from rmsexp.norms import Norm
from rmsexp.system import checks

ACTIVATIONS = ("swiglu", "gelu")
# where the norms of a sublayer f are: whether before f, and whether after it
PLACEMENTS = {
    "pre": (True, False),  # x + f(N(x))
    "post": (False, True),  # N(x + f(x))
    "sandwich": (True, True),  # x + N(f(N(x)))
    "reordered": (False, True),  # x + N(f(x)) (OLMo 2, 2024)
    "none": (False, False),  # x + f(x)
}
ROTARY_BASE = 10_000.0

Pair = tuple[Tensor, Tensor]


@dataclass
class Sizes:
    """Sizes and options of the decoder. The defaults are those of a model with 123 million parameters.

    ``kv_heads``: number of heads of keys and values; each serves ``heads / kv_heads`` heads of queries. ``inner``:
    width inside the feed-forward layers. ``activation``: "swiglu", ``silu(gate) * up``, or "gelu". ``placement``: where
    the norms of sublayers are, a key of ``PLACEMENTS``. ``attention_placement``, ``feed_forward_placement``: the same
    for one kind of sublayer; None: as ``placement``. Unless the last sublayer is "post", there is one more norm at the
    end. ``qk_norm``: whether the queries and keys of each head are normalised, before their rotation; the heads share
    gain and shift. ``v_norm``: the same for values, which are not rotated. ``embedding_norm``: whether embedded tokens
    are normalised. ``tied``: whether the embedding is also the output matrix. ``embedding_scale``: whether embedded
    tokens are multiplied by a trained number that starts at ``sqrt(width)``, which gives them a standard deviation of 1
    (Zhu et al. 2025, for DyT).

    Raises: ValueError if a value is out of range, or if sizes do not divide each other.
    """

    width: int = 768
    layers: int = 12
    heads: int = 12
    kv_heads: int = 12
    inner: int = 2048
    activation: str = "swiglu"
    placement: str = "pre"
    attention_placement: str | None = None
    feed_forward_placement: str | None = None
    qk_norm: bool = False
    v_norm: bool = False
    embedding_norm: bool = False
    tied: bool = True
    embedding_scale: bool = False

    def __post_init__(self) -> None:
        for key in ("width", "heads", "kv_heads", "inner"):
            checks.at_least(f"model.{key}", getattr(self, key), 1, checks.LARGEST_WIDTH)
        checks.at_least("model.layers", self.layers, 1, checks.MOST_LAYERS)
        checks.choice("model.activation", self.activation, ACTIVATIONS)
        for key in ("placement", "attention_placement", "feed_forward_placement"):
            checks.choice(f"model.{key}", getattr(self, key), (None, *PLACEMENTS))
        if self.width % (2 * self.heads):
            raise ValueError(
                f"model.width={self.width} is no multiple of 2 * model.heads={self.heads}, as rotary positions need"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class LanguageModel(nn.Module):
    """Map tokens to the logits of the token after each. ``vocabulary``: number of different tokens."""

    def __init__(self, norm: Norm, vocabulary: int, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Parameter(torch.full((vocabulary, sizes.width), float("nan")))
        scale = torch.full((1,), sizes.width**0.5)
        self.embedding_scale = nn.Parameter(scale) if sizes.embedding_scale else None
        self.start = norm.at(role="embedding").value("start", sizes.width) if sizes.embedding_norm else None
        norms = [norm.at(depth=i, layers=sizes.layers) for i in range(sizes.layers)]
        self.layers = nn.ModuleList(Layer(each, f"layers.{i}", sizes) for i, each in enumerate(norms))
        is_post = (sizes.feed_forward_placement or sizes.placement) == "post"
        self.end = None if is_post else norm.at(role="output").value("end", sizes.width)
        self.output = None if sizes.tied else nn.Parameter(torch.full((vocabulary, sizes.width), float("nan")))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, ``(batch, time, vocabulary)``.

        No logit depends on later tokens, except in training with batch norms, whose statistics do.
        """
        x, addend = F.embedding(tokens, self.embedding), None
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if self.start is not None:
            x = self.start(x)
        rotation = rotations(tokens.shape[1], self.sizes.head_width, x)
        for layer in self.layers:
            x, addend = layer(x, addend, rotation)
        if self.end is not None:
            _, x = self.end.add(x, addend)
        return F.linear(x, self.embedding if self.output is None else self.output)

    def initialisers(self) -> dict[str, init.Initialiser]:
        """Return initialisers by parameter name, for all parameters that :func:`.init.lecun_normal` does not draw.

        For layers whose output enters a residual sum, the standard deviation ``n_in^-0.5`` is divided by
        ``sqrt(2 layers)``, the root of the number of these sums, as in GPT-2 (Radford et al. 2019, section 2.3).
        """
        sizes = self.sizes
        outputs = {"attention.output": sizes.width, "feed_forward.down": sizes.inner}
        depth = 2 * sizes.layers
        return {"embedding": init.normal(sizes.width**-0.5), "output": init.normal(sizes.width**-0.5)} | {
            f"layers.{i}.{name}.weight": init.normal((n_in * depth) ** -0.5)
            for i in range(sizes.layers)
            for name, n_in in outputs.items()
        }


class Layer(nn.Module):
    """Causal self-attention and feed-forward, each with its residual sum and norms.

    A layer gets and returns a residual sum as two summands, ``x`` and ``addend``, which may be None: the norm that
    follows the sum adds them, in the same operator if it can (:meth:`rmsexp.norms.Normaliser.add`).
    """

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        attention, feed_forward = norm.at(role="attention"), norm.at(role="feed-forward")
        self.attention = Attention(attention, f"{name}.attention", sizes)
        self.feed_forward = FeedForward(feed_forward, f"{name}.feed_forward", sizes)
        self.attended = Residual(attention, f"{name}.attended", sizes, sizes.attention_placement or sizes.placement)
        self.fed = Residual(feed_forward, f"{name}.fed", sizes, sizes.feed_forward_placement or sizes.placement)

    def forward(self, x: Tensor, addend: Tensor | None, rotation: Pair) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output as two summands."""
        x, entered = self.attended.enter(x, addend)
        x, addend = self.attended.leave(x, self.attention(entered, rotation))
        x, entered = self.fed.enter(x, addend)
        return self.fed.leave(x, self.feed_forward(entered))


class Residual(nn.Module):
    """The residual sum of a sublayer, with the norms that its placement asks for (see :class:`Sizes`)."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes, placement: str) -> None:
        super().__init__()
        self.placement = placement
        before, after = PLACEMENTS[placement]
        self.before = norm.value(f"{name}.before", sizes.width) if before else None
        self.after = norm.value(f"{name}.after", sizes.width) if after else None

    def enter(self, x: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the residual sum ``x + addend``, and the input of the sublayer."""
        if self.before is not None:
            return self.before.add(x, addend)
        x = x if addend is None else x + addend
        return x, x

    def leave(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the two summands after the sublayer, whose output is ``y``; for "post", ``N(x + y)`` and None."""
        if self.after is None:
            return x, y
        return (self.after.add(x, y)[1], None) if self.placement == "post" else (x, self.after(y))


class Attention(nn.Module):
    """Causal attention in which groups of query heads share a head of keys and values (Ainslie et al. 2023)."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.heads = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
        self.joint = norm.plain(f"{name}.joint", sizes.width, sum(self.heads) * sizes.head_width, bias=False)
        self.output = norm.plain(f"{name}.output", sizes.width, sizes.width, bias=False)
        self.query = norm.at(role="query").value(f"{name}.query", sizes.head_width) if sizes.qk_norm else None
        self.key = norm.at(role="key").value(f"{name}.key", sizes.head_width) if sizes.qk_norm else None
        self.value = norm.at(role="value").value(f"{name}.value", sizes.head_width) if sizes.v_norm else None

    def forward(self, x: Tensor, rotation: Pair) -> Tensor:
        query, key, value = self.joint(x).unflatten(-1, (sum(self.heads), -1)).split(self.heads, 2)
        query = rotated(query if self.query is None else self.query(query), rotation).transpose(1, 2)
        key = rotated(key if self.key is None else self.key(key), rotation).transpose(1, 2)
        value = (value if self.value is None else self.value(value)).transpose(1, 2)
        grouped = self.heads[0] != self.heads[1]
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.output(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """``W (silu(G x) * U x)`` (SwiGLU, Shazeer 2020), or ``W gelu(U x)``; G and U are one matrix."""

    def __init__(self, norm: Norm, name: str, sizes: Sizes) -> None:
        super().__init__()
        self.gated = sizes.activation == "swiglu"
        self.up = norm.plain(f"{name}.up", sizes.width, (1 + self.gated) * sizes.inner, bias=False)
        self.down = norm.plain(f"{name}.down", sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.up(x).chunk(2, -1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(self.up(x)))


def rotations(count: int, head_width: int, like: Tensor) -> Pair:
    """Return cosines and sines of the rotations at positions 0 to ``count - 1`` (Su et al. 2021).

    Pair i of the w units of a head is rotated at position t by the angle ``t * 10000 ** (-2 i / w)``. Both results have
    shape ``(count, 1, head_width / 2)``, and the dtype and device of ``like``.
    """
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=like.device)
    positions = torch.arange(count, dtype=torch.float32, device=like.device)
    angles = positions.view(-1, 1, 1) / ROTARY_BASE ** (pairs / head_width)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: Tensor, rotation: Pair) -> Tensor:
    """Return queries or keys ``(batch, time, heads, head_width)``, rotated.

    A pair (a, b) becomes ``(a cos - b sin, b cos + a sin)``; a is unit i of the first half of a head, and b unit i of
    the second half, as in the library ``transformers``.
    """
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
