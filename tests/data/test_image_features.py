"""Features of images: the descriptor, ten crops of VGG-19, and the stored files."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.pictures import plain, silent
from PIL import Image
from torch import nn

from rmsexp.data import DataError, image_features
from rmsexp.data.image_features import SIZE, describe, extract, vgg19


def picture(pixels: Any) -> Image.Image:
    return Image.fromarray(np.asarray(pixels, dtype=np.uint8))


# The descriptor


def test_the_descriptor_of_an_image_stays_what_it_was() -> None:
    """Committed runs were trained on it. Each of its parts has norm 1."""
    x = np.arange(128)
    pixels = np.stack([(x[:, None] ** 2 + 3 * x), 5 * x[:, None] + x**2 // 7, x[:, None] * x], axis=2) % 256
    parts = np.split(describe(picture(pixels)), np.cumsum([64, 256, 1024] * 3))
    assert [len(part) for part in parts] == [64, 256, 1024] * 3 + [64]
    assert np.allclose([np.linalg.norm(part) for part in parts], 1)
    expected = [-0.246592, 0.14222, 0.092938, 0.516928, 0.082803, 0.408909, 0.061275, -0.116636, 0.24291, -0.02065]
    assert [part @ np.cos(np.arange(len(part))) for part in parts] == pytest.approx(expected, abs=1e-5)


# VGG-19, which a small network replaces


class Tiny(nn.Module):
    """A network with a classifier of six layers, of which the fifth has 2 outputs; it records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(*(nn.Identity() for _ in range(5)), nn.Tanh())
        self.inputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs.append(x)
        return self.classifier(torch.arange(20.0).reshape(10, 2))


def stored_weights(content: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(folder))
    (folder / "hub/checkpoints").mkdir(parents=True)
    torch.save(content, folder / "hub/checkpoints/vgg19-dcbb9e9d.pth")


def test_ten_crops_are_corners_and_centre_and_their_mirror_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Tiny()
    stored_weights({}, tmp_path, monkeypatch)
    monkeypatch.setattr("torchvision.models.vgg19", lambda **_: network)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pixels = np.arange(256 * 320 * 3).reshape(256, 320, 3) % 256  # the short side is 256, so the image is not resized
    assert vgg19()(picture(pixels)).tolist() == [9, 10]
    scaled = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    corners = [(0, 0), (0, 96), (32, 0), (32, 96), (16, 48)]
    straight = [scaled[top : top + 224, left : left + 224] for top, left in corners]
    mirrored = [scaled[:, ::-1][top : top + 224, left : left + 224] for top, left in corners]
    expected = np.stack([*straight, *mirrored]).transpose(0, 3, 1, 2)
    assert np.allclose(network.inputs[0].numpy(), expected, atol=1e-5)
    vgg19()(plain(0, 0, 255, 30, 20))
    assert network.inputs[1].shape == (10, 3, 224, 224)


class Code:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("content", [None, "code", {"features.0.bias": torch.zeros(64)}], ids=["none", "code", "other"])
def test_weights_that_cannot_be_loaded_are_named_and_run_no_code(
    content: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_weights(Code(tmp_path / "made") if content == "code" else content, tmp_path, monkeypatch)
    monkeypatch.setattr("torchvision.models.vgg19", lambda **_: nn.Linear(2, 2))
    monkeypatch.setattr("torch.hub.download_url_to_file", Mock(side_effect=RuntimeError("no network")))
    if content is None:
        next(tmp_path.rglob("*.pth")).unlink()
    with pytest.raises(DataError, match=r"(?s)VGG-19 .*https://.*vgg19.*data\.features=descriptor"):
        vgg19()
    assert not (tmp_path / "made").exists()


# Stored files


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Return the paths of seven plain images; the red value of image i is 10 i."""
    paths = [tmp_path / "images" / f"{number}.png" for number in range(7)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        plain(10 * number, 0, 0).save(path)
    return paths


def test_rows_are_of_unit_length_in_the_order_of_the_images(images: list[Path], tmp_path: Path) -> None:
    reports: list[str] = []
    rows = extract(images, "descriptor", tmp_path / "features", reports.append)
    assert (rows.shape, rows.dtype) == ((7, SIZE), np.float32)
    for row, image in zip(rows, images, strict=True):
        described = describe(Image.open(image))
        assert row == pytest.approx(described / np.linalg.norm(described), abs=1e-6)
    assert reports == ["descriptor features: 0 of 7 images"]


def test_features_are_computed_once_for_the_same_images_and_version(
    images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def red(image: Image.Image) -> np.ndarray:
        seen.append(image.getpixel((0, 0))[0] // 10)
        return np.eye(1, SIZE, seen[-1])[0]

    monkeypatch.setattr(image_features, "WORKERS", 1)
    monkeypatch.setitem(image_features.KINDS, "red", (1, lambda: red))
    for _ in range(2):
        assert extract(images, "red", tmp_path, silent).argmax(axis=1).tolist() == [*range(7)]
    assert seen == [*range(7)]
    assert extract(images[::-1], "red", tmp_path, silent).argmax(axis=1).tolist() == [6, 5, 4, 3, 2, 1, 0]
    images[0].write_bytes(images[0].read_bytes() + b"\0")  # changes the size of the file
    extract(images, "red", tmp_path, silent)
    monkeypatch.setitem(image_features.KINDS, "red", (2, lambda: red))
    extract(images, "red", tmp_path, silent)
    assert len(seen) == 4 * 7


@pytest.mark.parametrize("content", [b"", b"not an image", "truncated", None])
def test_a_missing_or_damaged_image_is_named(content: bytes | str | None, images: list[Path], tmp_path: Path) -> None:
    whole = images[5].read_bytes()
    images[5].unlink()
    if content is not None:
        images[5].write_bytes(whole[:-30] if isinstance(content, str) else content)
    with pytest.raises(DataError, match=rf"The image {images[5]} cannot be read \(.+\)\.\nReplace it; scale=demo"):
        extract(images, "descriptor", tmp_path / "features", silent)
    assert not list(tmp_path.rglob("features.npy"))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_images_of_more_than_8_bits_are_refused(dtype: type, tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 65535, 12).reshape(3, 4).astype(dtype)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match="more than 8 bits"):
        image_features.rgb(tmp_path / "a.tif")


def test_the_orientation_of_images_is_applied(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)[None].repeat(48, 0)
    grey = Image.fromarray(ramp)
    exif = Image.Exif()
    exif[0x112] = 6
    grey.rotate(90, expand=True).save(tmp_path / "a.jpg", exif=exif, quality=100)
    pixels = np.asarray(image_features.rgb(tmp_path / "a.jpg"), dtype=int)
    assert np.abs(pixels - ramp[..., None]).mean() < 4
