"""Features of one image: the descriptor, ten crops, and the weights of VGG-19."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.pictures import plain, silent
from PIL import Image
from torch import nn

from rmsexp.data import DataError
from rmsexp.data.image_features import SIZE, describe, extract, ten_crops


def picture(pixels: Any) -> Image.Image:
    return Image.fromarray(np.asarray(pixels, dtype=np.uint8))


# The descriptor


def test_descriptor_is_not_negative_and_is_reproducible() -> None:
    ramp = picture(np.arange(90 * 70 * 3).reshape(90, 70, 3) % 251)
    row = describe(ramp)
    assert row.shape == (SIZE,)
    assert (row >= 0).all()
    assert np.array_equal(row, describe(ramp))


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (255, 0, 0), (0, 0, 255)])
def test_plain_image_has_finite_features(colour: tuple[int, int, int]) -> None:
    row = describe(plain(*colour))
    assert np.isfinite(row).all()
    assert np.linalg.norm(row) > 1


def test_parts_of_the_descriptor_have_equal_lengths() -> None:
    row = describe(picture(np.arange(128 * 128 * 3).reshape(128, 128, 3) % 253))
    ends = np.cumsum([64, 256, 1024] * 3)
    parts = np.split(row, ends)
    assert [len(part) for part in parts] == [64, 256, 1024] * 3 + [64]
    assert np.allclose([np.linalg.norm(part) for part in parts], 1)


def test_descriptor_distinguishes_colours_and_places() -> None:
    red, dark_red, blue = (describe(plain(*colour))[:64] for colour in ((200, 0, 0), (180, 0, 0), (0, 0, 200)))
    assert red @ dark_red > 0.8 > 0.2 > red @ blue
    half = np.zeros((128, 128, 3))
    half[:, :64] = (255, 0, 0)
    left, right = describe(picture(half)), describe(picture(half[:, ::-1]))
    assert left[:64] @ right[:64] == pytest.approx(1)  # 1x1 cells: both images have the same colours
    assert left[64:320] @ right[64:320] < 0.9  # 2x2 cells: the quarters of the images have different colours


def test_gradients_are_counted_by_direction_and_scale() -> None:
    def histogram(pixels: np.ndarray) -> np.ndarray:
        return describe(picture(np.repeat(pixels[..., None], 3, axis=2)))[2688:2752].reshape(4, 16) ** 2

    across = np.tile(np.arange(128), (128, 1))
    rightward, downward = histogram(across), histogram(across.T)
    assert (rightward.argmax(axis=1) == 0).all()
    assert (downward.argmax(axis=1) == 4).all()
    fine, coarse = (histogram(across // period % 2 * 200).sum(axis=1) for period in (1, 8))
    assert fine[0] > 0.99  # stripes of 1 pixel give gradients at the borders of the finest scale only
    assert coarse.argmax() == 2  # at scale 2, a stripe of 8 pixels has 2 cells, so no central difference is zero


def test_texture_counts_brighter_neighbours() -> None:
    dots = np.zeros((128, 128, 3))
    dots[4::8, 4::8] = 255
    row = describe(picture(dots))[1344:1408] ** 2
    assert row[0] > 0.8  # most pixels have no brighter neighbour: pattern 0
    one_neighbour = row[[1, 2, 4, 8, 16, 32]]  # patterns of one brighter neighbour, which are equally frequent
    assert one_neighbour / row[1] == pytest.approx(np.ones(6), rel=0.1)
    assert row[[3, 5, 9, 63]].sum() == 0


# Ten crops


def test_ten_crops_are_corners_and_centre_and_their_mirror_images() -> None:
    pixels = np.arange(256 * 320 * 3).reshape(256, 320, 3) % 256  # the short side is 256, so the image is not resized
    batches = []

    class Outputs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batches.append(x)
            return torch.arange(20.0).reshape(10, 2)

    mean = ten_crops(Outputs(), torch.device("cpu"), picture(pixels))
    assert mean.tolist() == [9, 10]
    scaled = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    corners = [(0, 0), (0, 96), (32, 0), (32, 96), (16, 48)]
    straight = [scaled[top : top + 224, left : left + 224] for top, left in corners]
    mirrored = [scaled[:, ::-1][top : top + 224, left : left + 224] for top, left in corners]
    expected = np.stack([*straight, *mirrored]).transpose(0, 3, 1, 2)
    assert np.allclose(batches[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("size", [(100, 400), (30, 20), (500, 375)])
def test_ten_crops_of_an_image_of_any_size(size: tuple[int, int]) -> None:
    row = ten_crops(nn.Flatten(), torch.device("cpu"), plain(0, 0, 255, *size)).reshape(3, 224, 224)
    assert row[2] == pytest.approx(np.full((224, 224), (1 - 0.406) / 0.225), abs=1e-5)


# Weights. A small network replaces VGG-19.


class Tiny(nn.Module):
    """A network with a classifier of six layers, of which the fifth has SIZE outputs; its input is the mean colour."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(3, 2), nn.ReLU(), nn.Dropout(), nn.Linear(2, SIZE), nn.ReLU(), nn.Tanh()
        self.classifier = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(x.mean(dim=(2, 3)))


class Code:
    """Loading a pickle of this object creates a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of Tiny's weights, and make ``extract`` load Tiny and download this file instead of VGG-19's."""
    state = {name: torch.linspace(-1, 1, p.numel()).reshape(p.shape) for name, p in Tiny().state_dict().items()}
    (tmp_path / "site").mkdir()
    torch.save(state, tmp_path / "site" / "new")
    digest = sha256((tmp_path / "site" / "new").read_bytes()).hexdigest()
    path = (tmp_path / "site" / "new").rename(tmp_path / "site" / f"vgg19-{digest[:8]}.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr("torchvision.models.vgg19", Tiny)
    enum = SimpleNamespace(IMAGENET1K_V1=SimpleNamespace(url=path.as_uri()))
    monkeypatch.setattr("torchvision.models.VGG19_Weights", enum)
    return path


def test_weights_are_downloaded_once_and_used_up_to_fc7(weights: Path, images: list[Path], tmp_path: Path) -> None:
    rows = np.load(extract(images[:2], "vgg19", tmp_path, silent))
    model = Tiny().eval()
    model.load_state_dict(torch.load(weights, weights_only=True))
    colours = [(10 * number / 255 - 0.485) / 0.229 for number in range(2)]
    inputs = torch.tensor([[red, -0.456 / 0.224, -0.406 / 0.225] for red in colours])
    expected = model.classifier[:5](inputs).detach().numpy()
    assert np.allclose(rows, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    weights.unlink()
    extract(images[2:4], "vgg19", tmp_path / "b.npy", silent)


@pytest.mark.parametrize("damage", ["absent", "other digest", "damaged copy", "other weights", "code"])
def test_missing_or_damaged_weights_say_what_to_do(
    damage: str, weights: Path, images: list[Path], tmp_path: Path
) -> None:
    place = tmp_path / "hub" / "hub" / "checkpoints" / weights.name
    if damage == "absent":
        weights.unlink()
    elif damage == "other digest":
        torch.save(Tiny().state_dict(), weights)  # a valid file whose digest is not the one in its name
    else:
        place.parent.mkdir(parents=True)
        place.write_bytes(weights.read_bytes()[:-100])
        if damage == "other weights":
            torch.save(Tiny().state_dict(), place)
        if damage == "code":
            torch.save(Code(tmp_path / "ran"), place)
    with pytest.raises(DataError) as error:
        extract(images, "vgg19", tmp_path / "features", silent)
    message = str(error.value)
    assert all(part in message for part in (str(place), weights.as_uri(), "data.features=descriptor"))
    assert message.count("\n") == 1
    assert ("its content does not have the SHA-256 in its name" in message) == place.exists()
    assert not list(tmp_path.rglob("features.npy"))
    assert not (tmp_path / "ran").exists()
