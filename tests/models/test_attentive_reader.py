"""The attentive reader: sites, sizes and initial values; the forward pass against plain formulas; padding."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.cases import some
from helpers.sites import NORMS, TWINS, close, draw, drawn_weights, fill
from helpers.tensors import digest
from helpers.translation_models import SiteList, parameters
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.attentive_reader import AttentiveReader, Batch
from rmsexp.tasks import attentive_reader
from rmsexp.train.randomness import stream

D, WORDS, DROPOUT = 3, 7, 0.75
LENGTHS = ((4, 2), (1, 3), (5, 1), (3, 3), (2, 2), (5, 3))  # numbers of words: (passage, question)
READERS = NORMS | {"bn everywhere": norms.BN(name="bn", min_examples=4, everywhere=True)}


def make(norm: norms.Norm) -> Any:  # an AttentiveReader; Any, because tests read attributes of its norms
    return fill(AttentiveReader(norm, WORDS, width=D, dropout=DROPOUT))


def batch_of(lengths: Sequence[tuple[int, int]] = LENGTHS, name: str = "", padding: str = "", more: int = 0) -> Batch:
    """Return a batch of random words; ``lengths`` has the lengths of passage and question of each example.

    ``name`` chooses the random stream of real words, ``padding`` that of words on padding. ``more``: number of columns
    of padding beyond the longest sequence.
    """

    def words(side: str, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        real, shape = torch.tensor(sizes), (len(sizes), max(sizes) + more)
        mask = torch.arange(shape[1]) < real.unsqueeze(1)
        tokens = torch.randint(WORDS, shape, generator=stream(0, side, "padding", padding))
        tokens[mask] = torch.randint(WORDS, (int(real.sum()),), generator=stream(0, side, name))
        return tokens, mask

    passages, questions = zip(*lengths, strict=True)
    return Batch(
        *words("passage", passages), *words("question", questions), torch.zeros(len(lengths), dtype=torch.int64)
    )


def gradients(model: nn.Module, logits: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((logits * draw(*logits.shape, seed=5)).sum(), list(model.parameters()))


LSTMS = ("passage.forward", "passage.backward", "question.forward", "question.backward")
NORMALISED = [f"{lstm}.{part}" for lstm in LSTMS for part in ("gates_x", "gates_h", "cell")]
OPTIONAL = ["attention.key", "attention.query", "readout.context", "readout.question", "readout.passage"]


def test_the_12_sites() -> None:
    sites = SiteList(name="ln")
    model = AttentiveReader(sites, WORDS, width=D, dropout=DROPOUT)
    assert len(NORMALISED) == 12
    assert sites.normalised == NORMALISED
    assert sorted(sites.unnormalised) == sorted([*OPTIONAL, "attention.similarity", "attention.score"])
    top_level = {name: tuple(p.shape) for name, p in model.named_parameters() if "." not in name}
    assert top_level == {"embedding": (WORDS, D), "output": (WORDS, D), "output_bias": (WORDS,)}


@pytest.mark.parametrize("everywhere", [False, True])
def test_batch_norm_is_at_5_more_sites_when_it_is_everywhere(everywhere: bool) -> None:
    model = AttentiveReader(norms.BN(name="bn", everywhere=everywhere), WORDS, width=D, dropout=DROPOUT)
    assert sum(isinstance(layer, norms.BatchNorm) for layer in model.modules()) == (17 if everywhere else 12)
    maps = {site.site.name: site for site in model.modules() if isinstance(site, norms.Linear)}
    more = [name for name, site in maps.items() if isinstance(site.norm, norms.BatchNorm) and name not in NORMALISED]
    assert more == (OPTIONAL if everywhere else [])
    biases = {name for name in OPTIONAL if (maps[name].norm if everywhere else maps[name]).bias is not None}
    assert biases == {"attention.key", "readout.question"}
    assert not everywhere or all(maps[name].bias is None for name in OPTIONAL)


PARAMETERS = {"rms": 8_640, "prms": 8_640, "ln": 17_280, "bn": 9_600, "bn everywhere": 10_800, "wn": 9_361, "none": 0}


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters_of_the_paper_s_model(name: str) -> None:
    with torch.device("meta"):
        model = AttentiveReader(READERS[name], 65_830, width=240, dropout=DROPOUT)
    assert parameters(model) == 34_319_350 + PARAMETERS[name]


def initialised(name: str = "none", *, shared: bool = False, seed: int = 0) -> AttentiveReader:
    """Return an initialised model whose sizes are all different, so that no weight is square by coincidence."""
    model = AttentiveReader(NORMS[name], 90, width=24, dropout=DROPOUT)
    config = SimpleNamespace(seed=seed, model=attentive_reader.ModelConfig(24, shared_init=shared))
    attentive_reader.Task.initialise(SimpleNamespace(config=config), model)  # type: ignore[arg-type]
    return model


def test_square_matrices_are_orthogonal_and_small_and_others_uniform() -> None:
    drawn = drawn_weights(initialised())
    square = {name for name, weight in drawn.items() if weight.shape[0] == weight.shape[1]}
    gates = {f"{lstm}_lstm.gates_{side}/{block}" for lstm in LSTMS for side in "xh" for block in range(4)}
    assert len(drawn) == 2 + 4 * 2 * 4 + 7
    assert square == gates | {"similarity/0"}
    for name, weight in drawn.items():
        if name in square:
            torch.testing.assert_close(weight @ weight.T, 0.05**2 * torch.eye(len(weight)), rtol=0, atol=1e-8)
            continue
        bound = math.sqrt(1 / 24) if name == "score/0" else math.sqrt(6 / (sum(weight.shape) + 1))
        assert 0.9 * bound < weight.abs().max() <= bound
        few = name == "score/0"  # 24 numbers
        assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.4 if few else 0.1)
        assert weight.mean().item() == pytest.approx(0, abs=bound * (0.3 if few else 0.05))


def test_weights_of_equal_shape_begin_equal_with_shared_init_and_are_otherwise_drawn_independently() -> None:
    drawn = drawn_weights(initialised(shared=True))
    by_shape = {(tuple(weight.shape), digest(weight)) for weight in drawn.values()}
    assert len(by_shape) == len({shape for shape, _ in by_shape}) == 5
    apart = drawn_weights(initialised())
    assert len({digest(weight) for weight in apart.values()}) == len(apart)
    blocks = torch.stack([weight.flatten() for weight in apart.values() if weight.shape == (24, 24)])
    assert (torch.corrcoef(blocks) - torch.eye(32)).abs().max() < 0.25  # correlations of matrices of 576 elements
    assert not torch.equal(drawn["embedding"], apart["embedding"])


def states_of(
    model: Any, reader: Any, words: Tensor, mask: Tensor, row: int, factors: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the hidden states of both LSTMs for example ``row``, in the order of the words."""
    length = int(mask[row].sum())
    ahead, back = ((model.embedding[words[row]] * factor[row])[None, :length] for factor in factors)
    starts = [(hidden[None], torch.zeros_like(hidden)[None]) for hidden in reader.initial]
    backward = reader.backward_lstm(back.flip(1), initial=starts[1])
    return reader.forward_lstm(ahead, initial=starts[0])[0], backward.flip(1)[0]


def plain_reader(model: Any, batch: Batch, factors: Sequence[Tensor]) -> Tensor:
    """Return logits ``(batch, words)``, computed question by question.

    ``factors``: dropout factors of the inputs of four LSTMs, ``(batch, time, d)`` each: passage forward and backward,
    question forward and backward; then those of the readout, ``(batch, d)``.
    """
    rows = []
    for row in range(len(batch.answer)):
        forward, backward = states_of(model, model.passage, batch.passage, batch.passage_mask, row, factors[:2])
        annotations = [torch.cat(pair) for pair in zip(forward, backward, strict=True)]
        forward, backward = states_of(model, model.question, batch.question, batch.question_mask, row, factors[2:4])
        question = torch.cat([forward[-1], backward[0]])
        scores = []
        for annotation in annotations:
            similarity = (model.similarity.weight @ annotation) @ (model.similarity.weight @ question)
            hidden = model.key.weight @ annotation + model.key.bias + model.query.weight @ question + similarity
            scores.append(model.score.weight[0] @ torch.tanh(hidden))
        total = sum(torch.exp(score) for score in scores)
        context, mean = torch.zeros_like(question), torch.zeros_like(question)
        for score, annotation in zip(scores, annotations, strict=True):
            context = context + torch.exp(score) / total * annotation
            mean = mean + annotation / len(annotations)
        readout = model.of_context.weight @ context + model.of_passage.weight @ mean
        readout = torch.tanh(readout + model.of_question.weight @ question + model.of_question.bias)
        rows.append(model.output @ (readout * factors[4][row]) + model.output_bias)
    return torch.stack(rows)


class Recording:
    """Noise that applies dropout with fixed random factors, and records them."""

    def __init__(self) -> None:
        self.factors: list[Tensor] = []

    def dropout(self, x: Tensor, p: float) -> Tensor:
        assert p == DROPOUT
        self.factors.append((draw(*x.shape, seed=40 + len(self.factors)) > 0) / (1 - p))
        return x * self.factors[-1]


@pytest.mark.parametrize("name", ["none", "ln", "rms"])
@pytest.mark.parametrize("dropout", [False, True], ids=["evaluation", "dropout"])
def test_the_forward_pass_is_the_plain_formulas(name: str, dropout: bool) -> None:
    """Dropout is applied only to the inputs of the four LSTMs and to the readout."""
    model, batch, noise = make(NORMS[name]), batch_of(), Recording()
    logits = model(batch, noise) if dropout else model(batch)
    shapes = [(*batch.passage.shape, D)] * 2 + [(*batch.question.shape, D)] * 2 + [(len(LENGTHS), D)]
    assert [tuple(factor.shape) for factor in noise.factors] == (shapes if dropout else [])
    factors = noise.factors if dropout else [torch.ones(shape, dtype=torch.float64) for shape in shapes]
    expected = plain_reader(model, batch, factors)
    close(logits, expected)
    close(gradients(model, logits), gradients(model, expected))


@pytest.mark.parametrize("name", some(READERS, READERS.keys() - TWINS))
def test_padding_has_no_part_in_training(name: str) -> None:
    """Neither words on padding nor the amount of padding change a logit, running statistic or gradient."""
    results = []
    for padding, more in (("some", 0), ("other", 3)):
        model = make(READERS[name])
        logits = model(batch_of(padding=padding, more=more))
        statistics = {key: buffer[:5] if "question" not in key else buffer[:3] for key, buffer in model.named_buffers()}
        results.append((logits, statistics, gradients(model, logits)))
    close(*results)


@pytest.mark.parametrize("padding", ["exclude", "include"])
def test_everywhere_has_one_statistic_over_positions_of_the_passage_and_over_questions(padding: str) -> None:
    model = make(norms.BN(name="bn", min_examples=4, momentum=1.0, everywhere=True, padding=padding))
    seen: dict[str, Tensor] = {}

    def keep(site: Any, inputs: tuple[Tensor, ...]) -> None:
        seen[site.site.name] = inputs[0] @ site.weight.T

    sites = [model.key, model.query, model.of_context, model.of_question, model.of_passage]
    for site in sites:
        site.register_forward_pre_hook(keep)
    batch = batch_of()
    model(batch)
    seen["attention.key"] = seen["attention.key"][batch.passage_mask | (padding == "include")]
    for site in sites:
        rows = seen[site.site.name]
        assert rows.dim() == 2
        close(site.norm.running_mean, rows.mean(0, keepdim=True))
        close(site.norm.running_var, rows.var(0, keepdim=True))
