"""The CIFAR-10 task: batches, objective and evaluation by hand; what norms have in common; runs of every norm."""

import copy
import math
from pathlib import Path

import pytest
import torch
from helpers.tasks import task_and_model
from helpers.tensors import digest
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.tasks import cifar10
from rmsexp.train.randomness import StreamNoise, permutation

pytestmark = pytest.mark.slow

SMALL = ("model.width=0.05", "batch_size=8")
TRAIN, TEST = 5000, 1000


def make(root: Path, norm: str = "rms", *overrides: str) -> tuple[cifar10.Task, nn.Module]:
    return task_and_model("task=cifar10", f"norm={norm}", f"data.root={root}", *SMALL, *overrides)


def rows_of(images: Tensor) -> list[bytes]:
    """Return some pixels of each image, as bytes, by which it can be identified."""
    return [image.tobytes() for image in images[:, :, 16, 12:20].contiguous().numpy()]


def test_layer_norm_of_two_logits_is_refused(tmp_path: Path) -> None:
    for split, count in (("train", 8), ("test", 4)):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (32, 32), (number, 90, 9)).save(tmp_path / split / label / f"{number}.png")
    words = ("data.name=folder", f"data.folder={tmp_path}", "data.zca_eps=0.01")
    with pytest.raises(ValueError, match=r"two logits .* norm=by_role norm\.default=ln"):
        make(tmp_path, "ln", *words)
    make(tmp_path, "by_role", *words, "norm.default=ln", "norm.roles={output: none}")


def test_an_epoch_has_every_image_once_and_the_next_another_order(data_root: Path) -> None:
    task, _ = make(data_root, "rms", "batch_size=64")
    assert task.steps_per_epoch == TRAIN // 64 == 78
    labels = dict(
        zip(rows_of(torch.from_numpy(task._images.x["train"].copy())), task._images.y["train"].tolist(), strict=True)
    )
    assert len(labels) == TRAIN  # all images can be identified
    epochs = []
    for epoch in range(2):
        order: list[bytes] = []
        for step in range(epoch * 78, (epoch + 1) * 78):
            (images, truth), *others = task.batches(step)
            assert not others
            assert images.shape == (64, 3, 32, 32)
            assert task.examples((images, truth)) == 64
            rows = rows_of(images)
            assert truth.tolist() == [labels[row] for row in rows]
            order += rows
        assert len(set(order)) == len(order) == 78 * 64
        epochs.append(order)
    assert epochs[0] != epochs[1]
    assert set(epochs[0]) != set(epochs[1])  # other images are left over at the end


@pytest.mark.parametrize("norm", ["rms", "bn", "none"])
def test_the_objective_by_hand(data_root: Path, norm: str) -> None:
    task, model = make(data_root, norm, "batch_size=32")
    batch = images, labels = task.batches(5)[0]
    objective = task.objective(model, batch, StreamNoise(0, "noise"))
    logits = model(images, StreamNoise(0, "noise")).double()
    each = logits.logsumexp(1) - logits[torch.arange(32), labels]
    assert objective.count == 32
    assert objective.loss.item() == pytest.approx(each.mean().item(), rel=1e-5)
    assert objective.sums["loss"].item() == pytest.approx(each.sum().item(), rel=1e-5)
    wrong = sum(row.argmax().item() != label.item() for row, label in zip(logits, labels, strict=True))
    assert 0 < wrong <= 32
    assert objective.sums["error"].item() == wrong
    assert objective.loss.requires_grad


@pytest.mark.parametrize(("norm", "batch"), [("rms", 1000), ("bn", 300)])
def test_evaluation_counts_every_test_image_once(
    data_root: Path, monkeypatch: pytest.MonkeyPatch, norm: str, batch: int
) -> None:
    monkeypatch.setattr(cifar10, "EVALUATION_BATCH", batch)
    task, model = make(data_root, norm)
    task.objective(model, task.batches(0)[0], StreamNoise(0, "noise"))  # changes running statistics
    model.eval()
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    with torch.no_grad():
        results = task.evaluate(model)
        assert sum(sizes) == TEST
        assert len(sizes) == math.ceil(TEST / batch)
        logits = model(torch.from_numpy(task._images.x["test"].copy()))
    truth = torch.from_numpy(task._images.y["test"])
    assert results.keys() == {"test"}
    assert results["test"]["loss"] == pytest.approx(F.cross_entropy(logits, truth).item(), rel=1e-4)
    assert results["test"]["error"] == pytest.approx((logits.argmax(1) != truth).double().mean().item(), abs=0.0015)


def test_a_model_of_nan_has_the_worst_error(data_root: Path) -> None:
    task, model = make(data_root)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
        assert task.evaluate(model.eval())["test"]["error"] == 1.0


@pytest.mark.parametrize("norm", ["rms", "bn"])
def test_memory_formats_compute_the_same(data_root: Path, norm: str) -> None:
    losses, gradients, batches = [], [], set[str]()
    for name in cifar10.MEMORY_FORMATS:
        task, model = make(data_root, norm, f"model.memory_format={name}")
        batches.add(digest(*task.batches(2)[0]))
        objective = task.objective(model, task.batches(2)[0], StreamNoise(0, "noise", 2, 0))
        objective.loss.backward()
        losses.append(objective.loss.item())
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert len(batches) == 1
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-2, atol=1e-4, msg=name)


@pytest.mark.parametrize("norm", ["wn", "none"])
def test_500_shuffled_images_with_noise_set_the_initial_scale(
    data_root: Path, monkeypatch: pytest.MonkeyPatch, norm: str
) -> None:
    inputs: list[Tensor] = []
    forward = cifar10.ConvPool.forward

    def spy(model: cifar10.ConvPool, x: Tensor, noise: object = None) -> Tensor:
        assert isinstance(noise, StreamNoise)
        inputs.append(x)
        return forward(model, x, noise)

    monkeypatch.setattr(cifar10.ConvPool, "forward", spy)
    task, model = make(data_root, norm)
    images = task._images.x["train"][permutation(TRAIN, 0, "calibration")[:500].numpy()]
    assert [tuple(x.shape) for x in inputs] == [(500, 3, 32, 32)]
    assert torch.equal(inputs[0], torch.from_numpy(images))
    logits = forward(model, inputs[0], StreamNoise(0, "calibration noise"))
    torch.testing.assert_close(logits.mean(0), torch.zeros(10), atol=1e-3, rtol=0)
    torch.testing.assert_close(logits.std(0, correction=0), torch.ones(10), atol=1e-3, rtol=0)
    _, again = make(data_root, norm)
    assert digest(*model.parameters()) == digest(*again.parameters())


def test_the_optimiser_leaves_the_fixed_scale_of_none_alone(data_root: Path) -> None:
    task, model = make(data_root, "none")
    before = copy.deepcopy(model)
    optimizer = task.optimizer(model)
    task.objective(model, task.batches(0)[0], StreamNoise(0, "noise")).loss.backward()
    optimizer.step()
    moved = {
        name.rsplit(".")[-1]
        for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True)
        if not torch.equal(old, new)
    }
    assert moved == {"weight", "bias"}
    assert all(torch.equal(p, before.get_parameter(n)) for n, p in model.named_parameters() if n.endswith("gain"))
