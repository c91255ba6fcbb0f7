"""CIFAR-10's files are verified when they are read, and downloaded if they are missing or damaged."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from rmsexp.data import UnavailableError, cifar10

BASE = CIFAR10.base_folder
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
    assert images.train_x.shape == (9, 3, 32, 32)
    assert images.train_x.dtype == np.uint8
    assert images.train_y.dtype == images.test_y.dtype == np.int64
    np.testing.assert_array_equal(images.train_x.reshape(9, -1), np.concatenate([b["data"] for b in expected[:2]]))
    np.testing.assert_array_equal(images.train_y, expected[0]["labels"] + expected[1]["labels"])
    np.testing.assert_array_equal(images.test_x.reshape(6, -1), expected[2]["data"])
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
    with pytest.raises(UnavailableError, match=f"^CIFAR-10 is not in {tmp_path}/cifar10, or damaged") as error:
        cifar10.load(tmp_path)
    assert str(error.value).count("\n") == 1
