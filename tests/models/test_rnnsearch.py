"""RNNSearch: sites, sizes and initial values; padding, batches, steps. test_rnnsearch_theano.py has the formulas."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sites import KINDS, NORMS, close, drawn_weights, fill
from helpers.translation_models import RAGGED, SOURCES, TARGETS, SiteList, batch_of, pairs, parameters
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from rmsexp import norms
from rmsexp.models import init
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.norms import Linear
from rmsexp.tasks import rnnsearch
from rmsexp.tasks.rnnsearch import INITIALISERS
from rmsexp.train.randomness import stream

E, H = 3, 4


GRU_PARTS = ("gates_x", "gates_h", "candidate_x", "candidate_h")
GRUS = ("encoder.forward", "encoder.backward", "decoder.first", "decoder.second")
NORMALISED = [
    *(f"{gru}.{part}" for gru in GRUS for part in GRU_PARTS),
    *("initial", "attention.keys", "attention.query", "readout.previous", "readout.state", "readout.context"),
]


def test_the_22_sites() -> None:
    sites = SiteList(name="ln")
    model = RNNSearch(sites, SOURCES, TARGETS, embedding=E, hidden=H)
    assert len(NORMALISED) == 22
    assert sorted(sites.normalised) == sorted(NORMALISED)
    assert sites.unnormalised == ["attention.score"]
    top_level = {name: tuple(p.shape) for name, p in model.named_parameters() if "." not in name}
    assert top_level == {"source_embedding": (SOURCES, E), "target_embedding": (TARGETS, E), "output_bias": (TARGETS,)}


@pytest.mark.parametrize(("name", "vectors"), [("none", 0), ("rms", 1), ("ln", 2)])
def test_number_of_parameters_of_the_paper_s_model(name: str, vectors: int) -> None:
    with torch.device("meta"):
        model = RNNSearch(NORMS[name], 32_000, 32_000, embedding=512, hidden=1024)
    assert parameters(model) == 66_635_520 + vectors * 31_232


def initialised(name: str = "none", *, center: float = 0.0, seed: int = 0) -> RNNSearch:
    """Return an initialised model whose sizes are all different, so that no weight is square by coincidence."""
    model = RNNSearch(NORMS[name], 70, 90, embedding=30, hidden=20)
    config = SimpleNamespace(seed=seed, model=rnnsearch.ModelConfig(30, 20, init_center=center))
    rnnsearch.Task.initialise(SimpleNamespace(config=config), model)  # type: ignore[arg-type]
    return model


SQUARE = {
    *(f"{gru}_gru.gates_h/{i}" for gru in ("forward", "backward", "first", "second") for i in (0, 1)),
    *(f"{gru}_gru.candidate_h/0" for gru in ("forward", "backward", "first", "second")),
    *("keys/0", "of_previous/0"),
}


def test_square_matrices_are_orthogonal_and_independent_and_others_small() -> None:
    drawn = drawn_weights(initialised())
    assert len(drawn) == 2 + 4 * 6 + 7
    assert {name for name, weight in drawn.items() if weight.shape[0] == weight.shape[1]} == SQUARE
    for name in SQUARE:
        weight = drawn[name].double()
        torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)).double(), rtol=0, atol=1e-5)
    blocks = [drawn[name].flatten() for name in sorted(SQUARE) if drawn[name].shape == (20, 20)]
    overlaps = torch.corrcoef(torch.stack(blocks)) - torch.eye(len(blocks))
    assert len(blocks) == 12
    assert overlaps.abs().max() < 0.25  # correlations of matrices with 400 elements each
    small = torch.cat([weight.flatten() for name, weight in drawn.items() if name not in SQUARE])
    assert small.mean().item() == pytest.approx(0, abs=0.0003)
    assert small.std().item() == pytest.approx(0.01, rel=0.02)
    assert (small.abs() < 0.01).double().mean().item() == pytest.approx(0.6827, abs=0.01)  # normal distribution
    for name, weight in drawn.items():
        if name not in SQUARE:
            assert weight.std().item() == pytest.approx(0.01, rel=0.5 if "score" in name else 0.15)


def test_orthogonal_matrices_are_drawn_uniformly() -> None:
    """Traces of uniform orthogonal matrices have mean 0 and variance 1, unlike those of the Q of a plain QR."""
    traces, generator = [], stream(0, "orthogonal")
    for _ in range(400):
        weight = torch.empty(5, 5)
        init.orthogonal(weight, generator)
        traces.append(weight.trace())
    assert torch.stack(traces).mean().item() == pytest.approx(0, abs=0.2)
    assert torch.stack(traces).var().item() == pytest.approx(1, abs=0.3)


@KINDS
def test_the_centre_moves_every_weight_and_nothing_else(name: str) -> None:
    base, moved = (initialised(name, center=center) for center in (0.0, 0.2))
    for key, weight in drawn_weights(base).items():
        assert torch.equal(drawn_weights(moved)[key], weight + 0.2)
    drawn = {"source_embedding", "target_embedding"}
    for key, parameter in moved.named_parameters():
        if key in drawn or (key.endswith(".weight") and "norm" not in key):
            continue
        start = {"weight": 1.0, "gain": 1.0, "alpha": 0.5}.get(key.rpartition(".")[2], 0.0)
        assert (parameter == start).all(), key


def test_statistics_of_batch_norm_are_of_real_tokens() -> None:
    """Statistics exclude padding. Keys have one over all source positions, recurrences and readout one per step."""
    norm = norms.BN(name="bn", min_examples=4, momentum=1.0)
    model: Any = fill(RNNSearch(norm, SOURCES, TARGETS, embedding=E, hidden=H))
    batch = batch_of(pairs(RAGGED))
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs: seen.update({name: F.linear(inputs[0], module.weight, module.bias)})

    model.keys.register_forward_pre_hook(keep("keys"))
    model.of_context.register_forward_pre_hook(keep("context"))
    model(batch)
    keys = seen["keys"][batch.source_mask]
    close(model.keys.norm.running_mean[0], keys.mean(0))
    close(model.keys.norm.running_var[0], keys.var(0))
    lengths = batch.target_mask.sum(1)
    for step in range(4):
        real = seen["context"][:, step][lengths > step]
        assert len(real) >= norm.min_examples
        close(model.of_context.norm.running_mean[step], real.mean(0))
    sites = (module for module in model.modules() if isinstance(module, norms.Linear) and module is not model.score)
    counts: dict[str, Any] = {site.site.name: site.norm.count for site in sites}
    at_once = ("initial", "attention.keys")  # one statistic; the other sites have one per time step
    # Step 5 has two sentences, fewer than min_examples.
    expected = {name: [1] if name in at_once else [1, 1, 1, 1, 0] for name in NORMALISED}
    assert {name: count.tolist() for name, count in counts.items()} == expected


SIZES = {"source_size": 300, "target_size": 400, "embedding": 48, "hidden": 96}


def model_of(norm: norms.Norm, name: str | None = "lecun_normal") -> RNNSearch:
    model = RNNSearch(norm, **SIZES)  # type: ignore[arg-type]
    init.initialise(
        model, init.square_or_not(init.orthogonal, INITIALISERS[name]), lambda parameter: stream(0, "init", parameter)
    )
    return model


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_weight_norm_may_start_from_the_drawn_weights(eps: float, inverse: bool) -> None:
    plain = model_of(norms.NoNorm(name="none"))
    kept = model_of(norms.WN(name="wn", eps=eps, keep_scale=True, inverse_gain=inverse))
    unit = model_of(norms.WN(name="wn", eps=eps / 1000, inverse_gain=inverse))
    for name, layer in plain.named_modules():
        if isinstance(layer, Linear):
            assert_close(kept.get_submodule(name).effective_weight(), layer.weight)  # type: ignore[operator]
            lengths = unit.get_submodule(name).effective_weight().norm(dim=1)  # type: ignore[operator]
            assert_close(lengths, torch.ones_like(lengths), rtol=1e-4, atol=0)
