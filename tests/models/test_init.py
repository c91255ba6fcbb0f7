"""Initial weights that suit any width, and weight normalisation that starts from the drawn weights."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from rmsexp import norms
from rmsexp.models import init
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.norms import Linear
from rmsexp.tasks.rnnsearch import INITIALISERS, ModelConfig
from rmsexp.train.randomness import stream

SIZES = {"source_size": 300, "target_size": 400, "embedding": 48, "hidden": 96}


def model_of(norm: norms.Norm, name: str | None = "lecun_normal") -> RNNSearch:
    model = RNNSearch(norm, **SIZES)  # type: ignore[arg-type]
    init.initialise(model, INITIALISERS[name], lambda parameter: stream(0, "init", parameter))
    return model


def test_standard_deviations_of_lecuns_initial_weights() -> None:
    """Square weights are orthogonal; the others, also embeddings, have standard deviation n_in^-0.5."""
    parameters = dict(model_of(norms.NoNorm(name="none")).named_parameters())
    for name in ("source_embedding", "target_embedding", "first_gru.candidate_x.weight", "initial.weight"):
        weight = parameters[name]
        assert weight.std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.05)
    square = parameters["first_gru.candidate_h.weight"]
    assert_close(square @ square.T, torch.eye(len(square)), atol=1e-5, rtol=0)


def test_initialisers_differ_in_scale_alone() -> None:
    small, suited = (dict(model_of(norms.NoNorm(name="none"), name).named_parameters()) for name in INITIALISERS)
    assert_close(small["source_embedding"] / 0.01, suited["source_embedding"] * 48**0.5)


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


def test_an_unknown_initialiser_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.init=lecun"):
        ModelConfig(init="lecun")
