"""Conversion of the norms of other libraries' models: same results, what is taken over, what is left and why."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rmsexp
from rmsexp import norms
from rmsexp.norms.composed import Wrapped
from rmsexp.norms.convert import equal, layers

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def other(family: str, sizes: dict[str, Any] | None = None) -> nn.Module:
    """Return a small model of transformers, in evaluation mode, whose gains and biases are random."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**(SIZES if sizes is None else sizes))
    model = getattr(transformers, f"{family}Model")(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@torch.no_grad()
def output(model: nn.Module) -> Tensor:
    found: Tensor = model(torch.arange(14).view(2, 7))[0]
    return found


GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
FAMILIES = [
    ("Llama", None, "rms", 5),
    ("Gemma2", SIZES | {"head_dim": 8}, "rms", 9),
    ("Bert", None, "ln", 5),
    ("GPT2", GPT2, "ln", 5),
]


@pytest.mark.parametrize(("family", "sizes", "norm", "count"), FAMILIES, ids=[family for family, *_ in FAMILIES])
def test_a_norm_that_is_replaced_by_itself_computes_the_same(
    family: str, sizes: dict[str, Any] | None, norm: str, count: int
) -> None:
    model = other(family, sizes)
    expected = output(model)
    for impl, most in (("eager", 0.0 if norm == "rms" else 2e-6), ("fused", 2e-6)):
        ours = copy.deepcopy(model)
        done = rmsexp.convert(ours, norm, impl=impl)
        assert len(done.replaced) == count
        assert not done.left
        assert (output(ours) - expected).abs().max() <= most
        ours.load_state_dict(model.state_dict())
        model.load_state_dict(ours.state_dict())


def test_places_of_layers() -> None:
    places = {layer.name: (layer.depth, layer.layers, layer.role) for layer in layers(other("Bert"))}
    assert places == {
        "embeddings.LayerNorm": (None, 2, "embedding"),
        "encoder.layer.0.attention.output.LayerNorm": (0, 2, "attention"),
        "encoder.layer.0.output.LayerNorm": (0, 2, "feed-forward"),
        "encoder.layer.1.attention.output.LayerNorm": (1, 2, "attention"),
        "encoder.layer.1.output.LayerNorm": (1, 2, "feed-forward"),
    }
    qwen = layers(other("Qwen3", SIZES | {"head_dim": 8, "num_key_value_heads": 2}))
    assert [layer.role for layer in qwen if layer.depth == 0] == ["query", "key", "attention", "feed-forward"]
    assert [layer.role for layer in qwen if layer.depth is None] == ["output"]


def nested(*parts: tuple[str, int]) -> nn.Module:
    """Return lists in lists: ``("stages", 2), ("blocks", 2)`` are 2 stages of 2 blocks, which have two norms each."""
    if not parts:
        return nn.ModuleDict({"before": nn.LayerNorm(4), "after": nn.LayerNorm(4)})
    (name, count), *inner = parts
    return nn.ModuleDict({name: nn.ModuleList([nested(*inner) for _ in range(count)])})


def test_blocks_are_the_elements_of_the_innermost_lists() -> None:
    model = nested(("stages", 2), ("blocks", 2))
    for stage in model["stages"]:
        stage["down"] = nn.ModuleDict({"norm": nn.LayerNorm(4)})
    model["norm"] = nn.LayerNorm(4)
    found = {layer.name: (layer.depth, layer.role) for layer in layers(model)}
    assert found["stages.1.blocks.0.before"] == (2, "attention")
    assert found["stages.1.blocks.1.after"] == (3, "feed-forward")
    assert found["stages.0.down.norm"] == found["norm"] == (None, "output")
    for stage in model["stages"]:
        stage["own"] = stage.pop("down")["norm"]  # the only one of its block
    assert {layer.role for layer in layers(model) if layer.name.endswith("own")} == {"attention"}
    alone = nn.ModuleDict(
        {"block": nn.ModuleList([nested(("layer", 2)) for _ in range(2)]), "embed_norm": nn.LayerNorm(4)}
    )
    for block in alone["block"]:
        for layer in block["layer"]:  # as T5's, each with one norm
            del layer["after"]
    places = [(layer.depth, layer.role) for layer in layers(alone)]
    assert places == [
        *((depth, role) for depth in (0, 1) for role in ("attention", "feed-forward")),
        (None, "embedding"),
    ]


def test_the_chosen_layers_are_replaced() -> None:
    model = other("Bert")
    by_name = rmsexp.convert(model, "rms", where="encoder.layer.0.*")
    assert [layer.depth for layer, _ in by_name.replaced] == [0, 0]
    by_role = rmsexp.convert(model, "rms", where=lambda layer: layer.role == "embedding")
    assert [layer.name for layer, _ in by_role.replaced] == ["embeddings.LayerNorm"]
    assert {type(layer.module) for layer in layers(model) if layer.depth == 1} == {nn.LayerNorm}


def test_parameters_are_the_same_tensors_and_a_bias_is_optional() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, eps=1e-3))
    gain, bias = model[1].weight, model[1].bias
    done = rmsexp.convert(copy.deepcopy(model), "rms")
    assert done.replaced[0][1] == "bias"
    assert "without bias: 1 (LayerNorm)" in str(done)
    rmsexp.convert(model, "rms", bias=True)
    assert isinstance(model[1], norms.RMSNorm)
    assert (model[1].weight, model[1].bias, model[1].eps) == (gain, bias, 1e-3)


GALLERY = str(Path(__file__).parents[2] / "docs/gallery")


@pytest.mark.parametrize(
    ("norm", "eps"),
    [
        (norms.RMS(name="rms", eps=1e-6), 1e-6),
        ("rms+eps=1e-6", 1e-6),
        ("by_role+default=rms", 1e-3),
        (norms.ByRole(name="by_role", default="rms+eps=1e-6"), 1e-6),
        (norms.ByRole(name="by_role"), 1e-3),
        ("scalenorm", 1e-5),  # by its config file
    ],
)
def test_eps_is_that_of_the_old_layer_unless_the_norm_states_its_own(norm: str | norms.Norm, eps: float) -> None:
    assert converted(nn.LayerNorm(6, eps=1e-3), norm, config_dir=GALLERY)[1].eps == eps


@pytest.mark.parametrize("norm", ["bn", "scalenorm", "layernorm", "module+class=torch.nn.RMSNorm"])
def test_an_eps_that_follows_from_the_dtype_is_taken_over(norm: str) -> None:
    """Also by norms that have no such eps. Norms have the names that they have on a command line."""
    assert converted(nn.RMSNorm(6), norm, config_dir=GALLERY)(torch.randn(3, 4)).isfinite().all()


class OnePlus(nn.Module):
    """RMSNorm as in Gemma, whose gain is 1 plus the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.weight = 1e-6, nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


@pytest.mark.parametrize(
    "norm", ["rms", "rms+weight_offset=true", "dyt", "bn", "seednorm", "module+module=torch.nn.LayerNorm"]
)
def test_the_gain_is_taken_over_whatever_reads_it(norm: str) -> None:
    layer = converted(OnePlus(), norm, config_dir=GALLERY)[1]
    own = layer.inner if isinstance(layer, Wrapped) else layer
    torch.testing.assert_close(own.weight.detach() + layer.gain_offset, torch.full((6,), 1.5))
    x = torch.randn(5, 6)
    layer.eval()(x)
    if norm == "dyt":
        torch.testing.assert_close(layer(x), 1.5 * torch.tanh(0.5 * x))


def test_layers_that_share_a_gain_share_one_afterwards() -> None:
    model = nn.Sequential(OnePlus(), nn.Identity(), OnePlus())
    model[2].weight = model[0].weight
    rmsexp.convert(model, "dyt")
    assert model[0].weight is model[2].weight
    torch.testing.assert_close(model[0].weight.detach(), torch.full((6,), 1.5))


class NoisyNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class CachingNorm(nn.LayerNorm):
    """A layer that cannot be copied once it was called."""

    def forward(self, x: Tensor) -> Tensor:
        self.cache = super().forward(x)
        return self.cache


class WithoutParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (6,))


WithoutParameters.__name__ = "L2Norm"


class Activated(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


MODULE = "module+class=torch.nn."


@pytest.mark.parametrize(
    ("layer", "norm", "word"),
    [
        (Activated(6), "bn", "computes more"),
        (nn.BatchNorm2d(6), "bn", "batch norm already"),
        (norms.BatchNorm(6), f"{MODULE}BatchNorm1d", "batch norm already"),
        (nn.InstanceNorm2d(6, track_running_stats=True), "ln", "running statistics"),
        (nn.LayerNorm(6), "deepnorm", "ScaledSum"),
        (nn.LayerNorm(6), "fading", "set_step"),
        (NoisyNorm(6), "ln", "does not compute"),
        (CachingNorm(6), "ln", "does not compute"),
        (nn.LayerNorm(6), "ln", "hooks"),
        (WithoutParameters(), "rms", "no parameters"),
    ],
)
def test_what_could_not_compute_the_same_is_left(layer: nn.Module, norm: str, word: str) -> None:
    model = nn.Sequential(nn.Identity(), layer)
    if isinstance(layer, CachingNorm):
        model(torch.zeros(2, 6))
    if word == "hooks":
        layer.register_full_backward_hook(lambda *_: None)
    done = rmsexp.convert(model, norm, config_dir=GALLERY)
    assert not done.replaced
    assert word in str(done)
    assert model[1] is layer


@pytest.mark.parametrize("padding", [None, torch.arange(4) >= torch.tensor([[4], [3], [2]])], ids=["whole", "padded"])
def test_torchs_encoder_uses_the_new_norm_in_evaluation_too(padding: Tensor | None) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(3, 4, 8)
    rmsexp.convert(model, "rms")
    expected = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x, src_key_padding_mask=padding), expected)


def test_layers_that_cannot_be_called_are_no_norms_and_one_without_eps_is_replaced() -> None:
    model = nn.Sequential(nn.LazyLinear(4), torch.jit.script(nn.Linear(4, 4)), nn.LayerNorm(4), norms.DynamicTanh(4))
    assert [layer.name for layer, _ in rmsexp.convert(model, "rms").replaced] == ["2", "3"]
    assert isinstance(model[3], norms.RMSNorm)


def converted(layer: nn.Module, norm: str = "rms", **options: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 6), layer)
    rmsexp.convert(model, norm, **options)
    return model


class Authors(nn.Module):
    """pRMSNorm as the authors' class computes it: x / (rms of the first half + eps) * scale."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.p = 1e-8, 0.5
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x / (x[..., :3].square().mean(-1, keepdim=True).sqrt() + self.eps))


class WithGate(Authors):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return y if gate is None else y * gate


def test_layers_are_known_by_what_they_compute() -> None:
    own = converted(Authors())[1]
    assert isinstance(own, norms.RMSNorm)
    theirs, x = Authors(), torch.randn(4, 6)
    found = equal(theirs)
    assert isinstance(found, norms.RMSNorm)
    assert (found.p, found.eps_inside, found.weight) == (0.5, False, theirs.scale)
    torch.testing.assert_close(found(x), theirs(x))
    assert equal(nn.RMSNorm(2, eps=1e-6)) is not None
    x = 1e-5 * torch.randn(4, 6)  # the place of eps matters
    assert not own.eps_inside
    assert converted(Authors(), "rms", eps_inside=True)[1].eps_inside
    torch.testing.assert_close(converted(Authors(), "prms", p=0.5)[1](x), theirs(x))
    done = rmsexp.convert(nn.Sequential(nn.Identity(), Authors()), "ln")
    assert done.replaced[0][1] == "eps outside of the root"
    model = nn.Sequential(nn.PReLU(6), WithGate(), nn.LayerNorm((3, 6)), nn.BatchNorm3d(6))
    WithGate.__name__ = "GatedNorm"
    done = rmsexp.convert(model, "rms")
    assert not done.replaced
    assert [layer.name for layer, _ in done.left] == ["1", "2", "3"]
    assert "batch, n, height" in done.left[-1][1]


def test_batch_norms() -> None:
    x = torch.randn(3, 6, 5, 5)
    model = nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.GroupNorm(2, 6)).eval()
    assert len(rmsexp.convert(model, "bn").replaced) == 1
    assert not model[2].training
    rmsexp.convert(model, "rms", axes=[1, 2, 3])
    assert model(x).shape == x.shape
    flat = converted(nn.BatchNorm1d(6))
    assert flat(torch.randn(3, 4)).shape == (3, 6)
    assert len(rmsexp.convert(flat, "ln").replaced) == 1
    with pytest.raises(ValueError, match="BatchNorm1d"):
        flat(torch.randn(3, 2, 4))
    with pytest.raises(ValueError, match="more than one value"):
        converted(nn.LayerNorm(6), "bn")(torch.randn(1, 4))
    with pytest.raises(ValueError, match="more than one value"):
        norms.BatchNorm(6)(torch.randn(1, 6))


def test_frozen_layers_stay_frozen_and_reset_gains_are_1() -> None:
    frozen = converted(nn.LayerNorm(6).requires_grad_(False), "dyt")[1]
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    layer = converted(OnePlus(), "rms")[1]
    layer.reset_parameters()
    assert (layer.weight + layer.gain_offset == 1).all()


class AddsOne(OnePlus):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(hidden_size))


HERE = f"module+class={__name__}."
TWICE: list[tuple[nn.Module, list[str]]] = [
    (nn.LayerNorm(6, 0.1), [f"{MODULE}LayerNorm", "ln"]),
    (nn.RMSNorm(6, 0.1), [f"{MODULE}RMSNorm", "rms", f"{HERE}AddsOne", "rms"]),
    (nn.GroupNorm(1, 6, 0.1), [f"{MODULE}GroupNorm+kwargs={{num_groups: 1}}"]),
    (nn.LayerNorm(6, elementwise_affine=False), ["ln"]),
    (AddsOne(6), [f"{HERE}AddsOne", f"{MODULE}RMSNorm"]),
    (norms.DynamicTanh(6), ["dyt"]),
    (norms.DynamicErf(6), ["derf"]),
]


@pytest.mark.parametrize(("layer", "chain"), TWICE)
def test_a_norm_replaced_by_itself_again_and_again_computes_the_same(layer: nn.Module, chain: list[str]) -> None:
    x = torch.randn(2, 6, 3, 3) if isinstance(layer, nn.GroupNorm) else torch.randn(2, 6)
    generator = torch.Generator().manual_seed(1)
    for value in layer.state_dict().values():
        value.copy_(0.5 + torch.rand(value.shape, generator=generator))
    model = nn.Sequential(layer).eval()
    expected, parameters = model(x), len(list(model.parameters()))
    for norm in chain:
        done = rmsexp.convert(model, norm)
        assert [(each.name, lacks) for each, lacks in done.replaced] == [("0", "")]
        torch.testing.assert_close(model(x), expected)
    assert len(list(model.parameters())) == parameters


def test_training_and_running_statistics_of_batch_norms_are_those_of_torch() -> None:
    theirs, ours, x = nn.BatchNorm2d(6), nn.Sequential(nn.GroupNorm(2, 6)), torch.randn(2, 6, 4, 4)
    rmsexp.convert(ours, "bn")
    for _ in range(3):
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_options_that_are_stated_are_not_taken_over() -> None:
    assert converted(nn.LayerNorm(6, 1e-3), "bn", eps=1e-5)[1].eps == 1e-5
    assert converted(nn.LayerNorm(6, 1e-3), f"{MODULE}LayerNorm", kwargs={"eps": 1e-5})[1].inner.eps == 1e-5


def test_a_stated_offset_of_the_gain_and_the_names_of_others_gains() -> None:
    layer = converted(OnePlus(), "rms", weight_offset=False)[1]
    assert (layer.gain_offset, layer.weight[0].item()) == (0, 1.5)
    model = nn.Sequential(nn.RMSNorm(6))
    nn.init.constant_(model[0].weight, 3.0)
    done = rmsexp.convert(model, norms.ModuleNorm(name="module", module=f"{__name__}.Named"))
    assert done.replaced[0][1] == ""
    assert torch.equal(model(torch.ones(6)), torch.full((6,), 3.0))


class Named(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.gamma)


def test_layers_are_known_whatever_the_default_dtype_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert len(rmsexp.convert(nn.Sequential(nn.LayerNorm(6), nn.RMSNorm(6)), "rms").replaced) == 2
    finally:
        torch.set_default_dtype(torch.float32)


class Unit(nn.Module):
    def __init__(self, centre: bool) -> None:
        super().__init__()
        self.centre, self.gamma = centre, nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if not self.centre:
            return nn.functional.normalize(x, dim=-1) * 6**0.5 * self.gamma
        return nn.functional.layer_norm(x, (6,), self.gamma, eps=1e-14)


@pytest.mark.parametrize("centre", [False, True])
def test_a_vector_of_zeros_stays_one(centre: bool) -> None:
    assert not converted(Unit(centre), "ln" if centre else "rms")[1](torch.zeros(2, 6)).any()


def test_a_part_of_by_role_states_its_own_options() -> None:
    options = {"default": "bn+eps=1e-4+momentum=0.2", "depths": {0: "rms+gain=true"}}
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"norm": nn.LayerNorm(6, 1e-3, False)})])})
    model["last"] = nn.LayerNorm(6, 1e-3)
    rmsexp.convert(model, "by_role", **options)
    assert model["layers"][0]["norm"].weight is not None
    assert (model["last"].eps, model["last"].options.momentum) == (1e-4, 0.2)
    done = rmsexp.convert(model, "by_role", depths={0: "wn"}, where="layers*")
    assert "acts on weights" in done.left[0][1]
    assert "acts on weights" in str(rmsexp.convert(model, "by_role", depths={0: "mean_only_bn"}))


def test_norms_of_many_groups_and_layers_without_eps() -> None:
    kwargs = {"num_groups": 8}
    assert isinstance(converted(nn.LayerNorm(16), "module", module="torch.nn.GroupNorm", kwargs=kwargs)[1], Wrapped)
    assert converted(converted(nn.LayerNorm(6), "dyt")[1])[1].eps == 1e-5


def test_a_norm_object_may_name_a_module_that_is_not_imported_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "norm_of_a_caller.py").write_text("from torch.nn import LayerNorm\n")
    monkeypatch.syspath_prepend(tmp_path)
    norm = norms.ModuleNorm(name="module", module="norm_of_a_caller.LayerNorm")
    assert isinstance(converted(nn.LayerNorm(6), norm)[1], Wrapped)


def test_a_layer_at_several_places_stays_one() -> None:
    shared = nn.LayerNorm(6)
    model = nn.Sequential(shared, nn.Linear(6, 6), shared)
    assert len(rmsexp.convert(model, "rms").replaced) == 1
    assert model[0] is model[2]


@pytest.mark.parametrize(
    ("model", "norm", "options", "word"),
    [
        (nn.Linear(2, 2), "rms", {}, "no normalisation layers"),
        (nn.Sequential(nn.LayerNorm(4)), "wn", {}, "weights"),
        (nn.Sequential(nn.LayerNorm(4)), "rsm", {}, "rms"),
        (nn.Sequential(nn.LayerNorm(4)), norms.ByRole(name="by_role", roles={"query": "ln"}), {}, "no query"),
        (nn.Sequential(nn.LayerNorm(4)), "rms", {"axis": 1}, "axis"),
        (nn.Sequential(nn.LayerNorm(4)), "rms", {"impl": "quick"}, "impl"),
    ],
)
def test_mistakes(model: nn.Module, norm: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        rmsexp.convert(model, norm, **options)


def test_in_training_with_autocast_checkpointing_and_copies() -> None:
    model = other("Llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    rmsexp.convert(model, norms.RMS(name="rms"), impl="fused")
    twin = copy.deepcopy(model)
    for each in (model, twin):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(torch.arange(14).view(2, 7))[0].float().square().mean()
        loss.backward()
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, twin)]
    assert all(grad is not None and grad.isfinite().all() for grad in gradients[0])
    for one, same in zip(*gradients, strict=True):
        assert torch.equal(one, same)


@pytest.mark.parametrize("impl", ["eager", "fused"])
def test_a_converted_model_can_be_compiled_and_distributed(impl: str) -> None:
    model = other("Llama")
    rmsexp.convert(model, "rms", impl=impl)
    expected = output(model)
    torch.testing.assert_close(output(torch.compile(model, backend="aot_eager")), expected, atol=2e-6, rtol=0)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        joint = nn.parallel.DistributedDataParallel(model)
        joint(torch.arange(14).view(2, 7))[0].square().mean().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    finally:
        torch.distributed.destroy_process_group()
