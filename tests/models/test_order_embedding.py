"""Order-embeddings: vectors, penalties and loss against plain formulas; sizes and initial values."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sites import KINDS, NORMS, close, draw, fill, weight_of
from helpers.translation_models import SiteList, padded, parameters
from torch import Tensor
from torch.nn import functional as F

from rmsexp.models import order_embedding as order_embedding_model
from rmsexp.models.order_embedding import PENALTIES, OrderEmbedding, cosine_penalty, ranking_loss
from rmsexp.tasks import order_embedding
from rmsexp.train.randomness import stream

WORDS, FEATURES, E, H = 9, 5, 3, 4
LENGTHS = (5, 1, 3, 5, 2, 4, 3, 2)
BATCH = len(LENGTHS)


def make(name: str, *, absolute: bool = True) -> Any:  # an OrderEmbedding; Any, because tests read its norms
    return fill(OrderEmbedding(NORMS[name], WORDS, FEATURES, embedding=E, hidden=H, absolute=absolute))


def captions() -> list[Tensor]:
    generator = stream(0, "captions")
    return [torch.randint(1, WORDS, (length,), generator=generator) for length in LENGTHS]


def test_vectors_are_in_float32_under_autocast() -> None:
    model = fill(OrderEmbedding(NORMS["rms"], WORDS, FEATURES, embedding=E, hidden=H)).float()
    with torch.autocast("cpu", torch.bfloat16):
        vectors = (model.images(draw(3, FEATURES).float()), model.captions(*padded(captions())))
    assert [vector.dtype for vector in vectors] == [torch.float32] * 2
    for vector in vectors:
        torch.testing.assert_close(vector.norm(dim=-1), torch.ones(len(vector)))


@KINDS
def test_vectors_of_captions_are_the_last_states_scaled_to_length_1_in_absolute_values(name: str) -> None:
    model = make(name).eval()
    tokens, mask = padded(captions())
    states = model.gru(model.embedding[tokens], mask)
    last = torch.stack([row[length - 1] for row, length in zip(states, LENGTHS, strict=True)])
    close(model.captions(tokens, mask), (last / last.square().sum(1, keepdim=True).sqrt()).abs())


@KINDS
def test_images_are_mapped_to_unit_vectors_without_norm(name: str) -> None:
    model, features = make(name), draw(BATCH, FEATURES)
    y = features @ weight_of(model.image).T + model.image.bias
    close(model.images(features), (y / y.square().sum(1, keepdim=True).sqrt()).abs())
    assert (model.image.reparametrisation is not None) == (name in ("wn", "mean_only_bn"))


def test_the_cosine_penalty_is_the_plain_formula() -> None:
    s, v = F.normalize(draw(7, H)), F.normalize(draw(6, H, seed=1))
    cosines = [[F.cosine_similarity(c, i, dim=0).item() for i in v] for c in s]
    close(cosine_penalty(s, v), -torch.tensor(cosines, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        penalties = cosine_penalty(s.float(), v.float())
    torch.testing.assert_close(penalties, -torch.tensor(cosines), rtol=0, atol=1e-6)


@pytest.mark.parametrize("captions_at_once", [1, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_order_penalty_in_blocks_of_captions_is_the_plain_formula(
    dtype: torch.dtype, captions_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(order_embedding_model.BLOCK, "cpu", captions_at_once * 6 * H + 1)
    s, v = (draw(size, H, seed=size).to(dtype).requires_grad_() for size in (7, 6))
    plain = (s.unsqueeze(1) - v).clamp(min=0).square().sum(-1)
    results, weights = PENALTIES["order"](s, v), draw(7, 6, seed=2).to(dtype)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(results, plain, **tolerance)
    gradients = [torch.autograd.grad((penalty * weights).sum(), (s, v)) for penalty in (results, plain)]
    torch.testing.assert_close(*gradients, **tolerance)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("margin", [0.05, 0.2, 3.0])
def test_the_loss_is_the_plain_double_sum(margin: float, size: int) -> None:
    penalties = draw(size, size).requires_grad_()
    total = penalties.new_zeros(())
    for i, j in itertools.permutations(range(size), 2):
        wrong_image = margin + penalties[i, i] - penalties[i, j]
        wrong_caption = margin + penalties[i, i] - penalties[j, i]
        total = total + max(wrong_image, 0 * total) + max(wrong_caption, 0 * total)
    losses = [ranking_loss(penalties, margin), total]
    close(*losses)
    close(*(torch.autograd.grad(loss, penalties) for loss in losses))


def test_the_4_sites() -> None:
    sites = SiteList(name="ln")
    OrderEmbedding(sites, WORDS, FEATURES, embedding=E, hidden=H)
    parts = ("gates_x", "gates_h", "candidate_x", "candidate_h")
    assert sites.normalised == [f"caption.{part}" for part in parts]
    assert sites.unnormalised == ["image"]


@pytest.mark.parametrize(("name", "vectors"), [("none", 0), ("rms", 1), ("prms", 1), ("ln", 2)])
def test_number_of_parameters_of_the_paper_s_model(name: str, vectors: int) -> None:
    """A norm adds ``vectors`` vectors (gain, shift) at each site. Two sites have 2 h units, two have h units."""
    with torch.device("meta"):
        model = OrderEmbedding(NORMS[name], 10_000, 4096, embedding=300, hidden=1024)
    assert parameters(model) == 11_265_728 + vectors * 6 * 1024


def assert_uniform(values: Tensor, bound: float) -> None:
    """Check that values are uniform on [-bound, bound]: their range, and mean and mean square to 4 standard errors."""
    scaled = values.detach().double().flatten() / bound
    count = len(scaled)
    assert 1 - 20 / count < scaled.abs().max() <= 1 + 1e-6
    assert scaled.mean().item() == pytest.approx(0, abs=4 / math.sqrt(3 * count))
    assert scaled.square().mean().item() == pytest.approx(1 / 3, abs=4 * math.sqrt(4 / 45 / count))


def test_initial_weights_are_uniform_or_orthogonal() -> None:
    model: Any = OrderEmbedding(NORMS["none"], 70, 60, embedding=30, hidden=20)
    order_embedding.Task.initialise(SimpleNamespace(config=SimpleNamespace(seed=0)), model)  # type: ignore[arg-type]
    for values in (model.embedding, *model.gru.gates_x.weight.chunk(2), model.gru.candidate_x.weight):
        assert_uniform(values, 0.1)
    assert_uniform(model.image.weight, math.sqrt(6 / (60 + 20)))
    orthogonal = [*model.gru.gates_h.weight.chunk(2), model.gru.candidate_h.weight]
    for block in orthogonal:
        torch.testing.assert_close(block @ block.T, torch.eye(20), rtol=0, atol=1e-5)
    overlaps = torch.corrcoef(torch.stack([block.detach().flatten() for block in orthogonal]))
    assert (overlaps - torch.eye(3)).abs().max() < 0.25  # correlations of matrices with 400 elements each
    for bias in (model.gru.gates_x.bias, model.gru.candidate_x.bias, model.image.bias):
        assert not bias.any()
