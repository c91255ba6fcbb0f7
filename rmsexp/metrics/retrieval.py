"""How high the right images and captions rank among all (the paper's Table 7)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 1 << 22  # of differences between captions and images at a time: they fit a cache
CUTOFFS = (1, 5, 10)

Penalty = Callable[[Tensor, Tensor], Tensor]  # of captions (m, size) with images (n, size): (m, n)


def retrieval(captions: Tensor, images: Tensor, penalty: Penalty, fold: int | None = None) -> dict[str, float]:
    """Retrieval of images by captions (``image_…``) and of captions by images (``caption_…``).

    Caption and image vectors are ``(captions, size)`` and ``(images, size)``, an equal number of captions an image,
    one image's after the other's. ``fold`` cuts the images into folds of that many, whose results are averaged, and
    leaves out what does not fill one; None, or fewer images than that, ranks all at once. ``_r1``, ``_r5`` and
    ``_r10`` are the shares with rank at most K, ``_recall`` their mean, ``_median_rank`` and ``_mean_rank`` as they
    say, the median rounded down.
    """
    size = min(fold or len(images), len(images))
    per_image = len(captions) // len(images)
    results = []
    for start in range(0, len(images) - size + 1, size):
        described = captions[start * per_image : (start + size) * per_image]
        of_images, of_captions = ranks(penalties(described, images[start : start + size], penalty), per_image)
        results.append(_summary("image", of_images) | _summary("caption", of_captions))
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


def chance(images: int, per_image: int) -> dict[str, float]:
    """What random orders of ``images`` images and their captions give in the mean; named as in :func:`retrieval`."""
    captions = images * per_image
    firsts = [min(cutoff, captions) for cutoff in CUTOFFS]
    all_wrong = [math.comb(captions - per_image, first) / math.comb(captions, first) for first in firsts]
    shares = {"image": [min(1.0, cutoff / images) for cutoff in CUTOFFS], "caption": [1 - none for none in all_wrong]}
    result = {}
    for name, recalls in shares.items():
        result[f"{name}_recall"] = sum(recalls) / len(recalls)
        result |= {f"{name}_r{cutoff}": recall for cutoff, recall in zip(CUTOFFS, recalls, strict=True)}
    # the lowest of k ranks among n has the mean (n + 1) / (k + 1)
    return result | {"image_mean_rank": (images + 1) / 2, "caption_mean_rank": (captions + 1) / (per_image + 1)}


def penalties(captions: Tensor, images: Tensor, penalty: Penalty) -> Tensor:
    """Those of each caption with each image, ``(captions, images)``, computed in blocks."""
    result = captions.new_empty(len(captions), len(images))
    side = max(1, int((BLOCK_BYTES / (images.shape[1] * images.element_size())) ** 0.5))
    for row in range(0, len(captions), side):
        for column in range(0, len(images), side):
            block = penalty(captions[row : row + side], images[column : column + side])
            result[row : row + side, column : column + side] = block
    return result


def ranks(penalties: Tensor, per_image: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks from 1, by rising penalty ``(captions, images)``: of each caption's image, of each image's best caption.

    Among equal penalties it is the mean over all orders: a model that puts everything into one point is as good as
    chance. What is no number comes last.
    """
    penalties = penalties.nan_to_num(nan=torch.inf)
    rows = torch.arange(len(penalties), device=penalties.device)
    own = penalties[rows, rows // per_image]
    of_each = own.view(-1, per_image)
    best = of_each.amin(1)
    of_images = _rank(penalties, own.unsqueeze(1), 1, torch.ones_like(own))
    of_captions = _rank(penalties, best, 0, (of_each == best.unsqueeze(1)).sum(1))  # its own are not its rivals
    return of_images, of_captions


def _rank(penalties: Tensor, right: Tensor, axis: int, own: Tensor) -> np.ndarray:
    """``own``: how many of those that are as good as the right one are right; the first of them counts."""
    better = (penalties < right).sum(axis, dtype=torch.int32)
    equal = (penalties == right).sum(axis, dtype=torch.int32)
    return (1 + better + (equal - own).double() / (own + 1)).cpu().numpy()


def _summary(name: str, ranks: np.ndarray) -> dict[str, float]:
    recalls = {f"{name}_r{cutoff}": float((ranks <= cutoff).mean()) for cutoff in CUTOFFS}
    middle, mean = float(np.floor(np.median(ranks))), float(ranks.mean())
    return {
        f"{name}_recall": float(np.mean(list(recalls.values()))),
        **recalls,
        f"{name}_median_rank": middle,
        f"{name}_mean_rank": mean,
    }
