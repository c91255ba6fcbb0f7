"""Pixels of every kind of image are read as the eye sees them, or the image is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.pictures import silent
from PIL import Image

from rmsexp.data import DataError
from rmsexp.data.image_features import extract, upright_rgb

RAMP = np.linspace(0, 255, 64, dtype=np.uint8)[None].repeat(48, 0)
GREY = Image.fromarray(RAMP)
COLOURS = Image.fromarray(np.stack([RAMP, RAMP[:, ::-1], np.full_like(RAMP, 60)], -1))
TAGGED = Image.Exif()
TAGGED[0x112] = 6


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(upright_rgb(image)).astype(int)


@pytest.mark.parametrize(
    ("name", "image"),
    [
        pytest.param("a.png", GREY.convert("P"), id="palette"),
        pytest.param("a.tif", GREY.convert("RGB").convert("CMYK"), id="CMYK"),
        pytest.param("a.gif", GREY, id="a single frame"),
    ],
)
def test_a_grey_ramp_is_the_same_in_every_mode(name: str, image: Image.Image, tmp_path: Path) -> None:
    image.save(tmp_path / name)
    assert np.abs(pixels(tmp_path / name) - RAMP[..., None]).max() <= 1


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "a.webp"])
def test_orientation_is_applied(name: str, tmp_path: Path) -> None:
    COLOURS.rotate(90, expand=True).save(tmp_path / name, exif=TAGGED, quality=100)
    assert np.abs(pixels(tmp_path / name) - np.asarray(COLOURS).astype(int)).mean() < 4


@pytest.mark.parametrize(
    ("name", "image", "options", "problem"),
    [
        ("a.gif", GREY, {"save_all": True, "append_images": [COLOURS]}, "it has 2 frames or pages"),
        ("a.tif", GREY, {"save_all": True, "append_images": [COLOURS]}, "it has 2 frames or pages"),
        ("a.png", Image.fromarray(RAMP.astype(np.uint16) * 257), {}, "mode I;16 with transparency or more"),
        ("a.tif", Image.fromarray(RAMP.astype(np.float32)), {}, "mode F with transparency or more"),
        ("a.png", GREY.convert("RGBA"), {}, "mode RGBA with transparency or more"),
        ("a.png", GREY.convert("P"), {"transparency": 0}, "mode P with transparency or more"),
    ],
)
def test_images_without_a_known_meaning_are_refused(
    name: str, image: Image.Image, options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    image.save(tmp_path / name, **options)
    with pytest.raises(DataError, match=rf"The image .*{name} cannot be read \({problem}"):
        extract([tmp_path / name], "descriptor", tmp_path, silent)


def test_the_photograph_of_a_camera_s_mpo_is_read(tmp_path: Path) -> None:
    COLOURS.save(tmp_path / "a.mpo", save_all=True, append_images=[GREY.convert("RGB")], quality=100)
    assert np.abs(pixels(tmp_path / "a.mpo") - np.asarray(COLOURS).astype(int)).mean() < 4
