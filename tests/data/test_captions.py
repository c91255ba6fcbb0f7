"""Captioned images: words and ids, five captions per image, and the files of Flickr8k and COCO."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.pictures import plain, silent

from rmsexp.data import DataError, captions
from rmsexp.data.captions import EOS, UNK, Captions, Picture, Words, coco, encode, flickr8k, pictures, tokenise


def splits(train: str, valid: str = "", test: str = "") -> dict[str, list[Words]]:
    """Return the five captions of each image of each split.

    In an argument, bars separate images and slashes their captions; the last is repeated until there are five.
    """
    images = {"train": train.split("|"), "valid": valid.split("|"), "test": test.split("|")}
    return {
        split: [caption.split() for text in texts for caption in (text.split("/") + text.split("/")[-1:] * 4)[:5]]
        for split, texts in images.items()
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man, on a dirt-road.", "a man on a dirtroad"),
        ("Two  dogs'\ttoys\n#2 ", "two dogs toys 2"),
        ("A café_bar; Élan", "a cafébar élan"),
        (" . ", ""),
    ],
)
def test_words_are_lower_case_letters_and_digits(text: str, words: str) -> None:
    assert tokenise(text) == words.split()


def test_vocabulary_of_train_and_valid_is_sorted_by_frequency_then_alphabet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "VOCABULARY_IMAGES", 1)
    texts = splits("b b c/a", "c c c c/d|f", "e a/a")
    found = encode(texts, {split: np.eye(len(lines) // 5, 3) for split, lines in texts.items()}, silent)
    # frequencies in train: b 2, c 1, a 4; in the first image of valid: c 4, d 4
    assert found.words == ["<eos>", "<unk>", "c", "a", "d", "b"]
    assert [list(caption) for caption in found.splits["train"].captions][:2] == [[5, 5, 2, EOS], [3, EOS]]
    assert list(found.splits["valid"].captions[5]) == [UNK, EOS]
    assert list(found.splits["test"].captions[0]) == [UNK, 3, EOS]
    assert found.splits["test"].captions.tokens.dtype == np.int32
    assert [len(split) for split in found.splits.values()] == [1, 2, 1]


def album(folder: Path, captions: int = 5) -> dict[str, list[Picture]]:
    """Write six images and a file of captions, and return three splits of two images each.

    ``captions`` is the number of captions per image. Caption k of image i has the words i and k.
    """
    folder.mkdir(exist_ok=True)
    (folder / "captions.txt").write_text("a dog")
    images_by_split: dict[str, list[Picture]] = {}
    for number, split in enumerate(("train", "train", "valid", "valid", "test", "test")):
        path = folder / f"{number}.png"
        plain(40 * number, 0, 0).save(path)
        images_by_split.setdefault(split, []).append(Picture(path, [[f"{number}", f"{k}"] for k in range(captions)]))
    return images_by_split


def test_source_of_pictures_computes_their_features(tmp_path: Path) -> None:
    files = [tmp_path / "captions.txt"]
    source = pictures("album", album(tmp_path, 7), files, tmp_path, "descriptor")
    assert (source.name, source.builtin) == ("album", False)
    assert not (tmp_path / "features").exists()
    loaded = source.load(silent)
    assert len(list((tmp_path / "features" / "descriptor").glob("*/features.npy"))) == 3
    for number, split in enumerate(("train", "valid", "test")):
        assert loaded.splits[split].features.shape == (2, 4096)
        assert len(loaded.splits[split].captions) == 10
        unknown = split == "test"
        assert text(loaded, split, 7) == ("<unk> 2 <eos>" if unknown else f"{2 * number + 1} 2 <eos>")


def test_digest_depends_on_captions_kind_and_images_but_not_on_the_folder(tmp_path: Path) -> None:
    def digest(folder: Path, images: dict[str, list[Picture]], kind: str = "descriptor") -> str:
        return pictures("album", images, [folder / "captions.txt"], tmp_path, kind).digest

    images, again, other = album(tmp_path), album(tmp_path / "elsewhere"), tmp_path / "elsewhere"
    before = digest(tmp_path, images)
    assert digest(other, again) == before != digest(tmp_path, images, "vgg19")
    (other / "captions.txt").write_text("a cat")
    assert digest(other, again) != before
    images["test"][1].path.write_bytes(b"")
    assert digest(tmp_path, images) != before


@pytest.mark.parametrize("change", [lambda captions: captions.pop(), lambda captions: captions[0].clear()])
def test_images_with_too_few_or_empty_captions_are_named(change: Callable[[list[Words]], None], tmp_path: Path) -> None:
    images_by_split = album(tmp_path)
    change(images_by_split["valid"][1].captions)
    with pytest.raises(DataError, match=r"3\.png needs 5 captions"):
        pictures("album", images_by_split, [tmp_path / "captions.txt"], tmp_path, "descriptor")


SPLITS = {"train": ["a.jpg", "b.jpg"], "dev": ["c.jpg"], "test": ["d.jpg"]}


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    """Return a ``data.root`` with four images in the splits.

    Image a.jpg has six captions, the others five. The file of captions also has one of e.jpg.1, which is in no split.
    """
    text, images = tmp_path / "flickr8k" / "Flickr8k_text", tmp_path / "flickr8k" / "Flicker8k_Dataset"
    text.mkdir(parents=True)
    images.mkdir()
    lines = [f"{letter}.jpg#{k}\tA {letter} , number {k} ." for letter in "dabc" for k in range(5)]
    lines += ["e.jpg.1#0\tOdd one", "a.jpg#5\tToo many"]
    (text / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    for split, names in SPLITS.items():
        (text / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            plain(ord(name[0]), 0, 0).save(images / name)
    return tmp_path


def test_splits_have_their_images_in_the_order_of_the_lists(flickr: Path) -> None:
    source = flickr8k(flickr, "descriptor")
    assert (source.name, source.builtin) == ("Flickr8k", False)
    loaded = source.load(silent)
    assert {split: len(part) for split, part in loaded.splits.items()} == {"train": 2, "valid": 1, "test": 1}
    assert text(loaded, "train", 0) == "a a number 0 <eos>"
    assert text(loaded, "train", 9) == "a b number 4 <eos>"
    assert text(loaded, "valid", 2) == "a c number 2 <eos>"
    assert text(loaded, "test", 1) == "a <unk> number 1 <eos>"  # "d" occurs in test only
    assert not {"odd", "many"} & set(loaded.words)


@pytest.mark.parametrize(
    "line", ["no tab at all", "a.jpg\tno number", "a.jpg#x\tno number", "a.jpg#1\t", "", "#1\tno name"]
)
def test_malformed_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "token.txt"
    path.write_text(f"a.jpg#0\tfine\n{line}\na.jpg#2\tfine\n")
    with pytest.raises(DataError) as error:
        captions.read_captions(path)
    assert f"{path}, line 2: not a caption: {line!r}" in str(error.value)


@pytest.mark.parametrize(
    ("listed", "lost", "message"),
    [
        ("c.jpg\nz.jpg\n", "", r"^z\.jpg needs 5 captions"),
        ("c.jpg\n", "Flicker8k_Dataset/c.jpg", r"/flickr8k/Flicker8k_Dataset/c\.jpg cannot be read \(No such file"),
        ("\n", "", "^The valid split of Flickr8k has no images"),
        (
            "c.jpg\n",
            "Flickr8k_text/Flickr8k.token.txt",
            r"^Flickr8k is incomplete: in .*flickr8k there is no Flickr8k_t",
        ),
    ],
)
def test_incomplete_files_of_flickr8k_are_named(listed: str, lost: str, message: str, flickr: Path) -> None:
    (flickr / "flickr8k" / "Flickr8k_text" / "Flickr_8k.devImages.txt").write_text(listed)
    if lost:
        (flickr / "flickr8k" / lost).unlink()
    with pytest.raises(DataError, match=message) as error:
        flickr8k(flickr, "descriptor")
    assert str(error.value).count("\n") == 1


def text(captions: Captions, split: str, number: int) -> str:
    return " ".join(captions.words[i] for i in captions.splits[split].captions[number])


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def karpathy_image(number: int, split: str) -> dict[str, Any]:
    part = "val2014" if split in ("val", "restval") else "train2014"
    sentences = [{"tokens": [split, f"{k}"], "raw": f"{split.capitalize()} {k}."} for k in range(5)]
    return {"filepath": part, "filename": f"{number}.jpg", "split": split, "sentences": sentences}


def test_karpathy_split_has_restval_in_train(tmp_path: Path) -> None:
    images = [karpathy_image(*pair) for pair in enumerate(("test", "restval", "train", "val", "restval"))]
    file = write(tmp_path / "coco" / "dataset_coco.json", {"images": images, "dataset": "coco"})
    for image in images:
        (tmp_path / "coco" / image["filepath"]).mkdir(exist_ok=True)
        plain(9, 9, 99).save(tmp_path / "coco" / image["filepath"] / image["filename"])
    splits = captions.read_karpathy(file, tmp_path)
    names = {split: [picture.path.name for picture in pictures] for split, pictures in splits.items()}
    assert names == {"train": ["1.jpg", "2.jpg", "4.jpg"], "valid": ["3.jpg"], "test": ["0.jpg"]}
    assert splits["train"][0].path == tmp_path / "val2014" / "1.jpg"
    loaded = coco(tmp_path, "descriptor").load(silent)
    expected = ["restval 0 <eos>", "train 0 <eos>", "restval 4 <eos>"]
    assert [text(loaded, "train", number) for number in (0, 5, 14)] == expected
    assert loaded.splits["train"].features.shape == (3, 4096)


def annotations(first: int, count: int) -> dict[str, Any]:
    """Return an official file's content, for ``count`` images with ids from ``first`` on, not sorted by id.

    The first image has six captions, the others five.
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


def test_official_captions_are_split_by_id_and_tokenised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the five training images become our validation split."""
    monkeypatch.setattr(captions, "VALID_IMAGES", 2)
    for part, content in (("train", annotations(0, 5)), ("val", annotations(100, 2))):
        write(tmp_path / "coco" / "annotations" / f"captions_{part}2017.json", content)
        (tmp_path / "coco" / f"{part}2017").mkdir()
        for image in content["images"]:
            plain(9, 9, 99).save(tmp_path / "coco" / f"{part}2017" / image["file_name"])
    source = coco(tmp_path, "descriptor")
    loaded = source.load(silent)
    assert source.name == "COCO, 2017"
    assert {split: len(part) for split, part in loaded.splits.items()} == {"train": 3, "valid": 2, "test": 2}
    assert text(loaded, "train", 5) == "caption 0 of image 1 <eos>"
    assert text(loaded, "valid", 9) == "caption 4 of image 4 <eos>"
    assert text(loaded, "test", 0) == "caption 0 of image <unk> <eos>"


@pytest.mark.parametrize(
    ("read", "contents"),
    [
        (captions.read_karpathy, ["", "[1, 2", "[]", "{}", {"images": [{}]}, {"images": [karpathy_image(0, "spare")]}]),
        (
            captions.read_official,
            ["{", "[]", {"images": []}, {"images": [{"id": 1}], "annotations": []}, {"annotations": [{"image_id": 1}]}],
        ),
    ],
)
def test_malformed_files_of_coco_are_named(
    read: Callable[[Path, Path], Any], contents: list[Any], tmp_path: Path
) -> None:
    for content in contents:
        path = write(tmp_path / "captions.json", content)
        with pytest.raises(DataError) as error:
            read(path, tmp_path)
        assert str(path) in str(error.value)
        assert str(error.value).count("\n") == 1
