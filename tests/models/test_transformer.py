"""The Transformer: sites, sizes and initial values; its layers against torch's; masks, batches, steps, dropout."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sites import NORMS, RecordedNoise, close, draw, fill, without_gradient
from helpers.translation_models import EVEN, RAGGED, SOURCES, TARGETS, SiteList, batch_of, pairs, parameters
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import norms
from rmsexp.models.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Sizes,
    Transformer,
    positions,
)
from rmsexp.tasks import transformer
from rmsexp.train.randomness import StreamNoise, seed_of

W = 8
PRE = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])


def sizes(**other: Any) -> Sizes:
    """Return the sizes of a small model without dropout; ``other`` overrides values."""
    rates = dict.fromkeys(("dropout", "attention_dropout", "relu_dropout"), 0.0)
    return Sizes(**{"width": W, "heads": 2, "layers": 2, "inner": 12} | rates | other)


def make(norm: norms.Norm, **other: Any) -> Any:  # a Transformer; Any, because tests read attributes of its norms
    return fill(Transformer(norm, SOURCES, TARGETS, sizes(**other)))


MAPS = ("attention.joint", "attention.output", "feed_forward.up", "feed_forward.down")
TO_SOURCE = ("to_source.query", "to_source.key", "to_source.value", "to_source.output")


@PRE
def test_the_30_sites(pre_norm: bool) -> None:
    sites = SiteList(name="ln")
    model = Transformer(sites, SOURCES, TARGETS, sizes(layers=6, pre_norm=pre_norm))
    norms_of = {"encoder": ("attended", "fed"), "decoder": ("attended", "informed", "fed")}
    normalised = [f"{side}.{layer}.{part}" for side, parts in norms_of.items() for layer in range(6) for part in parts]
    ends = ["encoder.end", "decoder.end"] if pre_norm else []
    assert sorted(sites.normalised) == sorted([*normalised, *ends])
    assert len(normalised) == 30
    assert sizes(width=4).width == 4  # the smallest
    maps_of = {"encoder": MAPS, "decoder": (*MAPS, *TO_SOURCE)}
    maps = {f"{side}.{layer}.{part}" for side, parts in maps_of.items() for layer in range(6) for part in parts}
    assert set(sites.unnormalised) == maps
    top_level = {name: tuple(p.shape) for name, p in model.named_parameters() if "." not in name}
    assert top_level == {"source_embedding": (SOURCES, W), "target_embedding": (TARGETS, W), "embedding_bias": (W,)}


@pytest.mark.parametrize(("name", "vectors"), [("none", 0), ("rms", 1), ("ln", 2)])
@PRE
def test_number_of_parameters_of_the_base_model(name: str, vectors: int, pre_norm: bool) -> None:
    with torch.device("meta"):
        model = Transformer(NORMS[name], 32_000, 32_000, Sizes(pre_norm=pre_norm))
    assert parameters(model) == 76_876_288 + vectors * 512 * (32 if pre_norm else 30)


def test_initial_values_at_base_sizes() -> None:
    model = Transformer(NORMS["none"], 300, 200, sizes(width=512, inner=2048, layers=1, heads=8))
    config = SimpleNamespace(seed=0, model=model.sizes)
    transformer.Task.initialise(SimpleNamespace(config=config), model)  # type: ignore[arg-type]
    bounds = {"joint": 0.0541, "output": 0.0765, "query": 0.0765, "key": 0.0765, "value": 0.0765}
    bounds |= {"up": 0.0484, "down": 0.0484}  # sqrt(6 / (n_in + n_out))
    for name, site in model.named_modules():
        if isinstance(site, norms.Linear):
            bound = bounds[name.rsplit(".", 1)[1]]
            assert site.weight.abs().max().item() == pytest.approx(bound, abs=6e-5)
            assert site.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
            assert site.weight.mean().item() == pytest.approx(0, abs=0.001)
            assert (site.bias == 0).all()
    for table in (model.source_embedding, model.target_embedding):
        assert table.std().item() == pytest.approx(0.0442, rel=0.01)
        assert (table.abs() < 0.0442).double().mean().item() == pytest.approx(0.6827, abs=0.01)  # normal
    assert model.embedding_bias.abs().max().item() == pytest.approx(0.0765, rel=0.02)
    assert model.embedding_bias.abs().max() < 0.07655
    assert model.embedding_bias.std().item() == pytest.approx(0.0765 / math.sqrt(3), rel=0.05)


MASK = torch.arange(5) < torch.tensor([5, 1, 3, 4]).unsqueeze(1)
CAUSAL = torch.ones(4, 4, dtype=torch.bool).triu(1)


def load(torch_layer: nn.Module, values: dict[str, Tensor]) -> None:
    torch_layer.double().load_state_dict({name: value.detach() for name, value in values.items()})


def linear_values(prefix: str, site: Any) -> dict[str, Tensor]:
    return {f"{prefix}.weight": site.weight, f"{prefix}.bias": site.bias}


def norm_values(torch_layer: Any, *ours: Any) -> dict[str, Tensor]:
    """Return the values for the parameters of torch's norms.

    Where ``ours`` has no norm, set the norm of ``torch_layer`` to the identity.
    """
    values: dict[str, Tensor] = {}
    for number, residual in enumerate(ours, 1):
        if residual.norm.weight is None:
            setattr(torch_layer, f"norm{number}", nn.Identity())
        else:
            values |= {f"norm{number}.weight": residual.norm.weight, f"norm{number}.bias": residual.norm.bias}
    return values


def sum_of(x: Tensor, addend: Tensor | None) -> Tensor:
    """Return a layer's output, which it returns as two summands."""
    return x if addend is None else x + addend


def self_attention_values(ours: Any) -> dict[str, Tensor]:
    values = {"self_attn.in_proj_weight": ours.joint.weight, "self_attn.in_proj_bias": ours.joint.bias}
    return values | linear_values("self_attn.out_proj", ours.output)


@PRE
@pytest.mark.parametrize("name", ["ln", "none"])
def test_an_encoder_layer_is_torch_s(name: str, pre_norm: bool) -> None:
    ours = fill(EncoderLayer(NORMS[name], "0", sizes(pre_norm=pre_norm)))
    torch_layer = nn.TransformerEncoderLayer(W, 2, 12, 0.0, batch_first=True, norm_first=pre_norm)
    values = norm_values(torch_layer, ours.attended, ours.fed) | self_attention_values(ours.attention)
    values |= linear_values("linear1", ours.feed_forward.up) | linear_values("linear2", ours.feed_forward.down)
    load(torch_layer, values)
    results, d = [], draw(4, 5, W, seed=7) * MASK.unsqueeze(-1)
    for run in (lambda x: sum_of(*ours(x, None, MASK, None)), lambda x: torch_layer(x, src_key_padding_mask=~MASK)):
        x = draw(4, 5, W).requires_grad_()
        y = run(x)
        y.backward(d)
        results.append((y[MASK], x.grad))
    close(*results)
    close(ours.attention.joint.weight.grad, torch_layer.self_attn.in_proj_weight.grad)


@PRE
@pytest.mark.parametrize("name", ["ln", "none"])
def test_a_decoder_layer_is_torch_s(name: str, pre_norm: bool) -> None:
    ours = fill(DecoderLayer(NORMS[name], "0", sizes(pre_norm=pre_norm)))
    torch_layer = nn.TransformerDecoderLayer(W, 2, 12, 0.0, batch_first=True, norm_first=pre_norm)
    source: Any = ours.to_source
    values = norm_values(torch_layer, ours.attended, ours.informed, ours.fed) | self_attention_values(ours.attention)
    joint = (source.query, source.key, source.value)
    values |= {
        "multihead_attn.in_proj_weight": torch.cat([site.weight for site in joint]),
        "multihead_attn.in_proj_bias": torch.cat([site.bias for site in joint]),
        **linear_values("multihead_attn.out_proj", source.output),
        **linear_values("linear1", ours.feed_forward.up),
        **linear_values("linear2", ours.feed_forward.down),
    }
    load(torch_layer, values)
    results, d = [], draw(4, 4, W, seed=7)

    def run_ours(x: Tensor, memory: Tensor) -> Tensor:
        return sum_of(*ours(x, None, None, *source.key_and_value(memory), MASK, None)[:2])

    def run_torch(x: Tensor, memory: Tensor) -> Tensor:
        return torch_layer(x, memory, tgt_mask=CAUSAL, memory_key_padding_mask=~MASK)

    for run in (run_ours, run_torch):
        x, memory = draw(4, 4, W).requires_grad_(), draw(4, 5, W, seed=2).requires_grad_()
        y = run(x, memory)
        y.backward(d)
        results.append((y, x.grad, memory.grad))
    close(*results)


@pytest.mark.parametrize("start", [0, 7])
def test_positions_are_sines_then_cosines(start: int) -> None:
    encodings = positions(start, 4, 512, torch.zeros((), dtype=torch.float64))
    angles = torch.tensor([[(start + row) * 10_000 ** (-i / 255) for i in range(256)] for row in range(4)])
    torch.testing.assert_close(encodings, torch.cat([angles.sin(), angles.cos()], 1).double(), rtol=0, atol=2e-6)


def test_the_input_of_the_layers() -> None:
    """The first layers get ``embedding * sqrt(width) + bias``, plus position encodings.

    At the first target position the decoder's first layer gets the position encoding alone.
    """
    model, batch = make(NORMS["ln"]), batch_of(pairs(RAGGED))
    entered: list[Tensor] = []
    for layers in (model.encoder, model.decoder):
        layers[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    model(batch)
    place = positions(0, 5, W, draw(1))
    close(entered[0], model.source_embedding[batch.source] * math.sqrt(W) + model.embedding_bias + place)
    close(entered[1][:, 0], place[0].expand(len(RAGGED), W))
    read = model.target_embedding[batch.target[:, :-1]] * math.sqrt(W) + model.embedding_bias
    close(entered[1][:, 1:], read + place[1:])


def test_the_output_matrix_is_the_target_embedding() -> None:
    model, batch = make(NORMS["ln"]), batch_of(pairs(RAGGED))
    left: list[Tensor] = []
    model.decoder[-1].register_forward_hook(lambda _, inputs, output: left.append(output[0]))  # noqa: ARG005
    logits = model(batch)
    close(logits, left[0][batch.target_mask] @ model.target_embedding.T)


def test_statistics_of_batch_norm_are_of_real_tokens() -> None:
    """Mean and variance are over all real positions together, because the Transformer has no recurrence."""
    model, batch = make(norms.BN(name="bn", momentum=1.0)), batch_of(pairs(RAGGED))
    seen: list[Tensor] = []
    sites = (model.encoder[0].attended.norm, model.decoder[1].fed.norm)
    for site in sites:
        site.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(batch)
    for site, x, mask in zip(sites, seen, (batch.source_mask, batch.target_mask), strict=True):
        close(site.running_mean, x[mask].mean(0, keepdim=True))
        close(site.running_var, x[mask].var(0, keepdim=True))
        assert site.count.tolist() == [1]


def test_the_places_of_dropout() -> None:
    noise = RecordedNoise()
    model = make(NORMS["ln"], layers=2, dropout=0.1, attention_dropout=0.2, relu_dropout=0.3)
    with torch.random.fork_rng(devices=[]):
        model(batch_of(pairs(RAGGED)), noise)
    calls = [(call[1][-1], call[2]) if call[0] == "dropout" else call for call in noise.calls]
    embedding, branch, relu, attention = (W, 0.1), (W, 0.1), (12, 0.3), ("attention", "cpu")
    encoder = [attention, branch, relu, branch]
    decoder = [attention, branch, attention, branch, relu, branch]
    assert calls == [embedding, *encoder * 2, embedding, *decoder * 2]


def test_dropout_of_the_attention_is_torch_s_from_the_stream_s_seed() -> None:
    attention = fill(SelfAttention(NORMS["none"], "a", sizes(attention_dropout=0.3)))
    query, key, value = (draw(4, 2, 5, W // 2, seed=seed) for seed in range(3))
    noise = StreamNoise(3, "noise", 5, 0)
    for call in (1, 2):
        with torch.random.fork_rng(devices=[]):
            attended = attention(query, key, value, noise, mask=MASK)
            torch.manual_seed(seed_of(3, "noise", 5, 0, "default", call))
            mask = MASK[:, None, None]
            expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.3)
        close(attended, attention.output(expected.transpose(1, 2).flatten(2)))


def test_dropout_in_the_sublayers() -> None:
    """Dropout is applied to the output of the ReLU, and to a sublayer's output before the sublayer's input is added."""
    feed_forward, x = fill(FeedForward(NORMS["none"], "f", sizes(relu_dropout=0.4))), draw(4, 5, W)
    inner = torch.relu(feed_forward.up(x))
    close(feed_forward(x, StreamNoise(0, "a")), feed_forward.down(StreamNoise(0, "a").dropout(inner, 0.4)))
    layer = fill(EncoderLayer(NORMS["ln"], "0", sizes(dropout=0.4)))
    noise, sublayer = StreamNoise(0, "a"), draw(4, 5, W, seed=2)
    expected = layer.fed.norm(x + StreamNoise(0, "a").dropout(sublayer, 0.4))
    close(layer.fed.leave(x, sublayer, MASK, noise), (expected, None))


@PRE
def test_gradients_reach_every_parameter(pre_norm: bool) -> None:
    """The bias of keys adds one number to all scores of a query, which softmax ignores."""
    model = make(NORMS["ln"], pre_norm=pre_norm)
    logits = model(batch_of(pairs(EVEN)))
    (logits * draw(*logits.shape, seed=5)).sum().backward()
    assert without_gradient(model) == {f"decoder.{layer}.to_source.key.bias" for layer in range(2)}
