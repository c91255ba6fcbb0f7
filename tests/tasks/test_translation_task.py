"""The translation tasks: batches, evaluation, decoding and objectives by hand, the paper's setting."""

import dataclasses
import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sites import draw
from helpers.tasks import shake, steps_of
from helpers.translation_models import RAGGED, TARGETS, batch_of, pairs
from helpers.translation_tasks import TASKS, TRAIN, make
from torch import Tensor
from torch.nn import functional as F

from rmsexp import config
from rmsexp.data.subwords import EOS, PAD
from rmsexp.data.synthetic import phrases
from rmsexp.metrics import bleu
from rmsexp.models.translation import Batch, token_losses
from rmsexp.task import Objective
from rmsexp.tasks import rnnsearch, transformer, translation
from rmsexp.tasks.translation import real_targets
from rmsexp.train.randomness import StreamNoise

pytestmark = pytest.mark.slow


def pairs_of(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the sentence pairs of a batch, without padding."""
    sides = [
        [tuple(row[real].tolist()) for row, real in zip(tokens, mask, strict=True)]
        for tokens, mask in ((batch.source, batch.source_mask), (batch.target, batch.target_mask))
    ]
    return list(zip(*sides, strict=True))


def longer_sides(batch: Batch) -> list[int]:
    return [max(len(source), len(target)) for source, target in pairs_of(batch)]


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("name", TASKS)
def test_an_epoch_has_every_pair_once(text_root: Path, name: str, epoch: int) -> None:
    task, _ = make(text_root, name)
    train = task.text.train
    expected = Counter((tuple(map(int, train.source[i])), tuple(map(int, train.target[i]))) for i in range(TRAIN))
    assert len(expected) == TRAIN  # all pairs can be identified
    batches = [batch for step in steps_of(task, epoch) for batch in task.batches(step)]
    assert Counter(pair for batch in batches for pair in pairs_of(batch)) == expected
    assert [task.examples(batch) for batch in batches] == [len(pairs_of(batch)) for batch in batches]


@pytest.mark.parametrize("name", TASKS)
def test_tokens_masks_and_padding_of_a_batch(text_root: Path, name: str) -> None:
    task, _ = make(text_root, name)
    batches = [*task.batches(0), *task.batches(5), *task.held_out_batches(task.text.held_out["valid"])]
    for batch in batches:
        for tokens, mask in ((batch.source, batch.source_mask), (batch.target, batch.target_mask)):
            lengths = mask.sum(1)
            assert tokens.dtype == torch.int64
            assert tokens.shape[1] == lengths.max()  # no more padding than is needed
            assert torch.equal(mask, torch.arange(tokens.shape[1]) < lengths[:, None])
            assert (tokens[~mask] == PAD).all()
            assert torch.equal((tokens == EOS).nonzero(), torch.stack([torch.arange(len(tokens)), lengths - 1], 1))
        assert torch.equal(batch.real, batch.target_mask.flatten().nonzero().squeeze(1))
        assert len(set(longer_sides(batch))) > 1 or len(batch.source) == 1
    held_out = [pair for batch in task.held_out_batches(task.text.held_out["valid"]) for pair in pairs_of(batch)]
    assert len(held_out) == 16
    assert [len(target) for _, target in held_out] == sorted((len(target) for _, target in held_out), reverse=True)


def test_rnnsearch_reads_pools_and_takes_the_longest_first(text_root: Path) -> None:
    task, _ = make(text_root, "rnnsearch")
    batches = [batch for step in steps_of(task, 0) for batch in task.batches(step)]
    assert [len(batch.source) for batch in batches] == [20] * 15 + [10]
    lengths = [length for batch in batches for length in longer_sides(batch)]
    pools = [lengths[start : start + 60] for start in range(0, TRAIN, 60)]
    assert all(pool == sorted(pool, reverse=True) for pool in pools)
    assert lengths != sorted(lengths, reverse=True)


def test_a_transformers_batches(text_root: Path) -> None:
    task, _ = make(text_root, "transformer")
    epochs = []
    for epoch in range(2):
        batches = [task.batches(step) for step in steps_of(task, epoch)]
        assert {len(micro) for micro in batches[:-1]} == {2}
        assert len(batches[-1]) in (1, 2)
        epochs.append([batch for micro in batches for batch in micro])
    for batch in epochs[0]:
        assert len(batch.source) * max(longer_sides(batch)) <= 200
    pools: list[list[set[frozenset[Any]]]] = []
    for batches in epochs:
        pools.append([set() for _ in range(math.ceil(TRAIN / 100))])
        read = 0
        for batch in batches:
            pools[-1][read // 100].add(frozenset(pairs_of(batch)))
            read += len(batch.source)
    assert pools[0] == pools[1]  # the same batches in the same pools
    assert all(sum(map(len, pool)) == 100 for pool in pools[0][:3])
    assert [pairs_of(batch) for batch in epochs[0]] != [pairs_of(batch) for batch in epochs[1]]


def test_the_toolkits_batching_carries_pairs_over_and_steps_cross_epochs(text_root: Path) -> None:
    """Each epoch has the same micro-batches. All are at least half full, and each step has three of them."""
    task, _ = make(text_root, "transformer", "batching=toolkit", "accumulate=3", "tokens=192")
    size = round(task.steps_per_epoch * 3)
    assert size % 3  # steps at the end of the first two epochs have micro-batches of two epochs
    steps = [task.batches(step) for step in range(size)]
    assert {len(micro) for micro in steps} == {3}
    batches = [batch for micro in steps for batch in micro]
    epochs = [[frozenset(pairs_of(batch)) for batch in batches[start : start + size]] for start in (0, size)]
    assert len(set(epochs[0])) == size
    assert set(epochs[0]) == set(epochs[1])
    assert epochs[0] != epochs[1]
    for batch in batches:
        assert len(batch.source) * max(longer_sides(batch)) < 192
        assert max(batch.source_mask.sum(), batch.target_mask.sum()) >= 96
    used = sum(map(len, epochs[0]))
    assert 0 < TRAIN - used < 10


def test_a_bound_that_no_micro_batch_fills_half_is_refused(text_root: Path) -> None:
    with pytest.raises(ValueError, match=r"^tokens=100000"):
        make(text_root, "transformer", "batching=toolkit", "tokens=100000")


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_by_hand(text_root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    corpus = phrases.phrases(TRAIN, 16, 16)
    more = dataclasses.replace(corpus, splits={**corpus.splits, "test2017": corpus.splits["valid"]})
    monkeypatch.setitem(translation.SOURCES, "phrases", lambda _: more)
    task, model = make(text_root, name, "norm=ln", "data.tests=[test,test2017]", "decoding.valid_beam=1")
    shake(model)
    model.eval().double()  # with such weights a recurrence amplifies rounding errors
    results = task.evaluate(model)
    assert list(results) == ["valid", "test", "test2017"]
    assert results["test2017"]["loss"] == results["valid"]["loss"]
    assert results["test"]["loss"] != results["valid"]["loss"]
    for split, beam in (("valid", 1), ("test", 2)):
        assert results[split].keys() == {"loss", "perplexity", "bleu", "chrf"}
        total, tokens, held_out = 0.0, 0, task.text.held_out[split]
        for i in range(len(held_out.references)):
            source, target = (
                torch.from_numpy(side[i].astype("int64"))[None]
                for side in (held_out.pairs.source, held_out.pairs.target)
            )
            real = torch.arange(target.shape[1])
            logits = model(Batch(source, torch.ones_like(source).bool(), target, torch.ones_like(target).bool(), real))
            total += F.cross_entropy(logits.double(), target[0], reduction="sum").item()
            tokens += len(real)
        assert results[split]["loss"] == pytest.approx(total / tokens, rel=1e-5)
        assert results[split]["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
        hypotheses = [task.translate(model, [line], beam)[0] for line in held_out.sources]  # each alone
        scores = bleu.score(hypotheses, held_out.references)
        assert (results[split]["bleu"], results[split]["chrf"]) == (scores["bleu"], scores["chrf"])
        assert len(set(hypotheses)) > 5
        if split == "test":
            kept = json.loads(gzip.decompress(task.files[translation.TRANSLATIONS]))
            assert (kept["target"], kept["tests"]["test"]) == ("de", [list(held_out.references), hypotheses])
        written = [block.rstrip("\n").split("\n") for block in task.files["translations.txt"].split("\n\n")]
        samples = {heading: {line.split()[0]: line[14:] for line in lines} for heading, *lines in written}
        samples = {heading: lines for heading, lines in samples.items() if heading.split()[0] == split}
        assert len(samples) == 10
        for heading, lines in samples.items():
            i = int(heading.split()[1]) - 1
            expected = {"source": held_out.sources, "reference": held_out.references, "translation": hypotheses}
            assert lines == {kind: texts[i] for kind, texts in expected.items()}


def test_references_that_are_longer_than_translations_can_be_are_counted(text_root: Path) -> None:
    told = list[str]()
    task, _ = make(text_root, "rnnsearch", "decoding.max_length=6")
    task.prepare(told.append)
    lengths = task.text.held_out["test"].pairs.target.lengths
    assert any(
        f"test: {sum(lengths > 6)} of 16 references are longer than decoding.max_length" in line for line in told
    )


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_with_statistics_of_the_batch_is_refused(text_root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"^norm\.eval=batch"):
        make(text_root, name, "norm=bn", "norm.eval=batch")


def test_the_papers_rnnsearch_in_theano() -> None:
    """The variant changes the defaults of other keys, and these can still be set."""
    words = ["task=rnnsearch", "scale=paper", "norm=wn", "model.variant=nematus_theano"]
    job = config.job(words)
    cfg = job.config
    assert (cfg.label_smoothing, cfg.decoding.valid_beam, cfg.model.tied) == (0.0, 5, False)
    assert (job.norm.eps, job.norm.inverse_gain) == (1e-5, True)
    assert (job.setting, job.series) == ("paper+model.variant=nematus_theano", "wn")
    smoothed = config.job([*words, "label_smoothing=0.1", "norm.inverse_gain=false"])
    assert smoothed.setting == "paper+label_smoothing=0.1+model.variant=nematus_theano"
    assert smoothed.series == "wn+inverse_gain=False"
    with pytest.raises(config.ConfigError, match=r"model\.variant"):
        config.job(["task=rnnsearch", "model.variant=theano"])


def test_the_papers_transformer() -> None:
    cfg = config.job(["task=transformer", "scale=paper", "norm=rms"]).config
    for step in (1, 2000, 4000, 300_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert cfg.optim.lr * cfg.schedule.at(step - 1)["lr"] == pytest.approx(expected)
    assert [cfg.decoding.options(beam).search for beam in (4, 1)] == ["toolkit", None]


# --- objectives, computed token by token


CLASSES: dict[str, Any] = {"rnnsearch": rnnsearch.Task, "transformer": transformer.Task}


def objective(task: str, logits: Tensor, batch: Batch, smoothing: float) -> Objective:
    """Return the objective of a model whose output is ``logits``."""
    noise = StreamNoise(0, "noise")

    def model(model_batch: Batch, model_noise: StreamNoise) -> Tensor:
        assert model_batch is batch
        assert model_noise is noise
        return logits

    stub = SimpleNamespace(config=SimpleNamespace(label_smoothing=smoothing))
    return CLASSES[task].objective(stub, model, batch, noise)


def cross_entropy(batch: Batch, logits: Tensor, true: float, other: float) -> Tensor:
    """Return the cross-entropy of each token for target probabilities ``true`` (it) and ``other`` (each other word)."""
    hot = F.one_hot(real_targets(batch), TARGETS)
    log_totals = logits.exp().sum(1, keepdim=True).log()
    return -(torch.where(hot == 1, true, other) * (logits - log_totals)).sum(1)


def nematus(batch: Batch, logits: Tensor, e: float) -> Tensor:
    """Return the objective of Nematus: the cross-entropy, summed over tokens and averaged over sentences.

    Target probabilities are 1 - e + e / V for the true word and e / V for each other word.
    """
    return cross_entropy(batch, logits, 1 - e + e / TARGETS, e / TARGETS).sum() / len(batch.target)


def zero(batch: Batch, logits: Tensor, e: float) -> Tensor:
    """Return the objective of the toolkit zero: the cross-entropy, averaged over tokens and then over sentences.

    Target probabilities are 1 - e for the true word and e / (V - 1) for each other word; their entropy is subtracted.
    """
    true, other = 1 - e, e / (TARGETS - 1)
    entropy = -sum(p * math.log(p) for p in [true, *[other] * (TARGETS - 1)] if p)
    losses = cross_entropy(batch, logits, true, other) - entropy
    return torch.stack([sentence.mean() for sentence in losses.split(batch.target_mask.sum(1).tolist())]).mean()


FORMULAS: dict[str, Callable[[Batch, Tensor, float], Tensor]] = {"rnnsearch": nematus, "transformer": zero}


@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_the_objective_and_its_gradient_are_the_formula_and_the_loss_is_per_token(task: str, smoothing: float) -> None:
    """The loss is the plain cross-entropy, without smoothing."""
    batch = batch_of(pairs(RAGGED), padding=3)
    logits = 2 * draw(len(batch.real), TARGETS, seed=1).float()  # float32 is the dtype in which losses are computed
    ours, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    computed, expected = objective(task, ours, batch, smoothing), FORMULAS[task](batch, exact, smoothing)
    assert computed.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,), (by_formula,) = torch.autograd.grad(computed.loss, ours), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(gradient.double(), by_formula, rtol=1e-4, atol=1e-6)
    assert computed.count == batch.target_mask.sum() == sum(target for _, target in RAGGED)
    assert computed.sums.keys() == {"loss"}
    mean = computed.sums["loss"] / computed.count
    torch.testing.assert_close(mean, F.cross_entropy(logits, batch.target[batch.target_mask]))


def test_second_derivatives_of_token_losses_are_refused() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = token_losses(logits, torch.arange(3), 0.1, 0.02)[1].sum()
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.square().sum().backward()
