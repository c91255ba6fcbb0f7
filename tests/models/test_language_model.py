"""The language model: equality with transformers' models, sites and sizes, initial values, rotations, masks."""

import dataclasses
import itertools
import math
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sites import KINDS, NORMS, close, draw, fill, without_gradient
from helpers.translation_models import SiteList, parameters
from torch import Tensor
from torch.nn import functional as F

from rmsexp import norms
from rmsexp.models import init
from rmsexp.models.language_model import PLACEMENTS, LanguageModel, Sizes
from rmsexp.train.randomness import stream

VOCABULARY = 13
TOKENS = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(0))


def sizes(**other: Any) -> Sizes:
    """Return the sizes of a small model with grouped queries; ``other`` overrides values."""
    small = {"width": 16, "layers": 2, "heads": 4, "kv_heads": 2, "inner": 12}
    return Sizes(**small | other)


def make(name: str = "rms", **other: Any) -> LanguageModel:
    return fill(LanguageModel(NORMS[name], VOCABULARY, sizes(**other)))


# --- transformers' models with the same weights


def theirs(model: LanguageModel) -> Any:
    """Return transformers' model with the weights of ``model``: LLaMA, or Qwen3 if queries and keys are normalised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    size = model.sizes
    family = "Qwen3" if size.qk_norm else "Llama"
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_width,
        rms_norm_eps=1e-5,
        tie_word_embeddings=size.tied,
        attention_bias=False,
    )
    other = getattr(transformers, f"{family}ForCausalLM")(config).double()
    missing, unexpected = other.load_state_dict(renamed(model, lambda parameter: parameter.detach()), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if size.tied else [])
    return other


def renamed(model: LanguageModel, value: Any) -> dict[str, Tensor]:
    """Return ``value`` of each parameter of our model, by the names of transformers, with its separate matrices."""
    size, ours = model.sizes, dict(model.named_parameters())
    heads = [count * size.head_width for count in (size.heads, size.kv_heads, size.kv_heads)]
    values = {"model.embed_tokens.weight": value(ours["embedding"]), "model.norm.weight": value(ours["end.weight"])}
    if not size.tied:
        values["lm_head.weight"] = value(ours["output"])
    for i in range(size.layers):
        own, other = f"layers.{i}", f"model.layers.{i}"
        for names, whole, parts in (
            ("qkv", value(ours[f"{own}.attention.joint.weight"]), heads),
            (("gate", "up"), value(ours[f"{own}.feed_forward.up.weight"]), [size.inner] * 2),
        ):
            folder = "self_attn" if names == "qkv" else "mlp"
            for name, part in zip(names, whole.split(parts), strict=True):
                values[f"{other}.{folder}.{name}_proj.weight"] = part
        pairs = {
            "self_attn.o_proj": "attention.output",
            "mlp.down_proj": "feed_forward.down",
            "input_layernorm": "attended.before",
            "post_attention_layernorm": "fed.before",
        }
        if size.qk_norm:
            pairs |= {"self_attn.q_norm": "attention.query", "self_attn.k_norm": "attention.key"}
        values |= {f"{other}.{name}.weight": value(ours[f"{own}.{source}.weight"]) for name, source in pairs.items()}
    return values


def loss_of(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


@pytest.mark.slow  # importing transformers takes seconds
def test_logits_and_gradients_are_those_of_transformers() -> None:
    """RMSNorm, pre placement, four heads of queries that share two heads of keys and values: LLaMA, and Qwen3.

    The norms of transformers compute in float32.
    """
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    for qk_norm, tied in itertools.product((False, True), repeat=2):
        model = make(qk_norm=qk_norm, tied=tied)
        other = theirs(model)
        logits, other_logits = model(TOKENS), other(TOKENS).logits
        close(logits, other_logits)
        loss_of(logits).backward()
        loss_of(other_logits).backward()
        gradients = renamed(model, lambda parameter: parameter.grad)
        theirs_by_name = {name: parameter.grad for name, parameter in other.named_parameters()}
        assert gradients.keys() == theirs_by_name.keys()
        for name, gradient in gradients.items():
            close(gradient, theirs_by_name[name])


# --- sites, sizes and initial values


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_the_sites(placement: str, qk_norm: bool) -> None:
    sites = SiteList(name="ln")
    LanguageModel(sites, VOCABULARY, sizes(placement=placement, qk_norm=qk_norm))
    places = {"pre": ["before"], "sandwich": ["before", "after"], "none": []}.get(placement, ["after"])
    heads = [f"layers.{i}.attention.{part}" for i in range(2) for part in ("query", "key") if qk_norm]
    sums = [f"layers.{i}.{part}.{place}" for i in range(2) for part in ("attended", "fed") for place in places]
    assert sorted(sites.normalised) == sorted([*heads, *sums, *(["end"] if placement != "post" else [])])
    maps = ("attention.joint", "attention.output", "feed_forward.up", "feed_forward.down")
    assert sorted(sites.unnormalised) == sorted(f"layers.{i}.{part}" for i in range(2) for part in maps)


def test_sublayers_may_differ_and_sites_know_their_place() -> None:
    """HybridNorm (2025): normalised queries, keys and values; a norm of the sum after attention alone."""
    found = {}

    class Places(norms.LN):
        def normaliser(self, site: norms.Site) -> norms.LayerNorm:
            found[site.name] = site.depth, site.layers, site.role
            return super().normaliser(site)

    hybrid = sizes(attention_placement="post", feed_forward_placement="none", qk_norm=True, v_norm=True)
    LanguageModel(Places(name="ln"), VOCABULARY, dataclasses.replace(hybrid, embedding_norm=True))
    of_heads = {f"layers.{i}.attention.{part}": (i, 2, part) for i in range(2) for part in ("query", "key", "value")}
    of_sums = {f"layers.{i}.attended.after": (i, 2, "attention") for i in range(2)}
    assert found == of_heads | of_sums | {"start": (None, 0, "embedding"), "end": (None, 0, "output")}


def test_a_norm_may_scale_initial_weights() -> None:
    class Smaller(norms.LN):
        def initial_scale(self, site: norms.Site) -> float:
            return 0.5 if site.role == "feed-forward" else 1.0

    models = [LanguageModel(norm(name="ln"), VOCABULARY, sizes()) for norm in (norms.LN, Smaller)]
    for model in models:
        init.initialise(model, init.lecun_normal, lambda name: stream(0, name))
    for (name, weight), (_, other) in zip(*(model.named_parameters() for model in models), strict=True):
        close(other, (0.5 if "feed_forward" in name else 1.0) * weight)


def test_the_default_has_123_million_parameters() -> None:
    with torch.device("meta"):
        model = LanguageModel(NORMS["rms"], 50_000, Sizes())
    layer = 768 * 3 * 768 + 768 * 768 + 768 * 2 * 2048 + 2048 * 768
    assert parameters(model) == 50_000 * 768 + 12 * (layer + 2 * 768) + 768 == 123_353_856


def initialised(name: str = "none", **other: Any) -> LanguageModel:
    model = LanguageModel(NORMS[name], 300, sizes(**other))
    init.initialise(model, init.lecun_normal, lambda name: stream(0, "init", name), model.initialisers())
    return model


def test_initial_values() -> None:
    model = initialised(width=256, heads=4, kv_heads=2, inner=512, layers=8, tied=False)
    depth = math.sqrt(16)
    expected = {"joint": 1 / 16, "up": 1 / 16, "output": 1 / 16 / depth, "down": 512**-0.5 / depth}
    for name, parameter in model.named_parameters():
        part = name.split(".")[-2] if "." in name else "embedding"
        std = {"embedding": 1 / 16, **expected}[part]
        assert parameter.std().item() == pytest.approx(std, rel=0.02), name
        assert parameter.mean().item() == pytest.approx(0, abs=std / 20), name


# --- every norm


@KINDS
def test_every_parameter_has_a_gradient(name: str) -> None:
    for placement in PLACEMENTS:
        model = make(name, placement=placement, qk_norm=True)
        loss_of(model(TOKENS)).backward()
        unused = without_gradient(model)
        if "bn" in name and placement in ("sandwich", "reordered"):  # the following batch norms subtract these shifts
            unused -= {f"layers.{i}.{part}.after.bias" for i in range(2) for part in ("attended", "fed")}
        assert unused == set(), placement


def test_norms_are_where_the_placement_says() -> None:
    """With an identity for attention and feed-forward, each placement is its plain formula."""
    for placement, formula in {
        "pre": lambda x, n: x + n(x),
        "post": lambda x, n: n(x + x),
        "sandwich": lambda x, n: x + n(n(x)),
        "reordered": lambda x, n: x + n(x),
    }.items():
        layer: Any = make("ln", placement=placement).layers[0]
        x = draw(2, 3, 16)
        for residual in (layer.attended, layer.fed):
            norm = residual.before or residual.after
            if residual.before is not None and residual.after is not None:
                residual.after = norm
            left, addend = residual.leave(*residual.enter(x, None))
            close(left if addend is None else left + addend, formula(x, norm))
            if residual.before is not None:  # the next sublayer adds the two summands before its norm
                close(residual.enter(left, addend), (formula(x, norm), residual.before(formula(x, norm))))


def test_the_feed_forward_layer_with_gelu_is_its_formula() -> None:
    """The activation is ``u Phi(u)``, with the distribution function Phi of the normal distribution."""
    layer: Any = make(activation="gelu").layers[0].feed_forward
    x = draw(2, 3, 16)
    up = x @ layer.up.weight.T
    close(layer(x), up * (1 + (up / math.sqrt(2)).erf()) / 2 @ layer.down.weight.T)


def test_scaled_embeddings_have_standard_deviation_1_at_first() -> None:
    model, plain = (initialised("rms", width=64, embedding_scale=scaled) for scaled in (True, False))
    entered: list[Tensor] = []
    for each in (model, plain):
        each.layers[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        each(torch.arange(300).unsqueeze(0))
    torch.testing.assert_close(entered[0], 8 * entered[1])
    assert entered[0].std().item() == pytest.approx(1, rel=0.05)
    model(TOKENS).sum().backward()
    assert model.embedding_scale.grad is not None


# --- masks


@torch.no_grad()
@KINDS
def test_a_token_never_sees_the_future(name: str) -> None:
    """The tokens after each place are changed, which changes the logits after it, and none before it."""
    length = TOKENS.shape[1]
    places = range(length)
    changed = [torch.where(torch.arange(length) > last, (TOKENS + 1) % VOCABULARY, TOKENS) for last in places]
    # without any norm, pointwise functions at the end saturate
    for placement, training in itertools.product(PLACEMENTS.keys() - {"none"}, (False, True)):
        if training and "bn" in name:
            continue
        model = make(name, placement=placement, qk_norm=True).train(training)
        logits, *others = model(torch.cat([TOKENS, *changed])).split(len(TOKENS))
        for last, other in zip(places, others, strict=True):
            close(other[:, : last + 1], logits[:, : last + 1])
            assert not torch.isclose(other[:, last + 1 :], logits[:, last + 1 :]).all(-1).any(), (placement, last)


# --- the fused kernels


@pytest.mark.usefixtures("fused_kernels")
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_residual_sum_before_a_norm_is_one_operator_also_under_autocast(
    placement: str, dtype: torch.dtype
) -> None:
    """Two sums for each layer; under autocast their second summand is in bfloat16, and the first in float32."""
    model = fill(LanguageModel(norms.RMS(name="n", impl="fused"), VOCABULARY, sizes(placement=placement))).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        assert model.layers[0].feed_forward.up(torch.ones(1, 16)).dtype == dtype
        with torch.autograd.profiler.profile() as profile:  # the start of torch.profiler takes seconds
            model(TOKENS)
    assert sum(event.name == "rmsexp::add_normalise" for event in profile.function_events) == 4
