"""Captioned images: words and ids, five captions per image, and checks of the feature vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.pictures import plain, silent

from rmsexp.data import DataError, captions
from rmsexp.data.captions import EOS, UNK, Picture, Words, encode, pictures, tokenise


def rows(count: int, size: int = 3) -> np.ndarray:
    return np.eye(count, size, dtype=np.float32) + np.eye(count, size, -size, dtype=np.float32)


def splits(train: str, valid: str = "", test: str = "") -> dict[str, list[Words]]:
    """Return the five captions of one image for each split.

    In an argument, slashes separate captions; the last caption is repeated until there are five.
    """
    texts = {"train": train.split("/"), "valid": valid.split("/"), "test": test.split("/")}
    return {
        split: [caption.split() for caption in [*captions, *captions[-1:] * (5 - len(captions))]]
        for split, captions in texts.items()
    }


def features(**images: int) -> dict[str, np.ndarray]:
    return {split: rows(count) for split, count in ({"train": 1, "valid": 1, "test": 1} | images).items()}


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


def test_vocabulary_of_train_and_valid_is_sorted_by_frequency_then_alphabet() -> None:
    encoded = encode(splits("b b c/a", "c c c c/d", "e a/a"), features(), silent)
    # frequencies in train: b 2, c 1, a 4; in valid: c 4, d 4
    assert encoded.words == ["<eos>", "<unk>", "c", "a", "d", "b"]
    assert [list(caption) for caption in encoded.splits["train"].captions][:2] == [[5, 5, 2, EOS], [3, EOS]]
    assert list(encoded.splits["test"].captions[0]) == [UNK, 3, EOS]
    assert encoded.splits["test"].captions.tokens.dtype == np.int32
    assert [len(split) for split in encoded.splits.values()] == [1, 1, 1]


def test_words_of_later_valid_captions_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "VOCABULARY_IMAGES", 1)
    texts = splits("a", "b", "c") | {"valid": [["b"]] * 5 + [["d"]] * 5}
    encoded = encode(texts, features(valid=2), silent)
    assert encoded.words == ["<eos>", "<unk>", "a", "b"]
    assert list(encoded.splits["valid"].captions[5]) == [UNK, EOS]


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
        words = [loaded.words[i] for i in loaded.splits[split].captions[7]]
        assert words == ([f"{2 * number + 1}", "2", "<eos>"] if split != "test" else ["<unk>", "2", "<eos>"])


def test_digest_depends_on_captions_kind_and_images_but_not_on_the_folder(tmp_path: Path) -> None:
    files, images_by_split = [tmp_path / "captions.txt"], album(tmp_path)
    before = pictures("album", images_by_split, files, tmp_path, "descriptor").digest
    again = album(tmp_path / "elsewhere")
    elsewhere = [tmp_path / "elsewhere" / "captions.txt"]
    assert pictures("album", again, elsewhere, tmp_path, "descriptor").digest == before
    assert pictures("album", images_by_split, files, tmp_path, "vgg19").digest != before
    elsewhere[0].write_text("a cat")
    assert pictures("album", again, elsewhere, tmp_path, "descriptor").digest != before
    images_by_split["test"][1].path.write_bytes(b"")
    assert pictures("album", images_by_split, files, tmp_path, "descriptor").digest != before


@pytest.mark.parametrize("change", [lambda captions: captions.pop(), lambda captions: captions[0].clear()])
def test_images_with_too_few_or_empty_captions_are_named(change: Callable[[list[Words]], None], tmp_path: Path) -> None:
    images_by_split = album(tmp_path)
    change(images_by_split["valid"][1].captions)
    with pytest.raises(DataError, match=r"3\.png needs 5 captions"):
        pictures("album", images_by_split, [tmp_path / "captions.txt"], tmp_path, "descriptor")
