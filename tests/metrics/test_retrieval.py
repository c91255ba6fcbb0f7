"""Retrieval metrics against sorting, ties against all orders of equal values, chance against counting; blocks."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.sites import close, draw
from torch import Tensor
from torch.nn import functional as F

from rmsexp.metrics import retrieval as module
from rmsexp.metrics.retrieval import Penalty, penalties, ranks, retrieval
from rmsexp.models.order_embedding import PENALTIES

EITHER = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
DIMENSIONS = 6


def vectors(images: int, per_image: int) -> tuple[Tensor, Tensor]:
    """Return random unit vectors of captions and images."""
    drawn = draw(images * per_image, DIMENSIONS), draw(images, DIMENSIONS, seed=1)
    return F.normalize(drawn[0], dim=1), F.normalize(drawn[1], dim=1)


def sorted_places(matrix: np.ndarray, per_image: int) -> tuple[list[int], list[int]]:
    """Return the rank of each caption's image and of each image's best caption, by sorting; ties are not allowed."""
    image_ranks = [np.argsort(row).tolist().index(i // per_image) + 1 for i, row in enumerate(matrix)]
    caption_ranks = [
        next(place for place, i in enumerate(np.argsort(column), 1) if i // per_image == j)
        for j, column in enumerate(matrix.T)
    ]
    return image_ranks, caption_ranks


@EITHER
@pytest.mark.parametrize("side", [0, 3, 8, 1000])
@pytest.mark.parametrize(("images", "per_image"), [(1, 3), (7, 5), (11, 2), (23, 1)])
def test_ranks_are_places_in_the_sorted_order(
    images: int, per_image: int, side: int, penalty: Penalty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties are computed in blocks of ``side`` captions and ``side`` images, or of one each if ``side`` is 0."""
    captions, image_vectors = vectors(images, per_image)
    monkeypatch.setattr(module, "BLOCK_BYTES", side**2 * DIMENSIONS * 8)
    shapes = []

    def counted(captions: Tensor, images: Tensor) -> Tensor:
        shapes.append((len(captions), len(images)))
        return penalty(captions, images)

    matrix = penalties(captions, image_vectors, counted)
    assert max(shapes) == (min(max(side, 1), images * per_image), min(max(side, 1), images))
    rows = [torch.stack([penalty(s[None], v[None])[0, 0] for v in image_vectors]) for s in captions]
    close(matrix, torch.stack(rows))
    image_ranks, caption_ranks = ranks(matrix, per_image)
    assert (image_ranks.tolist(), caption_ranks.tolist()) == sorted_places(matrix.numpy(), per_image)


def mean_place(values: list[float], right: set[int]) -> float:
    """Return the mean place of the first index in ``right`` after a stable sort, over all orders of the values."""
    places = [
        next(place for place, i in enumerate(sorted(order, key=values.__getitem__), 1) if i in right)
        for order in itertools.permutations(range(len(values)))
    ]
    return sum(places) / len(places)


@pytest.mark.parametrize("values", [1, 2, 3])
@pytest.mark.parametrize(("images", "per_image"), [(5, 1), (3, 2), (2, 3)])
def test_ties_count_with_their_mean_over_all_orders(images: int, per_image: int, values: int) -> None:
    matrix = torch.randint(values, (images * per_image, images), generator=torch.Generator().manual_seed(0)).double()
    image_ranks, caption_ranks = ranks(matrix, per_image)
    for i, rank in enumerate(image_ranks):
        assert rank == pytest.approx(mean_place(matrix[i].tolist(), {i // per_image}))
    for j, rank in enumerate(caption_ranks):
        matching = set(range(j * per_image, (j + 1) * per_image))
        assert rank == pytest.approx(mean_place(matrix[:, j].tolist(), matching))


@EITHER
def test_nan_captions_rank_last_and_change_no_other(penalty: Penalty) -> None:
    captions, image_vectors = vectors(9, 5)
    captions[5:9] = captions[15:20] = math.nan  # four captions of image 1, all of image 3
    image_ranks, caption_ranks = ranks(penalties(captions, image_vectors, penalty), 5)
    # 36 captions are finite. The other nine tie: five of image 3, whose first one sets the rank, and four of image 1.
    assert caption_ranks[3] == pytest.approx(1 + 36 + 4 / 6)
    penalties_of_image_1 = penalty(captions, image_vectors[1:2])
    assert caption_ranks[1] == 1 + (penalties_of_image_1 < penalties_of_image_1[9]).sum()
    finite = captions.isfinite().all(1).numpy()
    assert (image_ranks[~finite] == 5).all()  # all nine images tie: the mean rank is 5
    close(image_ranks[finite], ranks(penalties(captions.nan_to_num(1.0), image_vectors, penalty), 5)[0][finite])


def test_the_summary_by_hand() -> None:
    """A match of rank r has the penalty r - 0.5; the other candidates have the penalties 1 to 11."""
    expected = [12, 1, 5, 10, 1, 2, 6, 5, 11, 7, 10, 12]
    matrix = torch.empty(12, 12, dtype=torch.float64)
    for i, rank in enumerate(expected):
        matrix[i, i] = rank - 0.5
        matrix[i, torch.arange(12) != i] = torch.arange(1.0, 12.0, dtype=torch.float64)
    summary = {"recall": 16 / 36, "r1": 2 / 12, "r5": 5 / 12, "r10": 9 / 12, "median_rank": 6, "mean_rank": 82 / 12}
    for kind, values in (("image", matrix), ("caption", matrix.T)):
        places = torch.arange(12, dtype=torch.float64).unsqueeze(1)  # caption i and image j have penalty values[i, j]
        results = retrieval(places, places, lambda c, i, of=values: of[c[:, 0].long()][:, i[:, 0].long()])
        assert set(results) == {f"{kind}_{name}" for name in summary for kind in ("image", "caption")}
        assert {name: results[f"{kind}_{name}"] for name in summary} == pytest.approx(summary)


@EITHER
@pytest.mark.parametrize(("fold", "folds"), [(2, 3), (3, 2), (6, 1), (7, 1), (None, 1)])
def test_folds_are_averaged(fold: int | None, folds: int, penalty: Penalty) -> None:
    captions, image_vectors = vectors(6, 3)
    parts = zip(captions.chunk(folds), image_vectors.chunk(folds), strict=True)
    expected = [retrieval(captions, images, penalty) for captions, images in parts]
    assert len(expected) == folds
    results = retrieval(captions, image_vectors, penalty, fold)
    means = {name: np.mean([fold_results[name] for fold_results in expected]) for name in results}
    assert results == pytest.approx(means)
    assert (results == retrieval(captions, image_vectors, penalty)) == (folds == 1)
