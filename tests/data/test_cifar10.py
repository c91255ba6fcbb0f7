"""CIFAR-10's files are verified when they are read, and a download stores all of them or none."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from rmsexp.data import DataError, cifar10

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


def test_file_of_numpy_1_is_read(tmp_path: Path) -> None:
    content = pickle.dumps(batch(2, 0), protocol=2)
    (tmp_path / "old").write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    np.testing.assert_array_equal(cifar10.read_batch(tmp_path / "old")[0].reshape(2, -1), batch(2, 0)["data"])


def test_damaged_and_truncated_files_are_named_with_both_digests(copy: Path, tmp_path: Path) -> None:
    path = copy / "data_batch_2"
    good, content = md5(path), path.read_bytes()
    for bad in (content[:-100], content[:-1] + b"x", b""):
        path.write_bytes(bad)
        with pytest.raises(DataError) as error:
            cifar10.load(tmp_path)
        message = str(error.value)
        assert all(part in message for part in (str(path), good, md5(path), "Delete the folder", "replace the file"))
        assert message.count("\n") == 1


def test_reference_to_other_code_is_refused_and_not_called(tmp_path: Path) -> None:
    class Command:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/done",)

    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch(1, 0) | {"more": Command()}, protocol=2))
    with pytest.raises(DataError, match=rf"{path} .*{os.system.__module__}\.system"):
        cifar10.read_batch(path)
    assert not (tmp_path / "done").exists()


PIXELS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pickle.dumps(batch(2, 0), protocol=2)[:-50], id="truncated"),
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>not found</html>", id="a web page"),
        pytest.param(pickle.dumps([1, 2]), id="no dictionary"),
        pytest.param(pickle.dumps({"labels": [0, 0]}), id="no pixels"),
        pytest.param(pickle.dumps({"data": PIXELS[:, :-1], "labels": [0, 0]}, protocol=2), id="too few pixels"),
        pytest.param(pickle.dumps({"data": PIXELS.astype(float), "labels": [0, 0]}, protocol=2), id="another type"),
        pytest.param(pickle.dumps({"data": PIXELS, "labels": [0]}, protocol=2), id="too few labels"),
        pytest.param(pickle.dumps({"data": PIXELS, "labels": [0, 10]}, protocol=2), id="label out of range"),
        pytest.param(pickle.dumps({"data": PIXELS, "labels": "01"}, protocol=2), id="labels no list"),
    ],
)
def test_anything_but_a_batch_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} is not a batch of CIFAR-10"):
        cifar10.read_batch(path)


def test_download_puts_the_files_in_place(copy: Path, serve: Serve, tmp_path: Path) -> None:
    (copy / "readme.html").write_text("as in the real archive")
    serve(lambda tar: tar.add(copy, BASE))
    fresh = tmp_path / "fresh"
    assert cifar10.load(fresh).digest == cifar10.load(tmp_path).digest
    assert [path.name for path in (fresh / "cifar10").iterdir()] == [BASE]


def test_wrong_archive_is_refused_and_not_stored(
    copy: Path, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(lambda tar: tar.add(copy, BASE))
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(DataError, match=f"{url} .*, not {'0' * 32}"):
        cifar10.load(tmp_path / "fresh")
    assert list((tmp_path / "fresh" / "cifar10").iterdir()) == []


def unexpected(name: str, kind: bytes = tarfile.REGTYPE) -> Callable[[tarfile.TarFile], None]:
    def fill(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, "/etc/passwd", 2 if kind == tarfile.REGTYPE else 0
        tar.addfile(member, io.BytesIO(b"hi"))

    return fill


@pytest.mark.parametrize(
    "fill",
    [
        pytest.param(unexpected("../../evil"), id="traversal"),
        pytest.param(unexpected(f"{BASE}/../../evil"), id="hidden traversal"),
        pytest.param(unexpected("/tmp/evil"), id="absolute"),
        pytest.param(unexpected(f"{BASE}/test_batch", tarfile.SYMTYPE), id="link"),
        pytest.param(unexpected(f"{BASE}/evil"), id="another name"),
    ],
)
def test_archive_with_an_unexpected_member_is_refused(
    fill: Callable[[tarfile.TarFile], None], serve: Serve, tmp_path: Path
) -> None:
    serve(fill)
    with pytest.raises(DataError, match="which is unexpected; nothing was stored"):
        cifar10.load(tmp_path / "fresh")
    assert list((tmp_path / "fresh" / "cifar10").iterdir()) == []
    assert not list(tmp_path.rglob("evil"))
