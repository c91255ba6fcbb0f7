"""Files of image features: computed once, repaired, and undamaged after a kill."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.pictures import plain, silent, unit
from PIL import Image

from rmsexp.data import DataError, image_features
from rmsexp.data.image_features import SIZE, describe, extract

SCRIPT = Path(__file__).parents[2] / "scripts" / "extract_image_features.py"


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Add a fast kind of features, "red", and set two images per shard and one thread.

    Return a function that returns the numbers of the images whose features were computed so far, in order. An image's
    number is its red value divided by 10.
    """
    seen = tmp_path / "seen"
    seen.touch()

    def red(image: Image.Image) -> np.ndarray:
        number = image.getpixel((0, 0))[0] // 10
        with seen.open("a") as file:
            file.write(f"{number}\n")
        return np.eye(1, SIZE, number)[0]

    monkeypatch.setattr(image_features, "SHARD", 2)
    monkeypatch.setattr(image_features, "WORKERS", 1)
    monkeypatch.setitem(image_features.KINDS, "red", (1, lambda: red))
    return lambda: [int(line) for line in seen.read_text().split()]


def test_rows_are_of_unit_length_in_the_order_of_the_images(images: list[Path], tmp_path: Path) -> None:
    reports: list[str] = []
    path = extract(images, "descriptor", tmp_path / "features", reports.append)
    rows = np.load(path, mmap_mode="r")
    assert (rows.shape, rows.dtype) == ((7, SIZE), np.float32)
    for row, image in zip(rows, images, strict=True):
        assert row == pytest.approx(unit(describe(Image.open(image))), abs=1e-6)
    assert reports == ["descriptor features: 0 of 7 images"]
    assert [found.name for found in path.parents[1].iterdir() if not found.name.endswith(".lock")] == [path.parent.name]


def test_grey_images_are_read_as_rgb(tmp_path: Path) -> None:
    for mode in ("L", "P", "1", "CMYK"):
        plain(255, 255, 255).convert(mode).save(tmp_path / f"{mode}.tiff")
    rows = np.load(extract(sorted(tmp_path.glob("*.tiff")), "descriptor", tmp_path, silent))
    assert np.allclose(rows, unit(describe(plain(255, 255, 255))), atol=1e-6)


def test_features_are_computed_once_for_the_same_images_and_version(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [*range(7)]
    for _ in range(2):
        path = extract(images, "red", tmp_path, silent)
        assert counted() == expected
    backward = extract(images[::-1], "red", tmp_path, silent)
    expected += range(6, -1, -1)
    assert counted() == expected
    assert np.load(backward).argmax(axis=1).tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert extract(images, "red", tmp_path, silent) == path
    assert counted() == expected
    images[0].write_bytes(images[0].read_bytes() + b"\0")  # changes the size of the file
    extract(images, "red", tmp_path, silent)
    expected += range(7)
    assert counted() == expected
    monkeypatch.setitem(image_features.KINDS, "red", (2, image_features.KINDS["red"][1]))
    extract(images, "red", tmp_path, silent)
    assert counted() == [*expected, *range(7)]


def in_a_process(function: Callable[[], None]) -> int:
    """Run a function in a child process and return the exit code: minus the signal's number if a signal ended it."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()
    return process.exitcode or 0


def kill_at(call: int) -> Callable[..., Any]:
    """Return a decorator. The decorated function kills its process when it is called for the ``call``-th time."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        calls = iter(range(1, 1000))

        def killing(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return killing

    return wrap


@pytest.mark.parametrize(
    ("owner", "name", "call", "lost"),  # lost: number of images whose features are computed again
    [
        (image_features, "_row", 1, 7),  # while the first shard is computed
        (image_features, "_row", 6, 3),  # while the third shard is computed
        (image_features.cache.os, "fsync", 6, 5),  # the second shard is written, but not yet renamed
        (image_features.cache, "sync_folder", 9, 0),  # the shards are joined
        (image_features.shutil, "rmtree", 5, 0),  # the features are in place, but the shards are not removed
    ],
)
def test_killed_extraction_continues_at_the_first_missing_shard(
    owner: Any, name: str, call: int, lost: int, images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    def child() -> None:
        setattr(owner, name, kill_at(call)(getattr(owner, name)))
        extract(images, "red", tmp_path, silent)

    assert in_a_process(child) == -signal.SIGKILL
    before = len(counted())
    path = extract(images, "red", tmp_path, silent)
    assert len(counted()) - before == lost
    assert np.load(path).argmax(axis=1).tolist() == [*range(7)]


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"not an image", "truncated"])
def test_damaged_image_is_named_and_finished_shards_are_kept(
    content: bytes | str, images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    whole = images[5].read_bytes()
    images[5].write_bytes(whole[:-30] if isinstance(content, str) else content)
    with pytest.raises(DataError, match=rf"The image {images[5]} cannot be read \(.+\).\nReplace it; scale=demo"):
        extract(images, "red", tmp_path, silent)
    length = images[5].stat().st_size
    assert length < len(whole)
    seen = len(counted())
    with pytest.raises(DataError):
        extract(images, "red", tmp_path, silent)
    assert set(counted()[seen:]) == {4}  # image 4 is in the third shard; the first two shards are stored


def test_script_extracts_named_images(
    images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("3.png\n0.png\n")
    arguments = ["script", str(images[0].parent), str(tmp_path / "a.npy"), "--names", str(names)]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert np.load(tmp_path / "a.npy") == pytest.approx(
        np.stack([unit(describe(Image.open(images[number]))) for number in (3, 0)]), abs=1e-6
    )
    assert capsys.readouterr().out == "descriptor features: 0 of 2 images\n"
    assert not list(tmp_path.glob(".a.npy*"))
    monkeypatch.setattr(sys, "argv", arguments[:3])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert len(np.load(tmp_path / "a.npy")) == 7
    monkeypatch.setattr(sys, "argv", ["script", str(tmp_path), str(tmp_path / "b.npy")])
    with pytest.raises(SystemExit, match=rf"There are no images in {tmp_path}"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
