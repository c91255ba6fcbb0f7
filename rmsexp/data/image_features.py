"""Compute feature vectors of images once, and store them.

A vector has 4096 non-negative numbers and is scaled to a Euclidean norm of 1. There are two kinds.

- ``vgg19`` is the usual input of caption models of 2015: the output of layer fc7 of VGG-19 (Simonyan & Zisserman 2015)
  after its ReLU, averaged over ten crops. Vendrov et al. (2016) published features of the Caffe model, which takes BGR
  pixels minus a mean colour. Ours come from torchvision's weights and preprocessing, so they are similar, not equal.
- ``descriptor`` needs no weights. It has histograms of colour, texture and gradients in 1x1, 2x2 and 4x4 cells of the
  image, and the image in grey, shrunk to 8x8 pixels.

Images are read as :func:`upright_rgb` describes.

Deviation: COCO, network of the VGG-19 features
    original: the Caffe model (order-embedding:extract_cnn_features.py:42)
    ours: the torchvision model; data.name=coco_release reads the released features
    why: torchvision is a dependency already, and Caffe is not maintained
    effect: not measured
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmsexp.data import DataError, Report, cache
from rmsexp.data.files import FLOAT32, sha256_of, unreadable, write_array
from rmsexp.data.parts import parts_folder, stored
from rmsexp.system import checks

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn

Extractor = Callable[["Image"], np.ndarray]  # from an RGB image to its vector, (4096,), not yet scaled to norm 1

SIZE = 4096  # numbers per image
FILE = "features.npy"
SHARD = 500  # images whose features are stored at once, as a shard: a kill loses at most the work on one shard
WORKERS = 2  # threads that compute features

SIDE = 128  # pixels per side of the square to which the descriptor resizes an image
CELLS, BINS = 4, 64  # cells per side of the finest grid of cells; bins of the histogram of a cell
SHADES = 4  # bins per channel in a histogram of colours: SHADES ** 3 = BINS
HEXAGON = ((0, 2), (2, 1), (2, -1), (0, -2), (-2, -1), (-2, 1))  # (y, x) of six neighbours, about two pixels away
CONTRAST = 0.03  # a neighbour counts as brighter if it exceeds the pixel by more than this; white is 1
SCALES, ORIENTATIONS = 4, 16  # scales and directions in a histogram of gradients: SCALES * ORIENTATIONS = BINS
LAYOUT = 8  # pixels per side of the grey image in the descriptor

EIGHT_BITS = ("1", "L", "P", "RGB", "CMYK", "YCbCr")  # modes of opaque images with at most 8 bits per pixel and channel

RESIZED, CROP = 256, 224  # for vgg19, in pixels: the short side of the resized image; the side of a crop
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # statistics of ImageNet's channels, for pixels in [0, 1]


def extract(images: Sequence[Path], kind: str, folder: Path, report: Report) -> Path:
    """Return the path of a .npy file with the features of ``images``, float32 (image, 4096) with rows of norm 1.

    The file is in a folder of ``folder`` that is named by a digest of ``kind``, the extractor's version, and the names
    and sizes of the images. If it is missing or damaged, the features are computed and stored first, SHARD images at a
    time: if the process is killed, the next call with the same images computes only the missing ones.

    Raises: ValueError for an unknown kind; DataError if an image is missing or damaged, if the weights are neither
    stored nor downloadable, or if the features cannot be stored.
    """
    checks.choice("data.features", kind, tuple(KINDS))
    version, extractor = KINDS[kind]
    place = folder / hashlib.sha256(repr((kind, version, sizes(images))).encode()).hexdigest()[:16]
    work = parts_folder(place)
    row = lru_cache(lambda: partial(_row, extractor()))  # the extractor is made for the first missing shard

    def compute(start: int, temporary: Path) -> None:
        report(f"{kind} features: {start:,} of {len(images):,} images")
        with ThreadPoolExecutor(WORKERS) as pool:
            rows = list(pool.map(row(), images[start : start + SHARD]))
        np.save(temporary / FILE, np.stack(rows))

    def make(temporary: Path) -> None:
        shards = stored(work, compute, range(0, len(images), SHARD), 1, report)
        write_array(temporary / FILE, FLOAT32, (len(images), SIZE), (np.load(shard / FILE) for shard in shards))

    found = cache.cached(place, lambda stored_folder: stored_folder / FILE, make, report)
    shutil.rmtree(work, ignore_errors=True)
    return found


def sizes(images: Iterable[Path]) -> list[tuple[str, int]]:
    """Return the name and the size in bytes of each file.

    Raises: DataError that names the first file that is missing.
    """
    listed = []
    for path in images:
        try:
            listed.append((path.name, path.stat().st_size))
        except (OSError, ValueError) as error:  # ValueError: the name has characters that no file's name can have
            raise _unreadable(path, error) from None
    return listed


def _unreadable(path: Path, error: Exception) -> DataError:
    return unreadable(f"The image {path}", error, "Replace it; scale=demo needs no images.")


def _row(extractor: Extractor, path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = upright_rgb(image)
    except Exception as error:  # a damaged image may raise any exception
        raise _unreadable(path, error) from None
    return _unit(extractor(pixels)).astype(FLOAT32)


def upright_rgb(image: Image) -> Image:
    """Return an image, as it was opened, in RGB of 8 bits, turned as its EXIF orientation says.

    Raises: ValueError for an animation or several pages, transparent pixels, and pixels of more than 8 bits.
    """
    from PIL import ImageOps

    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # cameras write MPO: the photograph, then previews of it
        raise ValueError(f"it has {frames} frames or pages, and one is needed")
    if image.mode not in EIGHT_BITS or "transparency" in image.info:
        raise ValueError(f"mode {image.mode} with transparency or more than 8 bits; convert it to RGB")
    return ImageOps.exif_transpose(image).convert("RGB")


def _unit(vector: np.ndarray) -> np.ndarray:
    """Return a vector scaled to a Euclidean norm of 1; a vector of zeros is returned unchanged."""
    return vector / (np.linalg.norm(vector) or 1)


def _descriptor() -> Extractor:
    return describe


def describe(image: Image) -> np.ndarray:
    """Return the descriptor of an image, float64 of shape (4096,), not yet scaled to norm 1.

    It has ten parts, each scaled to norm 1. The first three are the square roots of histograms of colours, with 64 bins
    per cell, for 1x1, 2x2 and 4x4 cells. The next three are of texture, and three of gradients. The last part is the
    image in grey, shrunk to 8x8 pixels.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.resize((SIDE, SIDE), Resampling.BILINEAR), dtype=np.float32) / 255
    grey = pixels.mean(axis=2)
    pyramids = (_colours(_shrunk(pixels, SIDE // 2)), _texture(grey), _gradients(grey))
    levels = [np.sqrt(_coarser(pyramid, cells)) for pyramid in pyramids for cells in (1, 2, CELLS)]
    return np.concatenate([_unit(part.ravel()) for part in (*levels, _shrunk(grey, LAYOUT))])


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    """Average a square image over ``side`` x ``side`` cells: from (height, width, ...) to (side, side, ...)."""
    step = len(pixels) // side
    return pixels.reshape(side, step, side, step, *pixels.shape[2:]).mean(axis=(1, 3))


def _histograms(bins: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a histogram for each of 4x4 cells of a square image, (4, 4, 64).

    ``bins`` and ``weights``, both (..., height, width), have for each pixel the numbers of bins, and what the pixel
    adds to them. Leading dimensions are for pixels that are shared among several bins.
    """
    cell = np.arange(bins.shape[-1]) * CELLS // bins.shape[-1]
    index = (cell[:, None] * CELLS + cell) * BINS + bins
    return np.bincount(index.ravel(), weights.ravel(), CELLS * CELLS * BINS).reshape(CELLS, CELLS, BINS)


def _coarser(histograms: np.ndarray, cells: int) -> np.ndarray:
    """Sum histograms of 4x4 cells, (4, 4, 64), into those of larger cells, (cells, cells, 64)."""
    step = CELLS // cells
    return histograms.reshape(cells, step, cells, step, BINS).sum(axis=(1, 3))


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

    A pixel's pattern has one bit for each of its six neighbours in HEXAGON. The bit is set if the neighbour is brighter
    than the pixel by more than CONTRAST. ``grey`` is (height, width), in [0, 1].
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


def _vgg19() -> Extractor:
    """Return the extractor of VGG-19's features; it uses a GPU if there is one.

    The weights are read from torch.hub's folder, which the environment variable TORCH_HOME sets, or downloaded into it
    if they are missing. Their name contains the first digits of their SHA-256, which is verified each time.

    Raises: DataError if the weights cannot be read or downloaded, or are damaged.
    """
    import torch
    from torchvision.models import VGG19_Weights, vgg19

    url = VGG19_Weights.IMAGENET1K_V1.url
    path = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    try:
        if path.exists() and not sha256_of(path).startswith(path.stem.rpartition("-")[2]):
            raise ValueError("its content does not have the SHA-256 in its name")
        state = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
        )
        with torch.device("meta"):  # creates no initial weights: the loaded ones are assigned instead
            network = vgg19()
        network.load_state_dict(state, assign=True)
    except Exception as error:  # errors of the network and of damaged files have many types
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"The weights of VGG-19 cannot be read from {path} or downloaded to it ({reason}).\n"
            f"Put the file {url} there, or use data.features=descriptor, which needs no weights."
        ) from None
    network.classifier = network.classifier[:5]  # ends with fc7 and its ReLU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return partial(ten_crops, network.eval().to(device), device)


def ten_crops(network: nn.Module, device: Any, image: Image) -> np.ndarray:
    """Return the network's mean output over ten crops: an image's corners and centre, and their mirror images.

    The image is resized so that its short side is 256; crops are 224x224. ``network`` maps float32 (10, 3, 224, 224) on
    ``device`` to float32 (10, size); the result is float32 (size,).
    """
    import torch
    from torchvision.transforms import functional

    crops = functional.ten_crop(functional.resize(image, RESIZED), CROP)
    batch = torch.stack([functional.normalize(functional.to_tensor(crop), MEAN, STD) for crop in crops])
    with torch.inference_mode():
        return network(batch.to(device)).mean(dim=0).cpu().numpy()


# name -> (version, function that makes the extractor); code changes that change the features must raise the version
KINDS: dict[str, tuple[int, Callable[[], Extractor]]] = {
    "descriptor": (2, _descriptor),
    "vgg19": (2, _vgg19),
}
