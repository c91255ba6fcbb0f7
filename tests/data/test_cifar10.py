"""CIFAR-10's files are verified when they are read, and downloaded if they are missing or damaged."""

from __future__ import annotations

import functools
import hashlib
import http.server
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
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


Serve = Callable[[Callable[[tarfile.TarFile], None]], str]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return a function that serves an archive on this machine, and returns its address.

    Its argument adds members to the archive. ``CIFAR10`` then has the address and the digest of this archive.
    """
    web = tmp_path / "web"
    web.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(web)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def publish(fill: Callable[[tarfile.TarFile], None]) -> str:
        with tarfile.open(web / CIFAR10.filename, "w:gz") as tar:
            fill(tar)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{CIFAR10.filename}")
        monkeypatch.setattr(CIFAR10, "tgz_md5", md5(web / CIFAR10.filename))
        return str(CIFAR10.url)

    yield publish
    server.shutdown()
    server.server_close()


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


def test_digest_depends_on_the_content(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cifar10.load(tmp_path).digest
    (copy / "test_batch").write_bytes(pickle.dumps(batch(3, 9), protocol=2))
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(copy / "test_batch")]])
    assert cifar10.load(tmp_path).digest != before


def test_download_puts_the_files_in_place(copy: Path, serve: Serve, tmp_path: Path) -> None:
    serve(lambda tar: tar.add(copy, BASE))
    fresh = tmp_path / "fresh"
    assert cifar10.load(fresh).digest == cifar10.load(tmp_path).digest


@pytest.mark.parametrize("damage", [None, b"", b"other"])
def test_missing_and_damaged_files_are_downloaded_again(
    damage: bytes | None, copy: Path, serve: Serve, tmp_path: Path
) -> None:
    serve(lambda tar: tar.add(copy, BASE))
    content = (copy / TEST[0]).read_bytes()
    (copy / TEST[0]).unlink()
    if damage is not None:
        (copy / TEST[0]).write_bytes(damage)
    cifar10.load(tmp_path)
    assert (copy / TEST[0]).read_bytes() == content


def test_wrong_archive_is_refused(copy: Path, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(lambda tar: tar.add(copy, BASE))
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(UnavailableError, match=f"^CIFAR-10 is not in {tmp_path}/fresh/cifar10, or damaged") as error:
        cifar10.load(tmp_path / "fresh")
    assert str(error.value).count("\n") == 1
