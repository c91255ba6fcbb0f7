"""Images as 4096 non-negative numbers of unit length, computed once and kept.

There are two kinds. ``vgg19`` is what models of captions used to see: layer fc7 of VGG-19 (Simonyan & Zisserman 2015)
after its ReLU, averaged over ten crops. The features that Vendrov et al. (2016) published are of the Caffe model, which
wants BGR pixels less a mean colour; these, of torchvision's weights and preprocessing, are alike but not equal.
``descriptor`` needs no weights: histograms of colour, texture and gradients over a pyramid of cells.
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
from rmsexp.data import DataError, cache

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn

Extractor = Callable[["Image"], np.ndarray]  # an RGB image's numbers, of shape (4096,) and of any length

SIZE = 4096
DTYPE = np.dtype("<f4")
SHARD = 500  # images whose rows are stored at a time: what a kill can cost
WORKERS = 2

SIDE = 128  # of an image as the descriptor sees it, in pixels
CELLS, BINS = 4, 64  # of the finest level of a pyramid, a side; of a histogram
SHADES = 4  # levels of a channel in a histogram of colours; its cube is BINS
HEXAGON = ((0, 2), (2, 1), (2, -1), (0, -2), (-2, -1), (-2, 1))  # a pixel's neighbours, about two away
CONTRAST = 0.03  # of white: by how much a neighbour must be brighter
SCALES, ORIENTATIONS = 4, 16  # of gradients; their product is BINS
LAYOUT = 8  # grey cells a side

RESIZED, CROP = 256, 224  # an image's short side and a crop's sides, in pixels
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, in [0, 1], as torchvision's weights expect


def extract(images: Sequence[Path], kind: str, target: Path, report: Callable[[str], None]) -> None:
    """Writes the features, float32 of shape (image, 4096), rows of unit length, to ``target`` (.npy).

    A .json beside it says what they are of: ``kind``, the number of ``images``, and ``digest``, of the images' names
    and sizes and of the extractor's version. Where it says the same, nothing is done; other features are replaced.
    Rows are stored in shards first, so that work goes on where it was killed. Of processes that want the same target,
    one works and the others wait. ``report`` is told how far it is.

    Raises: ValueError for another kind; DataError if an image is missing or damaged, if the weights cannot be had, or
    if the features cannot be stored.
    """
    checks.choice("data.features", kind, tuple(KINDS))
    version, extractor = KINDS[kind]
    digest = hashlib.sha256(repr((version, sizes(images))).encode()).hexdigest()
    origin = {"kind": kind, "images": len(images), "digest": digest}
    if _is_made(target, origin):
        return
    try:
        with cache.staging(target) as temporary:
            if not _is_made(target, origin):  # else another process made them while this one waited
                shards = target.with_suffix(".shards") / digest[:16]
                paths = _write_shards(images, extractor, shards, partial(_say, report, kind, target.stem, len(images)))
                _join(paths, len(images), temporary / target.name)
                cache.sync(temporary)
                target.with_suffix(".json").unlink(missing_ok=True)  # never beside features of something else
                (temporary / target.name).replace(target)
                record.write_json(target.with_suffix(".json"), origin)
                shutil.rmtree(shards.parent)
    except OSError as error:
        raise DataError(
            f"Features cannot be stored in {target} ({error.strerror or error}); while they are made, "
            f"{len(images):,} images need {2 * len(images) * SIZE * DTYPE.itemsize / 1e6:,.0f} MB.\n"
            "Free some space there, or choose another place."
        ) from None


def sizes(images: Iterable[Path]) -> list[tuple[str, int]]:
    """The files' names and sizes in bytes.

    Raises: DataError for the first one that is not there.
    """
    try:
        return [(path.name, path.stat().st_size) for path in images]
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or error or type(error).__name__
    return DataError(f"The image {path} cannot be read ({reason}).\nReplace it; scale=demo needs no images.")


def _is_made(target: Path, origin: dict[str, Any]) -> bool:
    try:
        stored = np.load(target, mmap_mode="r")
        return record.read_json(target.with_suffix(".json")) == origin and stored.shape == (origin["images"], SIZE)
    except (OSError, ValueError, EOFError):
        return False


def _say(report: Callable[[str], None], kind: str, what: str, total: int, done: int) -> None:
    report(f"{kind} features of {what}: {done:,} of {total:,} images")


def _write_shards(
    images: Sequence[Path], extractor: Callable[[], Extractor], folder: Path, done: Callable[[int], None]
) -> list[Path]:
    """The files of all shards, those that are missing now written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{start:07}.npy" for start in range(0, len(images), SHARD)]
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    if missing:
        row = partial(_row, extractor())
        with ThreadPoolExecutor(WORKERS) as pool:
            for number in missing:
                done(number * SHARD)
                content = BytesIO()
                np.save(content, np.stack(list(pool.map(row, images[number * SHARD : (number + 1) * SHARD]))))
                record.write_atomic(paths[number], content.getvalue())
    return paths


def _row(extractor: Extractor, path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = image.convert("RGB")
    except Exception as error:  # a damaged image may raise nearly anything
        raise _unreadable(path, error) from None
    return _unit(extractor(pixels)).astype(DTYPE)


def _unit(numbers: np.ndarray) -> np.ndarray:
    """Of unit length, where it has any."""
    return numbers / (np.linalg.norm(numbers) or 1)


def _join(shards: Sequence[Path], images: int, target: Path) -> None:
    with target.open("wb") as file:
        header = {"descr": DTYPE.str, "fortran_order": False, "shape": (images, SIZE)}
        np.lib.format.write_array_header_1_0(file, header)
        for shard in shards:
            file.write(np.load(shard).data)


def _descriptor() -> Extractor:
    return describe


def describe(image: Image) -> np.ndarray:
    """Square roots of 63 histograms of 64 bins, and the grey of 8x8 cells; shape (4096,).

    Colours, texture and gradients each have a histogram in 1x1, 2x2 and 4x4 cells. The ten parts, these nine levels and
    the grey, are of equal length.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.resize((SIDE, SIDE), Resampling.BILINEAR), dtype=np.float32) / 255
    grey = pixels.mean(axis=2)
    pyramids = (_colours(_shrunk(pixels, SIDE // 2)), _texture(grey), _gradients(grey))
    levels = [np.sqrt(_coarser(pyramid, cells)) for pyramid in pyramids for cells in (1, 2, CELLS)]
    return np.concatenate([_unit(part.ravel()) for part in (*levels, _shrunk(grey, LAYOUT))])


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    """The means of ``side`` x ``side`` cells; (height, width, ...) with height = width."""
    step = len(pixels) // side
    return pixels.reshape(side, step, side, step, *pixels.shape[2:]).mean(axis=(1, 3))


def _histograms(bins: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Those of 4x4 cells, (4, 4, 64), of pixels' bins and weights, both (..., height, width)."""
    cell = np.arange(bins.shape[-1]) * CELLS // bins.shape[-1]
    index = (cell[:, None] * CELLS + cell) * BINS + bins
    return np.bincount(index.ravel(), weights.ravel(), CELLS * CELLS * BINS).reshape(CELLS, CELLS, BINS)


def _coarser(histograms: np.ndarray, cells: int) -> np.ndarray:
    step = CELLS // cells
    return histograms.reshape(cells, step, cells, step, BINS).sum(axis=(1, 3))


def _colours(pixels: np.ndarray) -> np.ndarray:
    """Of brightness, red against green, and yellow against blue; a pixel is shared among the eight nearest bins.

    The two contrasts are doubled, and cut off where they leave [0, 1]: photographs seldom have strong colours.
    """
    red, green, blue = np.moveaxis(pixels, 2, 0)
    channels = np.stack([(red + 2 * green + blue) / 4, 2 * (red - green) + 0.5, red + green - 2 * blue + 0.5])
    position = np.clip(channels, 0, 1) * (SHADES - 1)
    lower = np.minimum(position.astype(int), SHADES - 2)
    share = np.stack([lower + 1 - position, position - lower])  # of the lower and the upper neighbour
    shade = np.stack([lower, lower + 1])
    bins = (shade[:, None, None, 0] * SHADES + shade[None, :, None, 1]) * SHADES + shade[None, None, :, 2]
    return _histograms(bins, share[:, None, None, 0] * share[None, :, None, 1] * share[None, None, :, 2])


def _texture(grey: np.ndarray) -> np.ndarray:
    """Of local binary patterns (Ojala et al. 1996): one bit for each of six neighbours, set where it is brighter."""
    side = len(grey)
    padded = np.pad(grey, 2, mode="edge") - CONTRAST
    shifted = (padded[2 + y : 2 + y + side, 2 + x : 2 + x + side] for y, x in HEXAGON)
    bins = sum((neighbour > grey).astype(int) << bit for bit, neighbour in enumerate(shifted))
    return _histograms(np.asarray(bins), np.ones_like(grey))


def _gradients(grey: np.ndarray) -> np.ndarray:
    """Of orientations at four scales, weighted by strength (Dalal & Triggs 2005); shared by the two nearest bins."""
    total = np.zeros((CELLS, CELLS, BINS))
    for scale in range(SCALES):
        down, right = np.gradient(_shrunk(grey, SIDE >> scale))
        position = np.arctan2(down, right) / (2 * np.pi) * ORIENTATIONS
        lower = np.floor(position)
        bins = np.stack([lower, lower + 1]).astype(int) % ORIENTATIONS + scale * ORIENTATIONS
        share = np.stack([lower + 1 - position, position - lower])
        total += _histograms(bins, share * np.hypot(down, right) * 4**scale)  # fewer pixels the coarser
    return total


def _vgg19() -> Extractor:
    """The weights come from torch.hub's folder (TORCH_HOME moves it), or are fetched into it and verified."""
    import torch
    from torchvision.models import VGG19_Weights, vgg19

    url = VGG19_Weights.IMAGENET1K_V1.url
    try:
        state = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
        )
        with torch.device("meta"):  # draws no initial weights
            network = vgg19()
        network.load_state_dict(state, assign=True)
    except Exception as error:  # the network's and those of a damaged file, which may be nearly any
        path, reason = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2]), str(error).partition("\n")[0]
        raise DataError(
            f"The weights of VGG-19 are not in {path}, or damaged, and fetching them failed ({reason}).\n"
            f"Put {url} there, or use data.features=descriptor, which needs none."
        ) from None
    network.classifier = network.classifier[:5]  # to fc7 and its ReLU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return partial(ten_crops, network.eval().to(device), device)


def ten_crops(network: nn.Module, device: Any, image: Image) -> np.ndarray:
    """The mean of the network's outputs for the corners and the centre of an image, and for their mirror images.

    The image is resized so that its short side is 256; crops are 224x224. ``network`` takes (10, 3, 224, 224).
    """
    import torch
    from torchvision.transforms import functional

    crops = functional.ten_crop(functional.resize(image, RESIZED), CROP)
    batch = torch.stack([functional.normalize(functional.to_tensor(crop), MEAN, STD) for crop in crops])
    with torch.inference_mode():
        return network(batch.to(device)).mean(dim=0).cpu().numpy()


KINDS: dict[str, tuple[int, Callable[[], Extractor]]] = {  # a version is raised where a kind's numbers change
    "descriptor": (1, _descriptor),
    "vgg19": (1, _vgg19),
}
