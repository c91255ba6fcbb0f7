"""Compute feature vectors of images once, and store them.

A vector has 4096 non-negative numbers and is scaled to a Euclidean norm of 1. There are two kinds.

- ``vgg19`` is the usual input of caption models of 2015: the output of layer fc7 of VGG-19 (Simonyan & Zisserman 2015)
  after its ReLU, averaged over ten crops. Vendrov et al. (2016) published features of the Caffe model, which takes BGR
  pixels minus a mean colour. Ours come from torchvision's weights and preprocessing, so they are similar, not equal.
- ``descriptor`` needs no weights. It has histograms of colour, texture and gradients in 1x1, 2x2 and 4x4 cells of the
  image, and the image in grey, shrunk to 8x8 pixels.

Deviation: COCO, network of the VGG-19 features
    original: the Caffe model (order-embedding:extract_cnn_features.py:42)
    ours: the torchvision model
    why: torchvision is a dependency already, Caffe is not maintained, and the released features are no longer offered
    effect: not measured
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rmsexp.data import DataError, Report
from rmsexp.data.files import cached, unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

Extractor = Callable[["Image"], np.ndarray]  # from an RGB image to its vector, (4096,), not yet scaled to norm 1

SIZE = 4096  # numbers per image
FILE = "features.npy"
REPORT_IMAGES = 5000  # images between two progress reports
WORKERS = 2  # threads that compute features
REMEDY = "Replace it; scale=demo needs no image files."  # for an image that cannot be read

SIDE = 128  # pixels per side of the square to which the descriptor resizes an image
CELLS, BINS = 4, 64  # cells per side of the finest grid of cells; bins of the histogram of a cell
SHADES = 4  # bins per channel in a histogram of colours: SHADES ** 3 = BINS
HEXAGON = ((0, 2), (2, 1), (2, -1), (0, -2), (-2, -1), (-2, 1))  # (y, x) of six neighbours, about two pixels away
CONTRAST = 0.03  # a neighbour counts as brighter if it exceeds the pixel by more than this; white is 1
SCALES, ORIENTATIONS = 4, 16  # scales and directions in a histogram of gradients: SCALES * ORIENTATIONS = BINS
LAYOUT = 8  # pixels per side of the grey image in the descriptor


def extract(images: Sequence[Path], kind: str, folder: Path, report: Report) -> np.ndarray:
    """Return the features of ``images``, float32 (image, 4096) with rows of norm 1, memory-mapped.

    ``kind`` is a key of KINDS. Features are read from a subfolder of ``folder``, or computed and stored there; its name
    is a digest of ``kind``, the extractor's version, and the names and sizes of the images.

    Raises: DataError if an image is missing or damaged, if the weights are neither stored nor downloadable, or if the
    features cannot be stored or read.
    """
    version, make_extractor = KINDS[kind]

    def make(temporary: Path) -> None:
        extractor, features = make_extractor(), np.empty((len(images), SIZE), dtype=np.float32)
        with ThreadPoolExecutor(WORKERS) as pool:
            for number, row in enumerate(pool.map(lambda path: _unit(extractor(rgb(path))), images)):
                if number % REPORT_IMAGES == 0:
                    report(f"{kind} features: {number:,} of {len(images):,} images")
                features[number] = row
        np.save(temporary / FILE, features)

    name = hashlib.sha256(repr((kind, version, sizes(images))).encode()).hexdigest()[:16]
    return cached(folder / name, lambda stored: np.asarray(np.load(stored / FILE, mmap_mode="r")), make)


def sizes(images: Iterable[Path]) -> list[tuple[str, int]]:
    """Return the name and the size in bytes of each file. Raises: DataError that names the first that is missing."""
    try:
        return [(path.name, path.stat().st_size) for path in images]
    except OSError as error:
        raise unreadable(f"The image {error.filename}", error, REMEDY) from None


def rgb(path: Path | str) -> Image:
    """Return an image in RGB of 8 bits, turned as its EXIF orientation says. Raises: DataError if it is damaged, or if
    it has grey values of more than 8 bits.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":  # convert() would cut its values off at 255
                raise ValueError("it has more than 8 bits per channel")
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a damaged image may raise any exception
        raise unreadable(f"The image {path}", error, REMEDY) from None


def _unit(vector: np.ndarray) -> np.ndarray:
    """Return a vector scaled to a Euclidean norm of 1, or of zeros unchanged."""
    return vector / (np.linalg.norm(vector) or 1)


def describe(image: Image) -> np.ndarray:
    """Return the descriptor of an image, float64 of shape (4096,), not yet scaled to norm 1.

    It has ten parts, each scaled to norm 1: the square roots of histograms of colours, with 64 bins per cell, for 1x1,
    2x2 and 4x4 cells; three of texture and three of gradients; and the image in grey, shrunk to 8x8 pixels.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.resize((SIDE, SIDE), Resampling.BILINEAR), dtype=np.float32) / 255
    grey = pixels.mean(axis=2)
    pyramids = (_colours(_shrunk(pixels, SIDE // 2)), _texture(grey), _gradients(grey))
    levels = [np.sqrt(_shrunk(pyramid, cells)) for pyramid in pyramids for cells in (1, 2, CELLS)]
    return np.concatenate([_unit(part.ravel()) for part in (*levels, _shrunk(grey, LAYOUT))])


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    """Average a square of pixels or cells, (height, width, ...), over larger cells, (side, side, ...)."""
    step = len(pixels) // side
    return pixels.reshape(side, step, side, step, *pixels.shape[2:]).mean(axis=(1, 3))


def _histograms(bins: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a histogram for each of 4x4 cells of a square image, (4, 4, 64).

    ``bins`` and ``weights``, (..., height, width): the bins among which each pixel is shared, and what it adds to them.
    """
    cell = np.arange(bins.shape[-1]) * CELLS // bins.shape[-1]
    index = (cell[:, None] * CELLS + cell) * BINS + bins
    return np.bincount(index.ravel(), weights.ravel(), CELLS * CELLS * BINS).reshape(CELLS, CELLS, BINS)


def _colours(pixels: np.ndarray) -> np.ndarray:
    """Return a histogram of colours for each cell, (4, 4, 64), from RGB pixels, (height, width, 3), in [0, 1].

    A histogram has three axes of 4 bins each: brightness (r + 2 g + b) / 4, the contrast r - g of red and green, and
    the contrast (r + g) / 2 - b of yellow and blue. The contrasts are doubled, shifted by 0.5 and clipped to [0, 1],
    because photographs seldom have strong colours. A pixel is shared among the eight nearest bins.
    """
    red, green, blue = np.moveaxis(pixels, 2, 0)
    channels = np.stack([(red + 2 * green + blue) / 4, 2 * (red - green) + 0.5, red + green - 2 * blue + 0.5])
    position = np.clip(channels, 0, 1) * (SHADES - 1)
    lower = np.minimum(position.astype(int), SHADES - 2)
    share = np.stack([lower + 1 - position, position - lower])  # weights of the lower and of the upper bin
    shade = np.stack([lower, lower + 1])
    bins = (shade[:, None, None, 0] * SHADES + shade[None, :, None, 1]) * SHADES + shade[None, None, :, 2]
    return _histograms(bins, share[:, None, None, 0] * share[None, :, None, 1] * share[None, None, :, 2])


def _texture(grey: np.ndarray) -> np.ndarray:
    """Return a histogram of local binary patterns (Ojala et al. 1996) for each cell of a grey image, (4, 4, 64).

    A pixel's pattern has one bit for each of its six neighbours in HEXAGON, which is set if the neighbour is brighter
    by more than CONTRAST. ``grey`` is (height, width), in [0, 1].
    """
    side = len(grey)
    padded = np.pad(grey, 2, mode="edge") - CONTRAST
    shifted = (padded[2 + y : 2 + y + side, 2 + x : 2 + x + side] for y, x in HEXAGON)
    bins = sum((neighbour > grey).astype(int) << bit for bit, neighbour in enumerate(shifted))
    return _histograms(np.asarray(bins), np.ones_like(grey))


def _gradients(grey: np.ndarray) -> np.ndarray:
    """Return a histogram of gradient directions (Dalal & Triggs 2005) for each cell of a grey image, (4, 4, 64).

    A histogram has 16 directions at each of four scales; each scale has half the sides of the one before. A gradient is
    weighted by its magnitude and shared between the two nearest directions. ``grey`` is (SIDE, SIDE).
    """
    total = np.zeros((CELLS, CELLS, BINS))
    for scale in range(SCALES):
        down, right = np.gradient(_shrunk(grey, SIDE >> scale))
        position = np.arctan2(down, right) / (2 * np.pi) * ORIENTATIONS
        lower = np.floor(position)
        bins = np.stack([lower, lower + 1]).astype(int) % ORIENTATIONS + scale * ORIENTATIONS
        share = np.stack([lower + 1 - position, position - lower])
        # scale s has 4**s times fewer pixels than scale 0
        total += _histograms(bins, share * np.hypot(down, right) * 4**scale)
    return total


def vgg19() -> Extractor:
    """Return the extractor of VGG-19's features, means over ten crops; it uses a GPU if there is one.

    torch.hub reads the weights from its folder, which TORCH_HOME sets, or downloads them there and compares their
    SHA-256. The crops are those of an image's corners and centre, and their mirror images.

    Raises: DataError if the weights cannot be read or downloaded, or are damaged.
    """
    import torch
    from torchvision import models
    from torchvision.transforms import functional

    weights = models.VGG19_Weights.IMAGENET1K_V1
    try:
        state = weights.get_state_dict(progress=sys.stderr.isatty(), check_hash=True, weights_only=True)
        network = models.vgg19(init_weights=False)
        network.load_state_dict(state)
    except Exception as error:  # errors of the network and of damaged files have many types
        raise DataError(
            f"The weights of VGG-19 cannot be read from {torch.hub.get_dir()}/checkpoints or downloaded to it "
            f"({type(error).__name__}).\n"
            f"Put the file {weights.url} there, or use data.features=descriptor, which needs no weights."
        ) from None
    network.classifier = network.classifier[:5]  # ends with fc7 and its ReLU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, preset = network.eval().to(device), weights.transforms()

    def features(image: Image) -> np.ndarray:
        crops = functional.ten_crop(functional.resize(image, preset.resize_size), preset.crop_size)
        with torch.inference_mode():
            batch = torch.stack(
                [functional.normalize(functional.to_tensor(crop), preset.mean, preset.std) for crop in crops]
            )
            return network(batch.to(device)).mean(dim=0).cpu().numpy()

    return features


# name -> (version, function that makes the extractor); code changes that change the features must raise the version
KINDS: dict[str, tuple[int, Callable[[], Extractor]]] = {
    "descriptor": (2, lambda: describe),
    "vgg19": (2, vgg19),
}
