"""Retrieval metrics: recall, median rank and mean rank of the matching images and captions (the paper's Table 7).

Shapes: captions ``(captions, size)``, images ``(images, size)``, penalties ``(captions, images)``. Every image has the
same number of captions, ``per_image``; the captions of one image are adjacent rows, in the order of the images.

Deviation: order-embedding, rank of a match that ties with others
    original: the position after an unstable sort, so by chance (order-embedding:evaluation.py:63-65)
    ours: the mean rank over all orders of the equal penalties
    why: the position does not depend on the model, and differs between versions of NumPy
    effect: none without ties, which are frequent only where vectors collapse, as early in training
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 1 << 22  # bytes of the differences between a block of captions and images, which should fit a CPU cache
CUDA_BLOCK_BYTES = 1 << 26  # the same on a GPU, which would start thousands of small blocks one after the other
CUTOFFS = (1, 5, 10)  # the K of the metrics R@K

Penalty = Callable[[Tensor, Tensor], Tensor]  # (captions, size), (images, size) -> (captions, images)
Metrics = dict[str, float]
Each = Callable[[Callable[[int], Metrics], Iterable[int]], Iterable[Metrics]]


def retrieval(captions: Tensor, images: Tensor, penalty: Penalty, fold: int | None = None, each: Each = map) -> Metrics:
    """Return metrics of the search for images by captions (``image_…``) and for captions by images (``caption_…``).

    ``_r1``, ``_r5`` and ``_r10``: share of queries whose match, or best match, has rank at most 1, 5 or 10.
    With ties, ranks are means (:func:`ranks`), so a match that ties across place K may count as not found.
    ``_recall``: mean of these three. ``_median_rank``: median of these ranks, rounded down. ``_mean_rank``: their mean.

    Args:
        fold: number of images in a fold. Each fold is ranked by itself, with its captions, and metrics are averaged
            over folds; images that do not fill the last fold are left out. With None, or more than there are images,
            all images are one fold.
        each: returns the results of a function for several arguments, in order, as ``map`` does.
    """
    size = min(fold or len(images), len(images))
    per_image = len(captions) // len(images)

    def metrics(start: int) -> Metrics:
        fold_captions = captions[start * per_image : (start + size) * per_image]
        fold_images = images[start : start + size]
        # No variable refers to the penalties here, so that `ranks` can free them after making its copy.
        image_ranks, caption_ranks = ranks(penalties(fold_captions, fold_images, penalty), per_image)
        return _summary("image", image_ranks) | _summary("caption", caption_ranks)

    results = list(each(metrics, range(0, len(images) - size + 1, size)))
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


def penalties(captions: Tensor, images: Tensor, penalty: Penalty) -> Tensor:
    """Return the penalty of each caption with each image, ``(captions, images)``, computed in blocks to save memory."""
    result = captions.new_empty(len(captions), len(images))
    block_bytes = CUDA_BLOCK_BYTES if images.device.type == "cuda" else BLOCK_BYTES
    side = max(1, int((block_bytes / (images.shape[1] * images.element_size())) ** 0.5))
    for row in range(0, len(captions), side):
        for column in range(0, len(images), side):
            block = penalty(captions[row : row + side], images[column : column + side])
            result[row : row + side, column : column + side] = block
    return result


def ranks(penalties: Tensor, per_image: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank of each caption's image, ``(captions,)``, and of each image's best caption, ``(images,)``.

    Ranks start at 1 and increase with the penalty. A match whose penalty equals others has its mean rank over all
    orders of the equal penalties. NaN ranks last.
    """
    penalties = penalties.nan_to_num(nan=torch.inf)
    rows = torch.arange(len(penalties), device=penalties.device)
    matching = penalties[rows, rows // per_image]
    by_image = matching.view(-1, per_image)
    best = by_image.amin(1)
    image_ranks = _rank(penalties, matching.unsqueeze(1), 1, torch.ones_like(matching))
    # All captions of the image that tie with its best caption are matches.
    caption_ranks = _rank(penalties, best, 0, (by_image == best.unsqueeze(1)).sum(1))
    return image_ranks, caption_ranks


def _rank(penalties: Tensor, best: Tensor, axis: int, matches: Tensor) -> np.ndarray:
    """Return the expected rank of the first match along an axis, over all orders of equal penalties.

    ``best``: the lowest penalty of a match. ``matches``: number of matches with this penalty.
    """
    better = (penalties < best).sum(axis, dtype=torch.int32)
    equal = (penalties == best).sum(axis, dtype=torch.int32)
    return (1 + better + (equal - matches).double() / (matches + 1)).cpu().numpy()


def _summary(name: str, ranks: np.ndarray) -> dict[str, float]:
    recalls = {f"{name}_r{cutoff}": float((ranks <= cutoff).mean()) for cutoff in CUTOFFS}
    return {
        f"{name}_recall": float(np.mean(list(recalls.values()))),
        **recalls,
        f"{name}_median_rank": float(np.floor(np.median(ranks))),
        f"{name}_mean_rank": float(ranks.mean()),
    }
