"""Feature vectors of images: 4096 non-negative numbers, scaled to unit length; computed once and stored.

There are two kinds.

- ``vgg19`` is the usual input of caption models of 2015: layer fc7 of VGG-19 (Simonyan & Zisserman 2015) after its
  ReLU, averaged over ten crops. Vendrov et al. (2016) published features of the Caffe model, which takes BGR pixels
  minus a mean colour. Ours come from torchvision's weights and preprocessing. They are similar, not equal.
- ``descriptor`` needs no weights: it has histograms of colour, texture and gradients over a pyramid of cells, and the
  image in grey.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmsexp import checks, record
from rmsexp.data import DataError, Report, cache
from rmsexp.data.files import FLOAT32, unreadable, write_float32

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn

Extractor = Callable[["Image"], np.ndarray]  # from an RGB image to a vector of shape (4096,), not yet of unit length

SIZE = 4096  # numbers per image
SHARD = 500  # images per shard: a kill loses at most the work on one shard
WORKERS = 2  # threads

SIDE = 128  # pixels per side of the image that the descriptor is computed from
CELLS, BINS = 4, 64  # cells per side of a pyramid's finest level; bins of a histogram
SHADES = 4  # levels per channel in a histogram of colours: SHADES ** 3 = BINS
HEXAGON = ((0, 2), (2, 1), (2, -1), (0, -2), (-2, -1), (-2, 1))  # (y, x) of six neighbours, about two pixels away
CONTRAST = 0.03  # least difference that makes a neighbour count as brighter; white is 1
SCALES, ORIENTATIONS = 4, 16  # of the histograms of gradients: SCALES * ORIENTATIONS = BINS
LAYOUT = 8  # `descriptor` has the image in grey, in 8 x 8 cells

RESIZED, CROP = 256, 224  # pixels: the short side of a resized image, the side of a crop
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # statistics of ImageNet's channels, for pixels in [0, 1]


def extract(images: Sequence[Path], kind: str, target: Path, report: Report) -> None:
    """Write the features, float32 of shape (image, 4096) with rows of unit length, to ``target`` (.npy).

    A .json file beside it records their origin: ``kind``, the number of ``images``, and ``digest``, a SHA-256 of the
    images' names and sizes and of the extractor's version. If ``target`` has the same origin, nothing is done. Features
    of another origin are replaced. Rows are first stored in shards, so an extraction that was killed continues at the
    first missing shard. If several processes need the same target, one computes it and the others wait.

    Raises: ValueError for an unknown kind; DataError if an image is missing or damaged, if the weights are neither
    stored nor downloadable, or if the features cannot be stored.
    """
    checks.choice("data.features", kind, tuple(KINDS))
    version, extractor = KINDS[kind]
    digest = hashlib.sha256(repr((version, sizes(images))).encode()).hexdigest()
    origin = {"kind": kind, "images": len(images), "digest": digest}
    if _is_stored(target, origin):
        return
    size_bytes = 2 * len(images) * SIZE * FLOAT32.itemsize  # twice: shards, and the file that they are joined into
    with (
        cache.storing(f"The features of {len(images):,} images", target, size_bytes),
        cache.staging(target) as temporary,
    ):
        if not _is_stored(target, origin):  # otherwise another process stored them while this one waited
            shards = target.with_suffix(".shards") / digest[:16]
            progress = partial(_report_progress, report, kind, target.stem, len(images))
            paths = _write_shards(images, extractor, shards, progress)
            _join(paths, len(images), temporary / target.name)
            cache.sync(temporary)
            target.with_suffix(".json").unlink(missing_ok=True)  # new features never stand beside the old origin file
            (temporary / target.name).replace(target)
            record.write_json(target.with_suffix(".json"), origin)
            shutil.rmtree(shards.parent)


def sizes(images: Iterable[Path]) -> list[tuple[str, int]]:
    """Return the files' names and sizes in bytes.

    Raises: DataError for the first missing file.
    """
    try:
        return [(path.name, path.stat().st_size) for path in images]
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    return unreadable(f"The image {path}", error, "Replace it; scale=demo needs no images.")


def _is_stored(target: Path, origin: dict[str, Any]) -> bool:
    try:
        stored = np.load(target, mmap_mode="r")
        return record.read_json(target.with_suffix(".json")) == origin and stored.shape == (origin["images"], SIZE)
    except (OSError, ValueError, EOFError):
        return False


def _report_progress(report: Report, kind: str, split: str, total: int, done: int) -> None:
    report(f"{kind} features of {split}: {done:,} of {total:,} images")


def _write_shards(
    images: Sequence[Path], extractor: Callable[[], Extractor], folder: Path, progress: Callable[[int], None]
) -> list[Path]:
    """Write the shards that are missing, and return all paths. ``progress`` gets the number of images before each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{start:07}.npy" for start in range(0, len(images), SHARD)]
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    if missing:
        row = partial(_row, extractor())
        with ThreadPoolExecutor(WORKERS) as pool:
            for number in missing:
                progress(number * SHARD)
                content = BytesIO()
                np.save(content, np.stack(list(pool.map(row, images[number * SHARD : (number + 1) * SHARD]))))
                record.write_atomic(paths[number], content.getvalue())
    return paths


def _row(extractor: Extractor, path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = image.convert("RGB")
    except Exception as error:  # a damaged image may raise any exception
        raise _unreadable(path, error) from None
    return _unit(extractor(pixels)).astype(FLOAT32)


def _unit(vector: np.ndarray) -> np.ndarray:
    """Scale a vector to unit length. Zeros stay zeros."""
    return vector / (np.linalg.norm(vector) or 1)


def _join(shards: Sequence[Path], images: int, target: Path) -> None:
    write_float32(target, (images, SIZE), map(np.load, shards))


def _descriptor() -> Extractor:
    return describe


def describe(image: Image) -> np.ndarray:
    """Return the square roots of 63 histograms of 64 bins, then the grey of 8x8 cells; float64 of shape (4096,).

    Colours, texture and gradients each have a histogram per cell, for 1x1, 2x2 and 4x4 cells. These nine levels and the
    grey cells are ten parts, each scaled to unit length.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.resize((SIDE, SIDE), Resampling.BILINEAR), dtype=np.float32) / 255
    grey = pixels.mean(axis=2)
    pyramids = (_colours(_shrunk(pixels, SIDE // 2)), _texture(grey), _gradients(grey))
    levels = [np.sqrt(_coarser(pyramid, cells)) for pyramid in pyramids for cells in (1, 2, CELLS)]
    return np.concatenate([_unit(part.ravel()) for part in (*levels, _shrunk(grey, LAYOUT))])


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return the means of ``side`` x ``side`` cells of a square image: (height, width, ...) to (side, side, ...)."""
    step = len(pixels) // side
    return pixels.reshape(side, step, side, step, *pixels.shape[2:]).mean(axis=(1, 3))


def _histograms(bins: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return histograms of 4x4 cells, (4, 4, 64), from the pixels' bins and weights, both (..., height, width)."""
    cell = np.arange(bins.shape[-1]) * CELLS // bins.shape[-1]
    index = (cell[:, None] * CELLS + cell) * BINS + bins
    return np.bincount(index.ravel(), weights.ravel(), CELLS * CELLS * BINS).reshape(CELLS, CELLS, BINS)


def _coarser(histograms: np.ndarray, cells: int) -> np.ndarray:
    """Add up histograms of 4x4 cells, (4, 4, 64), so that there are ``cells`` x ``cells``."""
    step = CELLS // cells
    return histograms.reshape(cells, step, cells, step, BINS).sum(axis=(1, 3))


def _colours(pixels: np.ndarray) -> np.ndarray:
    """Return histograms of brightness, red against green, and yellow against blue, from (height, width, 3) in [0, 1].

    A pixel is shared among the eight nearest bins. The two contrasts are doubled and clipped to [0, 1], because
    photographs seldom have strong colours.
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
    """Return histograms of local binary patterns (Ojala et al. 1996) of a grey image, (height, width).

    A pattern has one bit for each of six neighbours, which is set if the neighbour is brighter by more than CONTRAST.
    """
    side = len(grey)
    padded = np.pad(grey, 2, mode="edge") - CONTRAST
    shifted = (padded[2 + y : 2 + y + side, 2 + x : 2 + x + side] for y, x in HEXAGON)
    bins = sum((neighbour > grey).astype(int) << bit for bit, neighbour in enumerate(shifted))
    return _histograms(np.asarray(bins), np.ones_like(grey))


def _gradients(grey: np.ndarray) -> np.ndarray:
    """Return histograms of the gradients' orientations at four scales (Dalal & Triggs 2005), from (height, width).

    A gradient is weighted by its magnitude and shared between the two nearest bins.
    """
    total = np.zeros((CELLS, CELLS, BINS))
    for scale in range(SCALES):
        down, right = np.gradient(_shrunk(grey, SIDE >> scale))
        position = np.arctan2(down, right) / (2 * np.pi) * ORIENTATIONS
        lower = np.floor(position)
        bins = np.stack([lower, lower + 1]).astype(int) % ORIENTATIONS + scale * ORIENTATIONS
        share = np.stack([lower + 1 - position, position - lower])
        total += _histograms(bins, share * np.hypot(down, right) * 4**scale)  # a coarser scale has fewer pixels
    return total


def _vgg19() -> Extractor:
    """Return the extractor of VGG-19's features.

    The weights are read from torch.hub's folder (which TORCH_HOME sets), or downloaded into it. The hash of a
    download is verified.

    Raises: DataError if they cannot be read or downloaded.
    """
    import torch
    from torchvision.models import VGG19_Weights, vgg19

    url = VGG19_Weights.IMAGENET1K_V1.url
    try:
        state = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
        )
        with torch.device("meta"):  # creates no initial weights: the loaded ones are assigned instead
            network = vgg19()
        network.load_state_dict(state, assign=True)
    except Exception as error:  # errors of the network and of damaged files have many types
        path, reason = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2]), str(error).partition("\n")[0]
        raise DataError(
            f"The weights of VGG-19 in {path} are missing or damaged, and the download failed ({reason}).\n"
            f"Put {url} there, or use data.features=descriptor, which needs no weights."
        ) from None
    network.classifier = network.classifier[:5]  # ends with fc7 and its ReLU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return partial(ten_crops, network.eval().to(device), device)


def ten_crops(network: nn.Module, device: Any, image: Image) -> np.ndarray:
    """Return the network's mean output over ten crops: an image's corners and centre, and their mirror images.

    The image is resized so that its short side is 256; crops are 224x224. ``network`` maps float32 (10, 3, 224, 224) to
    (10, size); the result is float32 (size,).
    """
    import torch
    from torchvision.transforms import functional

    crops = functional.ten_crop(functional.resize(image, RESIZED), CROP)
    batch = torch.stack([functional.normalize(functional.to_tensor(crop), MEAN, STD) for crop in crops])
    with torch.inference_mode():
        return network(batch.to(device)).mean(dim=0).cpu().numpy()


# name -> (version, function that makes the extractor); a change of the features must raise the version
KINDS: dict[str, tuple[int, Callable[[], Extractor]]] = {
    "descriptor": (1, _descriptor),
    "vgg19": (1, _vgg19),
}
