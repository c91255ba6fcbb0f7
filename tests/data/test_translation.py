"""Encoded text: overlong training pairs are dropped or cut, training text is stored; held-out splits are complete."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers.parallel_text import corpus, phrases

from rmsexp.data import DataError, subwords, translation
from rmsexp.data.parallel import Corpus, Pairs
from rmsexp.data.sequences import Sequences
from rmsexp.data.subwords import EOS, TextOptions
from rmsexp.data.translation import Translation, prepare

LIMIT = 17  # largest number of subwords of a side; some of the phrases have more


def options(max_length: int = LIMIT, overlong: str = "drop", vocabulary: int = 120) -> TextOptions:
    return TextOptions("sentencepiece", vocabulary, 0, max_length, overlong)


def splits(**replacements: Pairs) -> Mapping[str, Pairs]:
    """Return splits with blank lines in train and valid, on one side or both. Arguments replace whole splits."""
    sources, targets = phrases()
    valid = (["", "the old gate", " ", "the quiet bridge. " * 9], ["", "", "die Straße", "die stille Brücke. " * 9])
    valid = (valid[0] + sources[:5], valid[1] + targets[:5])
    train = (["", "the gate", *sources], ["die Nacht", "  ", *targets])
    return {"train": train, "valid": valid, "test": (sources[:7], targets[:7]), **replacements}


def run(
    cache: Path, text_options: TextOptions | None = None, text: Corpus | None = None
) -> tuple[Translation, list[str]]:
    reports: list[str] = []
    return prepare(text or corpus(splits()), text_options or options(), cache, reports.append), reports


def rows(sequences: Sequences) -> list[list[int]]:
    return [sequences[i].tolist() for i in range(len(sequences))]


def test_every_pair_is_decoded_unchanged_and_ends_in_eos(tmp_path: Path) -> None:
    result, _ = run(tmp_path, options(1000))
    for side, codec, lines in zip(("source", "target"), (result.source, result.target), phrases(), strict=True):
        sequences: Sequences = getattr(result.train, side)
        assert len(sequences) == len(lines)
        assert all(row[-1] == EOS and EOS not in row[:-1] for row in rows(sequences))
        assert codec.decode(rows(sequences)) == lines
        assert (sequences.tokens[:].dtype, sequences.offsets.dtype) == (np.int32, np.int64)
        assert sequences.lengths.tolist() == [len(ids) + 1 for ids in codec.encode(lines)]


def lengths(result: Translation) -> np.ndarray:
    """Return the number of subwords of each phrase, without EOS; (side, pair)."""
    return np.array([[len(ids) for ids in result.source.encode(lines)] for lines in phrases()])


def test_longer_pairs_are_dropped_from_the_training_text_alone_and_counted(tmp_path: Path) -> None:
    result, reports = run(tmp_path)
    fits = np.all(lengths(result) <= LIMIT, axis=0)
    assert (lengths(result)[:, fits].max(), 0 < fits.sum() < 225) == (LIMIT, True)
    expected = [line for line, fit in zip(phrases()[1], fits, strict=True) if fit]
    assert result.target.decode(rows(result.train.target)) == expected
    dropped = int((~fits).sum())
    assert len(result.train.source) == fits.sum()
    assert reports[1] == (
        f"encoded 227 pairs: {225 - dropped} kept, 2 with an empty side, {dropped} longer than {LIMIT} subwords; "
        "0 unknown subwords"
    )
    assert list(result.held_out) == ["valid", "test"]  # which are complete
    valid = result.held_out["valid"]
    assert (valid.sources, valid.references) == splits()["valid"]
    assert len(valid.pairs.source) == len(valid.pairs.target) == 9
    assert valid.pairs.source[0].tolist() == valid.pairs.source[2].tolist() == [EOS]
    assert valid.pairs.source.lengths[3] > LIMIT + 1
    assert result.source.decode(rows(valid.pairs.source))[3:] == [line.strip() for line in valid.sources[3:]]


def test_longer_pairs_are_cut_on_both_sides(tmp_path: Path) -> None:
    result, reports = run(tmp_path, options(overlong="cut"))
    cut = np.minimum(lengths(result), LIMIT) + 1
    assert np.array_equal([result.train.source.lengths, result.train.target.lengths], cut)
    assert all(row[-1] == EOS for row in rows(result.train.source))
    longer = int((lengths(result) > LIMIT).any(axis=0).sum())
    assert f"225 kept, 2 with an empty side, {longer} cut to {LIMIT} subwords;" in reports[1]


def test_text_is_encoded_once_for_the_same_subwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of sentencepiece may learn other subwords from the same text."""
    first, _ = run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(translation, "_sequences", None)  # anything encoded now would fail
        again, reports = run(tmp_path)
    assert len(reports) == 2
    for encoded, stored in ((first.train, again.train), (first.held_out["valid"].pairs, again.held_out["valid"].pairs)):
        assert rows(encoded.source) == rows(stored.source)
        assert rows(encoded.target) == rows(stored.target)
    assert not again.train.source.tokens.flags.writeable
    shutil.rmtree(tmp_path / "subwords")
    learn = subwords.learn_pieces
    monkeypatch.setattr(
        subwords, "learn_pieces", lambda lines, *rest, **ids: learn(reversed(list(lines)[40:]), *rest, **ids)
    )
    other, reports = run(tmp_path)
    assert any(line.startswith("encoded 227 pairs") for line in reports)
    assert other.subwords != first.subwords
    assert other.source.decode(rows(other.held_out["test"].pairs.source)) == other.held_out["test"].sources


def test_chunks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = run(tmp_path / "whole")
    monkeypatch.setattr(translation, "CHUNK", 50)
    chunked, reports = run(tmp_path / "chunked")
    assert np.array_equal(whole.train.target.tokens[:], chunked.train.target.tokens[:])
    assert np.array_equal(whole.train.target.offsets, chunked.train.target.offsets)
    assert len([line for line in reports if line.startswith("encoded")]) == 5


@pytest.mark.parametrize(("overlong", "long"), [("drop", []), ("cut", [3])])
def test_cross_entropy_skips_pairs_that_training_drops(overlong: str, long: list[int], tmp_path: Path) -> None:
    result, reports = run(tmp_path, options(23, overlong))
    scored = result.held_out["valid"].scored
    assert scored.dtype == np.int64
    assert result.held_out["valid"].first(4).scored.tolist() == long
    fits = np.all(lengths(result)[:, :5] <= 23, axis=0)
    assert fits.tolist() == [True, False, True, True, True]  # the first has 23 subwords
    assert scored.tolist() == long + [4 + i for i in range(5) if overlong == "cut" or fits[i]]
    reasons = "empty" if overlong == "cut" else "empty, or longer than 23 subwords"
    assert f"valid: the loss leaves out {9 - len(scored)} of 9 pairs ({reasons})" in reports


ONE_SIDED = (["", "a gate"] * 99, ["die Nacht", ""] * 99)


@pytest.mark.parametrize(
    ("replacements", "text_options", "message"),
    [
        ({}, options(1), r"No training pair of phrases en-de is left"),
        ({"train": ONE_SIDED}, options(vocabulary=15), r"is left: each has an empty side or is longer"),
        ({"train": ONE_SIDED}, options(vocabulary=15, overlong="cut"), r"is left: each has an empty side\.\nRepair"),
        ({"test": ONE_SIDED}, options(), r"No pair of the test split of phrases en-de can be scored"),
    ],
    ids=["too long", "one-sided", "one-sided, cut", "held out"],
)
def test_split_without_pairs_is_refused(
    replacements: dict[str, Pairs], text_options: TextOptions, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        run(tmp_path, text_options, corpus(splits(**replacements)))
