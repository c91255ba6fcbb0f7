"""COCO: the Karpathy split and the official annotations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rmsexp.data import DataError, coco
from rmsexp.data.captions import Captions
from rmsexp.data.coco import read_karpathy, read_official


def silent(_: str) -> None: ...


def text(captions: Captions, split: str, number: int) -> str:
    return " ".join(captions.words[i] for i in captions.splits[split].captions[number])


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def draw(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (9, 9, 99)).save(path)


def karpathy_image(number: int, split: str) -> dict[str, Any]:
    part = "val2014" if split in ("val", "restval") else "train2014"
    sentences = [{"tokens": [split, f"{k}"], "raw": f"{split.capitalize()} {k}."} for k in range(5)]
    return {"filepath": part, "filename": f"{number}.jpg", "split": split, "sentences": sentences}


@pytest.fixture
def karpathy(tmp_path: Path) -> Path:
    images = [karpathy_image(*pair) for pair in enumerate(("test", "restval", "train", "val", "restval"))]
    write(tmp_path / "coco" / "dataset_coco.json", {"images": images, "dataset": "coco"})
    for image in images:
        draw(tmp_path / "coco" / image["filepath"] / image["filename"])
    return tmp_path


def test_karpathy_split_has_restval_in_train(karpathy: Path) -> None:
    splits = read_karpathy(karpathy / "coco" / "dataset_coco.json", karpathy)
    names = {split: [picture.path.name for picture in pictures] for split, pictures in splits.items()}
    assert names == {"train": ["1.jpg", "2.jpg", "4.jpg"], "valid": ["3.jpg"], "test": ["0.jpg"]}
    assert splits["train"][0].path == karpathy / "val2014" / "1.jpg"
    loaded = coco.coco(karpathy, "descriptor").load(silent)
    assert [text(loaded, "train", number) for number in (0, 5, 14)] == [
        "restval 0 <eos>",
        "train 0 <eos>",
        "restval 4 <eos>",
    ]
    assert loaded.splits["train"].features.shape == (3, 4096)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[1, 2", "[]", "{}", {"images": [{}]}, {"images": [karpathy_image(0, "spare")]}, {"images": 3}),
    ],
)
def test_file_that_is_not_the_karpathy_split_is_refused(content: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "dataset_coco.json", content)
    with pytest.raises(DataError) as error:
        read_karpathy(path, tmp_path)
    assert str(path) in str(error.value)
    assert str(error.value).count("\n") == 1


def annotations(first: int, count: int) -> dict[str, Any]:
    """Return an official file's content, for ``count`` images with ids from ``first`` on, not sorted by id.

    The image with the id ``first`` has six captions, the others five.
    """
    ids = [first + (3 * number) % count for number in range(count)]
    captions = [(image, k) for k in range(5) for image in ids] + [(first, 5)]
    return {
        "images": [{"id": image, "file_name": f"{image:03}.jpg"} for image in ids],
        "annotations": [
            {"image_id": image, "id": number, "caption": f"Caption {k} of\nimage {image}."}
            for number, (image, k) in enumerate(captions)
        ],
    }


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a ``data.root`` with 5 train and 2 val images; two images of train become our validation split."""
    monkeypatch.setattr(coco, "VALID_IMAGES", 2)
    for part, content in (("train", annotations(0, 5)), ("val", annotations(100, 2))):
        write(tmp_path / "coco" / "annotations" / f"captions_{part}2017.json", content)
        for image in content["images"]:
            draw(tmp_path / "coco" / f"{part}2017" / image["file_name"])
    return tmp_path


def test_official_captions_are_split_by_id_and_tokenised(official: Path) -> None:
    source = coco.coco(official, "descriptor")
    loaded = source.load(silent)
    assert source.name == "COCO, 2017"
    assert {split: len(part) for split, part in loaded.splits.items()} == {"train": 3, "valid": 2, "test": 2}
    assert text(loaded, "train", 5) == "caption 0 of image 1 <eos>"
    assert text(loaded, "valid", 9) == "caption 4 of image 4 <eos>"
    assert text(loaded, "test", 0) == "caption 0 of image <unk> <eos>"


@pytest.mark.parametrize(
    "content",
    ["{", "[]", {"images": []}, {"images": [{"id": 1}], "annotations": []}, {"annotations": [{"image_id": 1}]}],
)
def test_file_without_official_captions_is_refused(content: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "captions_val2017.json", content)
    with pytest.raises(DataError) as error:
        read_official(path, tmp_path)
    assert str(path) in str(error.value)
