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
WIDE = RAMP.astype(np.uint16) * 257


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(upright_rgb(image)).astype(int)


@pytest.mark.parametrize(
    ("name", "image", "options"),
    [
        pytest.param("a.png", Image.fromarray(WIDE), {}, id="16 bits"),
        pytest.param("a.tif", Image.fromarray(WIDE), {}, id="16 bits, TIFF"),
        pytest.param("a.tif", Image.fromarray(WIDE[:, ::-1]), {"tiffinfo": {262: 0}}, id="16 bits, 0 is white"),
        pytest.param("a.jp2", Image.fromarray(WIDE), {"irreversible": False}, id="16 bits, JPEG 2000"),
        pytest.param("a.tif", Image.fromarray(RAMP.astype(np.float32) / 255), {}, id="float"),
        pytest.param("a.png", GREY.convert("P"), {}, id="palette"),
        pytest.param("a.png", GREY.convert("LA"), {}, id="LA"),
        pytest.param("a.png", GREY.convert("RGBA"), {}, id="RGBA"),
        pytest.param("a.tif", GREY.convert("RGB").convert("CMYK"), {}, id="CMYK"),
        pytest.param("a.gif", GREY, {}, id="a single frame"),
    ],
)
def test_a_grey_ramp_is_the_same_in_every_mode(
    name: str, image: Image.Image, options: dict[str, Any], tmp_path: Path
) -> None:
    image.save(tmp_path / name, **options)
    assert np.abs(pixels(tmp_path / name) - RAMP[..., None]).max() <= 1


@pytest.mark.parametrize("white", [1023, 4095, 65535])
def test_white_of_a_pgm_is_as_it_says(white: int, tmp_path: Path) -> None:
    content = np.rint(RAMP * (white / 255)).astype(">u2").tobytes()
    (tmp_path / "a.pgm").write_bytes(b"P5 64 48 %d\n" % white + content)
    assert np.abs(pixels(tmp_path / "a.pgm") - RAMP[..., None]).max() <= 1


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "a.webp"])
def test_orientation_is_applied(name: str, tmp_path: Path) -> None:
    COLOURS.rotate(90, expand=True).save(tmp_path / name, exif=TAGGED, quality=100)
    assert np.abs(pixels(tmp_path / name) - np.asarray(COLOURS).astype(int)).mean() < 4


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    hidden = COLOURS.copy()
    hidden.putalpha(Image.new("L", hidden.size, 0))
    hidden.save(tmp_path / "a.png")
    GREY.convert("P").save(tmp_path / "b.png", transparency=0)
    assert (pixels(tmp_path / "a.png") == 255).all()
    assert (pixels(tmp_path / "b.png")[:, 0] == 255).all()
    hidden.putalpha(Image.new("L", hidden.size, 128))
    hidden.save(tmp_path / "c.png")
    assert np.abs(pixels(tmp_path / "c.png") - (np.asarray(COLOURS).astype(int) + 255) / 2).max() <= 2


@pytest.mark.parametrize(
    ("name", "image", "options", "problem"),
    [
        ("a.gif", GREY, {"save_all": True, "append_images": [COLOURS]}, "it has 2 frames or pages"),
        ("a.png", GREY, {"save_all": True, "append_images": [GREY.rotate(180)]}, "it has 2 frames or pages"),
        ("a.tif", GREY, {"save_all": True, "append_images": [COLOURS]}, "it has 2 frames or pages"),
        ("a.tif", Image.fromarray(RAMP.astype(np.int32)), {}, r"32 bits \(mode I\)"),
        ("a.tif", Image.fromarray(RAMP.astype(np.float32)), {}, r"\(mode F\) are from 0 to 255, not 0 to 1"),
        ("a.tif", Image.fromarray(np.full((8, 8), np.nan, np.float32)), {}, r"\(mode F\) are from nan to nan"),
    ],
)
def test_images_without_a_known_meaning_are_refused(
    name: str, image: Image.Image, options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    image.save(tmp_path / name, **options)
    with pytest.raises(DataError, match=rf"The image .*{name} cannot be read \(.*{problem}"):
        extract([tmp_path / name], "descriptor", tmp_path, silent)


def test_the_photograph_of_a_camera_s_mpo_is_read(tmp_path: Path) -> None:
    COLOURS.save(tmp_path / "a.mpo", save_all=True, append_images=[GREY.convert("RGB")], quality=100)
    assert np.abs(pixels(tmp_path / "a.mpo") - np.asarray(COLOURS).astype(int)).mean() < 4
