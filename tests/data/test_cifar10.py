"""CIFAR-10's files are verified, and downloaded if need be; whitened images equal those of another computation."""

import hashlib
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.pictures import plain
from PIL import Image
from torchvision.datasets import CIFAR10

from rmsexp.data import DataError, Images, cifar10

BASE = CIFAR10.base_folder
EPS = 1e-5
TRAIN, TEST = ["data_batch_1", "data_batch_2"], ["test_batch"]


def batch(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {"data": pixels, "labels": [int(label) for label in rng.integers(0, 10, count)]}


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two training batches and a test batch; ``CIFAR10`` lists just these files and digests."""
    folder = tmp_path / "cifar10" / BASE
    folder.mkdir(parents=True)
    for seed, name in enumerate(TRAIN + TEST):
        (folder / name).write_bytes(pickle.dumps(batch(4 + seed, seed), protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("0123456789")}))
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5(folder / "batches.meta")})
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(folder / name)] for name in TRAIN])
    monkeypatch.setattr(CIFAR10, "test_list", [[name, md5(folder / name)] for name in TEST])
    return folder


@pytest.fixture
def archive(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an archive of the folder where torchvision downloads it to, so that it need not be downloaded."""
    path = tmp_path / "cifar10" / CIFAR10.filename
    with tarfile.open(path, "w:gz") as tar:
        tar.add(copy, BASE)
    monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:9/{CIFAR10.filename}")  # no server
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(path))
    return path


@pytest.mark.usefixtures("copy")
def test_splits_hold_the_batches_in_order(tmp_path: Path) -> None:
    images = cifar10.load(tmp_path)
    expected = [batch(4 + seed, seed) for seed in range(3)]
    assert images.x["train"].shape == (9, 3, 32, 32)
    assert images.x["train"].dtype == np.uint8
    assert images.y["train"].dtype == images.y["test"].dtype == np.int64
    np.testing.assert_array_equal(images.x["train"].reshape(9, -1), np.concatenate([b["data"] for b in expected[:2]]))
    np.testing.assert_array_equal(images.y["train"], expected[0]["labels"] + expected[1]["labels"])
    np.testing.assert_array_equal(images.x["test"].reshape(6, -1), expected[2]["data"])
    assert not images.builtin
    assert images.digest == cifar10.load(tmp_path).digest


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("damage", [None, b"", b"other"])
def test_missing_and_damaged_files_are_downloaded(damage: bytes | None, copy: Path, tmp_path: Path) -> None:
    digest, content = cifar10.load(tmp_path).digest, (copy / TEST[0]).read_bytes()
    (copy / TEST[0]).unlink()
    if damage is not None:
        (copy / TEST[0]).write_bytes(damage)
    assert cifar10.load(tmp_path).digest == digest
    assert (copy / TEST[0]).read_bytes() == content


@pytest.mark.parametrize("content", [None, b"other"])
def test_a_failed_download_is_named(content: bytes | None, archive: Path, copy: Path, tmp_path: Path) -> None:
    (copy / TEST[0]).unlink()
    archive.unlink()
    if content is not None:
        archive.write_bytes(content)
    with pytest.raises(DataError, match=f"^CIFAR-10 is not in {tmp_path}/cifar10, or damaged") as error:
        cifar10.load(tmp_path)
    assert str(error.value).count("\n") == 1


def make(seed: int = 0) -> Images:
    """Return 500 training and 200 test images of correlated noise, 3 x 4 x 4.

    The last of the 48 values copies the first, so an eigenvalue of the covariance is zero.
    """
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(700, 48)) @ rng.normal(size=(48, 48)) * 6 + 127
    mixed[:, -1] = mixed[:, 0]
    pixels = np.rint(mixed).clip(0, 255).astype(np.uint8).reshape(-1, 3, 4, 4)
    labels = rng.integers(0, 10, 700)
    x, y = ({"train": own[:500], "test": own[500:]} for own in (pixels, labels))
    return Images(x, y, "noise", f"digest {seed}", True)


def whiten(images: Images, cache: Path, eps: float = EPS) -> tuple[Images, list[str]]:
    reports: list[str] = []
    return cifar10.whitened(images, eps, cache, reports.append), reports


def test_validation_images_are_the_last_training_images(tmp_path: Path) -> None:
    """They are whitened with the mean and the matrix of the remaining training images."""
    images = make()
    held_out = images.with_validation(100)
    assert list(held_out.y["train"]) == list(images.y["train"][:400])
    assert list(held_out.y["valid"]) == list(images.y["train"][400:])
    assert held_out.digest != images.digest
    for count in (500, 501):
        with pytest.raises(ValueError, match=f"data.validation={count} leaves none of the 500 training images"):
            images.with_validation(count)
    assert len(images.with_validation(499).y["train"]) == 1
    assert held_out.digest != images.with_validation(99).digest
    remaining = replace(
        images,
        x={"train": images.x["train"][:400], "test": images.x["train"][400:]},
        y={"train": images.y["train"][:400], "test": images.y["train"][400:]},
    )
    expected, result = whiten(remaining, tmp_path / "expected")[0], whiten(held_out, tmp_path)[0]
    np.testing.assert_array_equal(result.x["valid"], expected.x["test"])
    np.testing.assert_array_equal(result.x["train"], expected.x["train"])
    again, reports = whiten(held_out, tmp_path)
    assert reports == []
    np.testing.assert_array_equal(again.x["valid"], result.x["valid"])


def test_whitening_equals_the_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whitened images equal those computed from an SVD of the centred training images."""
    monkeypatch.setattr(cifar10, "BLOCK", 64)  # does not divide the number of images
    images = make()
    result, _ = whiten(images, tmp_path)
    train, test = ((x.reshape(len(x), -1).astype(float) - 127.5) / 128 for x in (images.x["train"], images.x["test"]))
    _, singular, rows = np.linalg.svd(train - train.mean(axis=0))
    matrix = rows.T @ np.diag(1 / np.sqrt(singular**2 / len(train) + EPS)) @ rows
    for whitened, x in ((result.x["train"], train), (result.x["test"], test)):
        assert whitened.dtype == np.float32
        assert whitened.shape == (len(x), 3, 4, 4)
        assert not whitened.flags.writeable
        np.testing.assert_allclose(whitened.reshape(len(x), -1), (x - train.mean(axis=0)) @ matrix, atol=2e-4)
    np.testing.assert_array_equal(result.y["train"], images.y["train"])
    np.testing.assert_array_equal(result.y["test"], images.y["test"])


def test_few_images_are_warned_of(tmp_path: Path) -> None:
    images = make()
    few = replace(images, x=images.x | {"train": images.x["train"][:90]})
    for _ in range(2):
        assert whiten(few, tmp_path)[1][0].startswith("warning: 90 images do not determine 48 directions")
    assert "warning" not in str(whiten(few, tmp_path, eps=1e-2)[1])


def test_other_eps_source_or_images_have_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whiten(make(), tmp_path)
    whiten(make(), tmp_path, eps=1e-2)
    whiten(make(seed=1), tmp_path)
    assert len(list((tmp_path / "whitened").glob("[!.]*"))) == 3
    (tmp_path / "edited.py").write_text("")
    monkeypatch.setattr(cifar10, "__file__", str(tmp_path / "edited.py"))
    whiten(make(), tmp_path)
    assert len(list((tmp_path / "whitened").glob("[!.]*"))) == 4


def test_a_folder_of_images(tmp_path: Path) -> None:
    from torchvision.io import write_png

    folder = tmp_path / "mine"
    for split, count in (("train", 6), ("test", 2)):
        for number in range(count):
            (folder / split / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            pixels = torch.full((3, 40, 64), 10 * number, dtype=torch.uint8)
            write_png(pixels, str(folder / split / "ab"[number % 2] / f"{number}.png"))
    images = cifar10.from_folder(folder, tmp_path)
    assert (images.x["train"].shape, images.x["test"].shape, images.builtin) == ((6, 3, 32, 32), (2, 3, 32, 32), False)
    assert sorted(images.x["train"][:, 0, 0, 0]) == [0, 10, 20, 30, 40, 50]
    assert all(
        label == value // 10 % 2 for label, value in zip(images.y["train"], images.x["train"][:, 0, 0, 0], strict=True)
    )
    again = cifar10.from_folder(folder, tmp_path)
    np.testing.assert_array_equal(again.x["train"], images.x["train"])
    (folder / "train/a/.DS_Store").write_text("no image")
    assert cifar10.digest_of_folder(folder) == images.digest
    (folder / "train/a/more").symlink_to(folder / "train/b")
    assert cifar10.digest_of_folder(folder) != images.digest
    assert len(cifar10.from_folder(folder, tmp_path).x["train"]) == 9
    (folder / "train/a/more").unlink()
    (folder / "train/a/more").symlink_to(folder / "train")
    with pytest.raises(DataError, match="is a link to a folder that contains it"):
        cifar10.digest_of_folder(folder)
    (folder / "train/a/more").unlink()
    (folder / "test/a/0.png").rename(folder / "test/b/0.png")
    (folder / "test/a").rmdir()
    assert cifar10.digest_of_folder(folder) != images.digest
    with pytest.raises(DataError, match=r"classes.*\['b'\]"):
        cifar10.from_folder(folder, tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        cifar10.from_folder(tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize(("pixels", "end"), [(9, None), (None, -30)], ids=["too large for Pillow", "cut"])
def test_a_damaged_image_of_a_folder_is_named(
    pixels: int | None, end: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        plain(0, 0, 255, 40, 30).save(tmp_path / split / "a/0.png")
    path = tmp_path / "train/a/0.png"
    path.write_bytes(path.read_bytes()[:end])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
    with pytest.raises(DataError, match=rf"^The image {path} cannot be read \(.+\)\.\nReplace it"):
        cifar10.from_folder(tmp_path, tmp_path)
