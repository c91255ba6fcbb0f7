"""Files of image features: computed once, repaired, and undamaged after a kill."""

from __future__ import annotations

import errno
import json
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
from rmsexp.system import atomic

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
    target, reports = tmp_path / "features" / "train.npy", []
    extract(images, "descriptor", target, reports.append)
    rows = np.load(target, mmap_mode="r")
    assert (rows.shape, rows.dtype) == ((7, SIZE), np.float32)
    for row, path in zip(rows, images, strict=True):
        assert row == pytest.approx(unit(describe(Image.open(path))), abs=1e-6)
    assert reports == ["descriptor features of train: 0 of 7 images"]
    assert sorted(path.name for path in target.parent.iterdir()) == [".train.npy.lock", "train.json", "train.npy"]


def test_grey_and_transparent_images_are_read_as_rgb(tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P", "1", "CMYK"):
        plain(255, 255, 255).convert(mode).save(tmp_path / f"{mode}.tiff")
    extract(sorted(tmp_path.glob("*.tiff")), "descriptor", tmp_path / "a.npy", silent)
    rows = np.load(tmp_path / "a.npy")
    assert np.allclose(rows, unit(describe(plain(255, 255, 255))), atol=1e-6)


def test_features_are_computed_once_and_again_when_their_origin_changes(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, expected = tmp_path / "a.npy", [*range(7)]
    for _ in range(2):
        extract(images, "red", target, silent)
        assert counted() == expected
    extract(images[::-1], "red", target, silent)
    expected += range(6, -1, -1)
    assert counted() == expected
    assert np.load(target).argmax(axis=1).tolist() == [6, 5, 4, 3, 2, 1, 0]
    images[0].write_bytes(images[0].read_bytes() + b"\0")  # changes the size of the file
    extract(images[:1], "red", target, silent)
    extract(images, "red", target, silent)
    expected += [0, *range(7)]
    assert counted() == expected
    monkeypatch.setitem(image_features.KINDS, "red", (2, image_features.KINDS["red"][1]))
    extract(images, "red", target, silent)
    assert counted() == [*expected, *range(7)]


def test_features_of_version_1_are_kept_and_named(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.npy"
    extract(images, "red", target, silent)
    monkeypatch.setitem(image_features.KINDS, "red", (2, image_features.KINDS["red"][1]))
    monkeypatch.setitem(image_features.FORMER, "red", 1)
    reports: list[str] = []
    extract(images, "red", target, reports.append)
    assert counted() == [*range(7)]
    (report,) = reports
    assert report.startswith(f"{target}: these features are of version 1, which ignored EXIF orientation")
    target.unlink()
    extract(images, "red", target, silent)
    extract(images, "red", target, reports.append)
    assert (counted(), reports) == ([*range(7), *range(7)], [report])


@pytest.mark.parametrize("damage", ["truncated", "empty", "no json", "broken json", "another shape"])
def test_damaged_features_are_computed_again(
    damage: str, images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    target, origin = tmp_path / "a.npy", tmp_path / "a.json"
    extract(images, "red", target, silent)
    whole = target.read_bytes()
    if damage == "truncated":
        target.write_bytes(whole[:-1])
    elif damage == "empty":
        target.write_bytes(b"")
    elif damage == "no json":
        origin.unlink()
    elif damage == "broken json":
        origin.write_text("{")
    else:
        np.save(target, np.zeros((7, 3)))
    extract(images, "red", target, silent)
    assert target.read_bytes() == whole
    assert json.loads(origin.read_text())["images"] == 7
    assert counted() == [*range(7), *range(7)]


REPLACED = "these features cannot be used ({}); they are computed again"


def test_features_that_cannot_be_read_now_are_not_replaced(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.npy"
    extract(images, "red", target, silent)
    content, computed = target.read_bytes(), counted()

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("rmsexp.system.readers.read_json", refuse)
        with pytest.raises(DataError, match=rf"{target} cannot be read \(Permission denied\)"):
            extract(images, "red", target, silent)
    assert target.read_bytes() == content
    assert counted() == computed


def test_a_changed_byte_is_noticed_and_repaired(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    target = tmp_path / "a.npy"
    extract(images, "red", target, silent)
    whole = target.read_bytes()
    for place in np.random.default_rng(0).integers(len(whole), size=10):
        target.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        reports: list[str] = []
        extract(images, "red", target, reports.append)
        assert reports[0] == f"{target}: {REPLACED.format('their digest does not fit')}"
        assert target.read_bytes() == whole
    assert counted() == [*range(7)] * 11


def test_features_of_an_older_version_are_kept_and_get_a_digest(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    target, origin, reports = tmp_path / "a.npy", tmp_path / "a.json", []
    extract(images, "red", target, silent)
    stored = json.loads(origin.read_text())
    atomic.write_json(origin, {key: stored[key] for key in ("kind", "images", "digest")})
    for _ in range(2):
        extract(images, "red", target, reports.append)
        assert json.loads(origin.read_text()) == stored
    assert reports == [f"{target}: these features have no digest, so they could not be checked for damage"]
    assert counted() == [*range(7)]


def test_a_damaged_shard_is_computed_again(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    """A kill leaves three shards, of which the second rots."""
    target = tmp_path / "a.npy"

    def child() -> None:
        image_features._row = kill_at(7)(image_features._row)
        extract(images, "red", target, silent)

    assert in_a_process(child) == -signal.SIGKILL
    (path,) = tmp_path.glob("a.shards/*/0000002/rows.npy")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    extract(images, "red", target, silent)
    assert np.load(target).argmax(axis=1).tolist() == [*range(7)]
    assert counted() == [*range(6), 2, 3, 6]


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
        (image_features.cache, "content_digest", 5, 0),  # the four shards are joined
        (image_features.cache, "sync", 5, 0),  # the digest of the joined shards is known
        (atomic, "write_json", 1, 0),  # the features are in place, but their origin is not written
        (image_features.shutil, "rmtree", 5, 0),  # features and origin are in place, but the shards are not removed
    ],
)
def test_killed_extraction_continues_at_the_first_missing_shard(
    owner: Any, name: str, call: int, lost: int, images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    target = tmp_path / "a.npy"

    def child() -> None:
        setattr(owner, name, kill_at(call)(getattr(owner, name)))
        extract(images, "red", target, silent)

    assert in_a_process(child) == -signal.SIGKILL
    before = len(counted())
    extract(images, "red", target, silent)
    assert len(counted()) - before == lost
    assert np.load(target).argmax(axis=1).tolist() == [*range(7)]


def test_features_of_other_images_are_not_reused_after_a_kill(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    target = tmp_path / "a.npy"
    extract(images, "red", target, silent)

    def child() -> None:
        atomic.write_json = kill_at(1)(atomic.write_json)
        extract(images[::-1], "red", target, silent)

    assert in_a_process(child) == -signal.SIGKILL
    extract(images, "red", target, silent)
    assert np.load(target).argmax(axis=1).tolist() == [*range(7)]
    assert len(counted()) == 21
    assert not list(tmp_path.glob("a.shards"))


def test_only_one_of_several_processes_computes_the_features(
    images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    context = multiprocessing.get_context("fork")
    arguments = (images, "red", tmp_path / "a.npy", silent)
    processes = [context.Process(target=extract, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert counted() == [*range(7)]


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"not an image", "truncated"])
def test_damaged_image_is_named_and_finished_shards_are_kept(
    content: bytes | str, images: list[Path], counted: Callable[[], list[int]], tmp_path: Path
) -> None:
    whole = images[5].read_bytes()
    images[5].write_bytes(whole[:-30] if isinstance(content, str) else content)
    with pytest.raises(DataError, match=rf"The image {images[5]} cannot be read \(.+\).\nReplace it; scale=demo"):
        extract(images, "red", tmp_path / "a.npy", silent)
    assert not (tmp_path / "a.npy").exists()
    length = images[5].stat().st_size
    assert length < len(whole)
    seen = len(counted())
    with pytest.raises(DataError):
        extract(images, "red", tmp_path / "a.npy", silent)
    assert set(counted()[seen:]) == {4}  # image 4 is in the third shard; the first two shards are stored


@pytest.mark.parametrize("name", ["features", "folder.npy"])
def test_a_folder_or_another_file_is_no_target(images: list[Path], tmp_path: Path, name: str) -> None:
    """A folder of the user's would have been deleted."""
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "folder.npy" / "kept").touch()
    with pytest.raises(DataError, match=r"is no \.npy file\.\nName the \.npy file to write\."):
        extract(images, "descriptor", tmp_path / name, silent)
    assert (tmp_path / "folder.npy" / "kept").exists()


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
    assert capsys.readouterr().out == "descriptor features of a: 0 of 2 images\n"
    monkeypatch.setattr(sys, "argv", arguments[:3])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert len(np.load(tmp_path / "a.npy")) == 7
    monkeypatch.setattr(sys, "argv", ["script", str(tmp_path), str(tmp_path / "b.npy")])
    with pytest.raises(SystemExit, match=rf"There are no images in {tmp_path}"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
