"""Retrieval against sorting, ties against all their orders, chance against counting; what it takes of memory."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.sites import close, draw
from torch import Tensor
from torch.nn import functional as F

from rmsexp.metrics import retrieval as module
from rmsexp.metrics.retrieval import CUTOFFS, Penalty, chance, penalties, ranks, retrieval
from rmsexp.models.order_embedding import PENALTIES

EITHER = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
DIMENSIONS = 6


def vectors(images: int, per_image: int) -> tuple[Tensor, Tensor]:
    """Captions and images, random unit vectors."""
    drawn = draw(images * per_image, DIMENSIONS), draw(images, DIMENSIONS, seed=1)
    return F.normalize(drawn[0], dim=1), F.normalize(drawn[1], dim=1)


def looked_up(matrix: Tensor) -> tuple[Tensor, Tensor, Penalty]:
    """Captions, images and a penalty with which ``matrix``, (captions, images), are the penalties."""
    captions, images = (torch.arange(length, dtype=torch.float64).unsqueeze(1) for length in matrix.shape)
    return captions, images, lambda c, i: matrix[c[:, 0].long()][:, i[:, 0].long()]


# Ranks


def sorted_places(matrix: np.ndarray, per_image: int) -> tuple[list[int], list[int]]:
    """Of each caption's image and of each image's first caption, where no two are alike."""
    of_images = [np.argsort(row).tolist().index(i // per_image) + 1 for i, row in enumerate(matrix)]
    of_captions = [
        next(place for place, i in enumerate(np.argsort(column), 1) if i // per_image == j)
        for j, column in enumerate(matrix.T)
    ]
    return of_images, of_captions


@EITHER
@pytest.mark.parametrize("side", [0, 3, 8, 1000])
@pytest.mark.parametrize(("images", "per_image"), [(1, 3), (7, 5), (11, 2), (23, 1)])
def test_ranks_are_places_in_the_sorted_order(
    images: int, per_image: int, side: int, penalty: Penalty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of ``side`` captions and images, at least one, which need not fill the matrix."""
    described, shown = vectors(images, per_image)
    monkeypatch.setattr(module, "BLOCK_BYTES", side**2 * DIMENSIONS * 8)
    shapes = []

    def counted(captions: Tensor, images: Tensor) -> Tensor:
        shapes.append((len(captions), len(images)))
        return penalty(captions, images)

    matrix = penalties(described, shown, counted)
    assert max(shapes) == (min(max(side, 1), images * per_image), min(max(side, 1), images))
    close(matrix, torch.stack([torch.stack([penalty(s[None], v[None])[0, 0] for v in shown]) for s in described]))
    of_images, of_captions = ranks(matrix, per_image)
    assert (of_images.tolist(), of_captions.tolist()) == sorted_places(matrix.numpy(), per_image)


def mean_place(values: list[float], right: set[int]) -> float:
    """Of the first of ``right``, over all orders in which a stable sort may find the values."""
    places = [
        next(place for place, i in enumerate(sorted(order, key=values.__getitem__), 1) if i in right)
        for order in itertools.permutations(range(len(values)))
    ]
    return sum(places) / len(places)


@pytest.mark.parametrize("values", [1, 2, 3])
@pytest.mark.parametrize(("images", "per_image"), [(5, 1), (3, 2), (2, 3)])
def test_ties_count_with_their_mean_over_all_orders(images: int, per_image: int, values: int) -> None:
    matrix = torch.randint(values, (images * per_image, images), generator=torch.Generator().manual_seed(0)).double()
    of_images, of_captions = ranks(matrix, per_image)
    for i, rank in enumerate(of_images):
        assert rank == pytest.approx(mean_place(matrix[i].tolist(), {i // per_image}))
    for j, rank in enumerate(of_captions):
        own = set(range(j * per_image, (j + 1) * per_image))
        assert rank == pytest.approx(mean_place(matrix[:, j].tolist(), own))


@EITHER
def test_an_image_s_own_captions_are_not_rivals(penalty: Penalty) -> None:
    """Images of one coordinate each, whose penalties are exact, and five captions that are their image's vector."""
    images = torch.eye(9)
    for rank in ranks(penalties(images.repeat_interleave(5, 0), images, penalty), 5):
        assert (rank == 1).all()


@EITHER
def test_images_with_one_vector_share_their_ranks(penalty: Penalty) -> None:
    images = torch.eye(9)
    images[4] = images[2]
    of_images, of_captions = ranks(penalties(images.repeat_interleave(5, 0), images, penalty), 5)
    twins = np.isin(np.arange(9), (2, 4))
    assert np.array_equal(of_images, np.where(twins.repeat(5), 1.5, 1.0))
    assert of_captions == pytest.approx(np.where(twins, 1 + 5 / 6, 1.0))  # the first of five among ten


@EITHER
def test_one_vector_for_everything_is_as_good_as_chance(penalty: Penalty) -> None:
    results = retrieval(torch.ones(200, 3), torch.ones(40, 3), penalty)
    expected = chance(40, 5)
    for kind in ("image", "caption"):
        assert results[f"{kind}_mean_rank"] == pytest.approx(expected[f"{kind}_mean_rank"])
        assert results[f"{kind}_recall"] <= expected[f"{kind}_recall"]


# What is no number


@EITHER
def test_an_image_that_is_no_number_comes_last_and_changes_no_other(penalty: Penalty) -> None:
    described, shown = vectors(9, 5)
    lost = torch.zeros(9, dtype=torch.bool).index_fill(0, torch.tensor([3]), True)
    shown[lost] = math.nan
    of_images, _ = ranks(penalties(described, shown, penalty), 5)
    mine = lost.repeat_interleave(5)
    assert (of_images[mine] == 9).all()
    others, _ = ranks(penalties(described[~mine], shown[~lost], penalty), 5)
    assert np.array_equal(of_images[~mine], others)


@EITHER
def test_captions_that_are_no_number_come_last_and_change_no_other(penalty: Penalty) -> None:
    described, shown = vectors(9, 5)
    described[5:9] = described[15:20] = math.nan  # four captions of image 1, all of image 3
    of_images, of_captions = ranks(penalties(described, shown, penalty), 5)
    assert of_captions[3] == pytest.approx(1 + 36 + 4 / 6)  # the first of its five and the lost four of image 1
    assert of_captions[1] == 1 + (penalty(described, shown[1:2]) < penalty(described[9:10], shown[1:2])).sum()
    whole = described.isfinite().all(1).numpy()
    assert (of_images[~whole] == 5).all()  # all images are lost to them: the middle of 9
    close(of_images[whole], ranks(penalties(described.nan_to_num(1.0), shown, penalty), 5)[0][whole])


@EITHER
def test_a_model_that_is_no_number_retrieves_nothing(penalty: Penalty) -> None:
    results = retrieval(torch.full((200, 3), math.nan), torch.full((40, 3), math.nan), penalty)
    for kind in ("image", "caption"):
        assert results[f"{kind}_recall"] == results[f"{kind}_r10"] == 0
        assert results[f"{kind}_mean_rank"] == pytest.approx(chance(40, 5)[f"{kind}_mean_rank"])


# Summaries


def test_the_summary_by_hand() -> None:
    """Each right one's penalty lies just below that of the rival that it comes before."""
    expected = [12, 1, 5, 10, 1, 2, 6, 5, 11, 7, 10, 12]
    matrix = torch.empty(12, 12, dtype=torch.float64)
    for i, rank in enumerate(expected):
        matrix[i, i] = rank - 0.5
        matrix[i, torch.arange(12) != i] = torch.arange(1.0, 12.0, dtype=torch.float64)
    summary = {"recall": 16 / 36, "r1": 2 / 12, "r5": 5 / 12, "r10": 9 / 12, "median_rank": 6, "mean_rank": 82 / 12}
    for kind, of in (("image", matrix), ("caption", matrix.T)):
        results = retrieval(*looked_up(of))
        assert set(results) == {f"{kind}_{name}" for name in summary for kind in ("image", "caption")}
        assert {name: results[f"{kind}_{name}"] for name in summary} == pytest.approx(summary)


@EITHER
@pytest.mark.parametrize(("fold", "folds"), [(2, 3), (3, 2), (6, 1), (7, 1), (None, 1)])
def test_folds_are_averaged(fold: int | None, folds: int, penalty: Penalty) -> None:
    described, shown = vectors(6, 3)
    parts = zip(described.chunk(folds), shown.chunk(folds), strict=True)
    expected = [retrieval(captions, images, penalty) for captions, images in parts]
    assert len(expected) == folds
    results = retrieval(described, shown, penalty, fold)
    assert results == pytest.approx({name: np.mean([one[name] for one in expected]) for name in results})
    assert (results == retrieval(described, shown, penalty)) == (folds == 1)


# Chance


@pytest.mark.parametrize(("images", "per_image"), [(1, 5), (2, 5), (3, 2), (4, 3), (5, 2), (12, 1), (30, 2)])
def test_chance_is_the_mean_over_all_orders(images: int, per_image: int) -> None:
    """Of an image's captions only the places matter, each set of them as likely."""
    places = {
        "image": list(range(1, images + 1)),
        "caption": [min(taken) for taken in itertools.combinations(range(1, images * per_image + 1), per_image)],
    }
    expected = {}
    for kind, ranked in places.items():
        shares = {f"{kind}_r{cutoff}": np.mean([rank <= cutoff for rank in ranked]) for cutoff in CUTOFFS}
        expected |= shares | {f"{kind}_recall": np.mean(list(shares.values())), f"{kind}_mean_rank": np.mean(ranked)}
    assert chance(images, per_image) == pytest.approx(expected)


@EITHER
def test_random_vectors_are_as_good_as_chance(penalty: Penalty) -> None:
    """Within four standard errors, as if ranks were independent."""
    images, per_image = 400, 5
    described, shown = draw(images * per_image, 64), draw(images, 64, seed=1)
    results = retrieval(described, shown, penalty)
    for name, expected in chance(images, per_image).items():
        kind, _, measure = name.partition("_")
        count = images if kind == "caption" else images * per_image
        if measure == "mean_rank":  # uniform; or the lowest of five, nearly exponential
            deviation = images / 12**0.5 if kind == "image" else expected
        else:
            deviation = (expected * (1 - expected)) ** 0.5
        assert results[name] == pytest.approx(expected, abs=4 * deviation / count**0.5), name


# Memory

PEAK = """
import torch
from pathlib import Path
from rmsexp.metrics.retrieval import retrieval
from rmsexp.models.order_embedding import order_penalty

def peak():  # not ru_maxrss, which starts with that of the process that started this one
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

torch.set_num_threads(1)
described, shown = torch.rand(15_000, 8), torch.rand(3_000, 8)
retrieval(described[:50], shown[:10], order_penalty)  # loads what is loaded late
before = peak()
retrieval(described, shown, order_penalty)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranking_takes_less_than_three_times_its_penalties() -> None:
    """So that 25,000 captions and 5,000 images at once, 0.5 GB, take less than 2 GiB with all libraries."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 3 * 15_000 * 3_000 * 4
