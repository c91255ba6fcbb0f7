"""The order-embedding task: batches, evaluation by hand, bias correction, chance, the paper's setting."""

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from helpers.reading_and_retrieval import make
from helpers.tasks import shake, steps_of, train
from torch import Tensor

from rmsexp.data import Source
from rmsexp.data.captions import EOS, NAMES, PER_IMAGE, CaptionedImages, Captions
from rmsexp.data.files import digest_of_words
from rmsexp.data.sequences import Sequences
from rmsexp.data.synthetic import scenes
from rmsexp.metrics.retrieval import retrieval
from rmsexp.models.order_embedding import PENALTIES, ranking_loss
from rmsexp.records import record
from rmsexp.tasks import order_embedding

pytestmark = [pytest.mark.usefixtures("small_synthetic_data"), pytest.mark.slow]

TRAIN, VALID, TEST = 46, 12, 14


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each split by TRAIN images: image i is the one-hot vector of i.

    Caption j of image i repeats the word id ``2 + 5 i + j`` 1 to 7 times.
    """
    rng = np.random.default_rng(0)
    captions = [[*[len(NAMES) + number] * int(rng.integers(1, 8)), EOS] for number in range(PER_IMAGE * TRAIN)]
    split = CaptionedImages(np.eye(TRAIN, dtype=np.float32), Sequences.from_lists(captions))
    words = [*NAMES, *(f"word{number}" for number in range(len(captions)))]
    captions_by_split = Captions(words, dict.fromkeys(("train", "valid", "test"), split))
    source = Source("by hand", "0", False, lambda _: captions_by_split)
    monkeypatch.setitem(order_embedding.SOURCES, "scenes", lambda *_: source)


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the built-in images features in float64, which a model in float64 needs."""
    source = scenes.scenes(TRAIN, VALID, TEST)
    loaded = source.load(lambda _: None)
    splits = {
        name: CaptionedImages(split.features.astype(float), split.captions) for name, split in loaded.splits.items()
    }
    wide = dataclasses.replace(source, load=lambda _: Captions(loaded.words, splits))
    monkeypatch.setitem(order_embedding.SOURCES, "scenes", lambda *_: wide)


def images_of(batch: order_embedding.Batch) -> list[int]:
    return batch.features.argmax(1).tolist()


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize(("size", "steps"), [(9, 5), (12, 3), (23, 1), (45, 1)])
def test_an_epoch_has_each_image_once_and_drops_the_last_batch(size: int, steps: int) -> None:
    task, _ = make("order_embedding", f"batch_size={size}")
    assert task.steps_per_epoch == steps
    epochs = [[batch for step in steps_of(task, epoch) for batch in task.batches(step)] for epoch in (0, 3)]
    orders = [[image for batch in batches for image in images_of(batch)] for batches in epochs]
    for order in orders:
        assert len(set(order)) == len(order) == size * steps
        assert order != sorted(order)
    assert orders[0] != orders[1]
    assert [task.examples(batch) for batch in epochs[0]] == [size] * steps


@pytest.mark.usefixtures("numbered")
def test_a_caption_matches_its_image_and_all_five_are_drawn() -> None:
    task, _ = make("order_embedding")
    drawn = [task.batches(step)[0] for number in range(20) for step in steps_of(task, number)]
    counts: Counter[int] = Counter()
    for tokens, mask, features in drawn:
        lengths = mask.sum(1)
        assert tokens.dtype == torch.int64
        assert features.shape == (9, TRAIN)
        assert lengths.max() == tokens.shape[1]  # no more padding than is needed
        assert torch.equal(mask, torch.arange(tokens.shape[1]) < lengths[:, None])
        assert torch.equal(tokens == EOS, torch.arange(tokens.shape[1]) >= lengths[:, None] - 1)  # padding is EOS, too
        number = tokens[:, 0] - len(NAMES)
        assert torch.equal(number // PER_IMAGE, features.argmax(1))
        assert torch.equal(features, torch.eye(TRAIN)[features.argmax(1)])
        counts.update((number % PER_IMAGE).tolist())
    assert sorted(counts) == list(range(PER_IMAGE))
    assert min(counts.values()) > 180 - 5 * math.sqrt(900 * 0.2 * 0.8)
    first = [
        drawn[step].tokens[images_of(drawn[step]).index(0), 0] for step in range(100) if 0 in images_of(drawn[step])
    ]
    assert len(set(map(int, first))) == PER_IMAGE  # all captions of image 0 are drawn, too


def embedded(model: Any, split: CaptionedImages) -> tuple[Tensor, Tensor]:
    """Return the vectors of captions and of images, each computed in a batch of one."""
    tokens = [torch.from_numpy(split.captions[i].astype("int64"))[None] for i in range(len(split.captions))]
    captions = [model.captions(caption, torch.ones_like(caption).bool()) for caption in tokens]
    images = [model.images(torch.from_numpy(row)[None]) for row in split.features]
    return torch.cat(captions), torch.cat(images)


@torch.no_grad()
@pytest.mark.usefixtures("doubled")
@pytest.mark.parametrize(
    ("norm", "words", "sizes", "parts"),
    [
        ("rms", ("penalty=order",), (VALID, [range(14)]), ([6, 6], [7, 7])),
        ("bn", ("penalty=order", "data.fold=5"), (VALID, [range(5), range(5, 10)]), ([6, 6], [7, 7])),
        ("ln", ("penalty=cosine", "margin=0.2", "data.fold=99"), (VALID, [range(14)]), ([6, 6], [7, 7])),
        ("none", ("data.valid_images=7", "batch_size=4"), (7, [range(14)]), ([4, 3], [4, 4, 3, 3])),
    ],
)
def test_evaluation_by_hand(
    norm: str,
    words: tuple[str, ...],
    sizes: tuple[int, list[range]],
    parts: tuple[list[int], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics and losses equal those of plain formulas.

    ``sizes``: number of images of valid, and the images of each fold of test. ``parts``: for valid and for test, sizes
    of the batches of images over which the loss is computed.
    """
    monkeypatch.setattr(order_embedding, "ENCODED_AT_ONCE", 5)
    task, model = make("order_embedding", f"norm={norm}", *words)
    shake(model)
    with torch.enable_grad():
        train(task, model.double(), 2)
    model.eval()
    results, source = task.evaluate(model), scenes.scenes(TRAIN, VALID, TEST).load(lambda _: None).splits
    assert list(results) == ["valid", "test"]
    for name, folds, batches in (("valid", [range(sizes[0])], parts[0]), ("test", sizes[1], parts[1])):
        split = source[name]
        captions, images = embedded(model, CaptionedImages(split.features.astype(float), split.captions))
        penalty = PENALTIES[task.config.penalty]
        penalties = penalty(captions, images)
        metrics = [
            retrieval(captions[PER_IMAGE * fold.start : PER_IMAGE * fold.stop], images[fold.start : fold.stop], penalty)
            for fold in folds
        ]
        means = {key: sum(fold[key] for fold in metrics) / len(metrics) for key in metrics[0]}
        total, start = 0.0, 0
        for size in batches:
            for caption in range(PER_IMAGE):
                rows = torch.arange(start, start + size)
                total += ranking_loss(penalties[PER_IMAGE * rows + caption][:, rows], task.config.margin).item()
            start += size
        expected = {"loss": total / (PER_IMAGE * start), **means}
        assert results[name] == pytest.approx(expected, rel=1e-5)
        assert 0 < results[name]["image_recall"] < 1


@pytest.mark.parametrize(("fold", "ranked"), [("null", TEST), ("6", 6), ("99", TEST)])
def test_test_images_that_do_not_fill_a_fold_are_reported(fold: str, ranked: int) -> None:
    task, _ = make("order_embedding", f"data.fold={fold}")
    assert task.target.chance == pytest.approx((1 + 5 + min(10, ranked)) / 3 / ranked)
    messages: list[str] = []
    task.prepare(messages.append)
    line = f"the last {TEST % ranked} test images do not fill a fold of {ranked} and are not ranked"
    assert messages == ([line] if TEST % ranked else [])
    assert task.notes[record.WORDS] == digest_of_words(scenes.WORDS)


@pytest.mark.parametrize(
    ("correction", "rate"), [("standard", 1), ("published", math.sqrt(1 - 0.001) / (1 - 0.1) * 0.1 / math.sqrt(0.001))]
)
def test_the_bias_correction_reaches_the_first_step(correction: str, rate: float) -> None:
    task, model = make("order_embedding", f"optim.bias_correction={correction}", "optim.lr=0.001")
    optimizer, before = task.optimizer(model.double()), model.image.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, -0.5)
    optimizer.step()
    torch.testing.assert_close(model.image.weight - before, torch.full_like(before, 0.001 * rate), rtol=1e-5, atol=0)
