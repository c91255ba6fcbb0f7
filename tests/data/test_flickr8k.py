"""Flickr8k: the layout of its files, their lines, and messages about missing parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rmsexp.data import DataError
from rmsexp.data.flickr8k import flickr8k, read_captions

SPLITS = {"train": ["a.jpg", "b.jpg"], "dev": ["c.jpg"], "test": ["d.jpg"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
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
            Image.new("RGB", (20, 20), (ord(name[0]), 0, 0)).save(images / name)
    return tmp_path


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as error:
        flickr8k(root, "descriptor")
    message = str(error.value)
    assert message.count("\n") == 1
    return message


def test_splits_have_their_images_in_the_order_of_the_lists(root: Path) -> None:
    source = flickr8k(root, "descriptor")
    assert (source.name, source.builtin) == ("Flickr8k", False)
    loaded = source.load(lambda _: None)
    assert {split: len(part) for split, part in loaded.splits.items()} == {"train": 2, "valid": 1, "test": 1}

    def text(split: str, number: int) -> str:
        return " ".join(loaded.words[i] for i in loaded.splits[split].captions[number])

    assert text("train", 0) == "a a number 0 <eos>"
    assert text("train", 9) == "a b number 4 <eos>"
    assert text("valid", 2) == "a c number 2 <eos>"
    assert text("test", 1) == "a <unk> number 1 <eos>"  # "d" occurs in test only
    assert not {"odd", "many"} & set(loaded.words)


@pytest.mark.parametrize(
    "line", ["no tab at all", "a.jpg\tno number", "a.jpg#x\tno number", "a.jpg#1\t", "", "#1\tno name"]
)
def test_malformed_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "token.txt"
    path.write_text(f"a.jpg#0\tfine\n{line}\na.jpg#2\tfine\n")
    with pytest.raises(DataError) as error:
        read_captions(path)
    assert f"{path}, line 2: not a caption: {line!r}" in str(error.value)


def test_image_of_a_split_without_captions_or_file_is_named(root: Path) -> None:
    listed = root / "flickr8k" / "Flickr8k_text" / "Flickr_8k.devImages.txt"
    listed.write_text("c.jpg\nz.jpg\n")
    assert "z.jpg needs 5 captions" in refusal(root)
    listed.write_text("c.jpg\n")
    (root / "flickr8k" / "Flicker8k_Dataset" / "c.jpg").unlink()
    assert f"{root / 'flickr8k' / 'Flicker8k_Dataset' / 'c.jpg'} cannot be read (No such file" in refusal(root)
    listed.write_text("")
    assert "The valid split of Flickr8k has no images" in refusal(root)
