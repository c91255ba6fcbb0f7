"""Subwords are learnt once and convert text to ids and back; those of moses_bpe equal the original tools' subwords."""

import argparse
import contextlib
import io
import pickle
from collections import Counter
from pathlib import Path

import pytest
from helpers.parallel_text import corpus, phrases

from rmsexp.data import parallel, subwords
from rmsexp.data.parallel import Pairs
from rmsexp.data.subwords import EOS, PAD, UNK, Codec, TextOptions, learnt
from rmsexp.system import cores

KINDS = [
    TextOptions("sentencepiece", 120, 0),
    TextOptions("moses_bpe", 90, 0),
    TextOptions("moses_bpe", 90, 51),  # some subwords occur 51 times, others less often
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all tests of this module share, so that each of KINDS is learnt only once."""
    return tmp_path_factory.mktemp("subwords")


def learn(options: TextOptions, cache: Path, pairs: Pairs | None = None, digest: str = "a") -> tuple[Codec, Codec]:
    return learnt(corpus({"train": pairs or phrases()}, digest), options, cache, lambda _: None)[:2]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_text_is_restored_from_ids_and_known_subwords_have_ids_above_the_reserved_ones(
    options: TextOptions, cache: Path
) -> None:
    for codec, lines in zip(learn(options, cache), phrases(), strict=True):
        ids = codec.encode(lines)
        assert {i for line in ids for i in line} <= set(range(3, codec.size))
        expected = lines if options.kind == "sentencepiece" else [line.replace("\u2013", "-") for line in lines]
        assert codec.decode([[*line, EOS, PAD, PAD] for line in ids]) == expected
        assert codec.encode(["", " \t "]) == [[], []]
        assert UNK in codec.encode(["ж"])[0]
        assert "⁇" in codec.decode([[UNK]])[0]
        assert codec.decode([[], [PAD, EOS]]) == ["", ""]
        assert codec.encode([]) == codec.decode([]) == []


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_subwords_are_learnt_once_and_are_the_same_when_loaded(
    options: TextOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not depend on the number of threads and of parts, and another process encodes alike."""
    reports: list[str] = []
    train = corpus({"train": phrases()})
    first = learnt(train, options, tmp_path, reports.append)
    assert reports[0] == f"learning {options.vocabulary} subwords (once)"
    reports.clear()
    loaded = learnt(corpus({}), options, tmp_path, reports.append)  # this corpus has no text to learn from
    assert reports == []
    monkeypatch.setattr(parallel, "MOST_PROCESSES", 1)
    monkeypatch.setattr(cores, "threads", lambda: 3)
    monkeypatch.setattr(subwords, "CHUNK", 80)
    again = learnt(train, options, tmp_path / "elsewhere", reports.append)
    assert first.digest == loaded.digest == again.digest
    for codec, codec_loaded, codec_again, lines in zip(first[:2], loaded[:2], again[:2], phrases(), strict=True):
        assert codec.encode(lines) == codec_loaded.encode(lines) == codec_again.encode(lines)
        assert codec.encode(lines) == pickle.loads(pickle.dumps(codec)).encode(lines)
        assert codec.size == codec_loaded.size == codec_again.size
    fewer = corpus({"train": (phrases()[0][:150], phrases()[1][:150])}, "b")
    assert learnt(fewer, options, tmp_path, reports.append).digest != first.digest


def original_tools(options: TextOptions, folder: Path) -> list[tuple[list[str], list[str]]]:
    """Return (segmented training text, vocabulary) for each language, as sacremoses and subword-nmt make them.

    The vocabulary is in the order of our ids: the most frequent subwords first, then by alphabet.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer, MosesTruecaser
    from subword_nmt.apply_bpe import BPE, read_vocabulary
    from subword_nmt.learn_joint_bpe_and_vocab import create_parser, learn_joint_bpe_and_vocab

    files = [folder / "en", folder / "de"]
    for path, lines in zip(files, phrases(), strict=True):
        normaliser, tokeniser = MosesPunctNormalizer(path.name), MosesTokenizer(path.name)
        tokens = [tokeniser.tokenize(normaliser.normalize(line), aggressive_dash_splits=True) for line in lines]
        truecaser = MosesTruecaser()
        truecaser.train(tokens)
        truecased = [truecaser.truecase(" ".join(line), return_str=True, use_known=True) for line in tokens]
        path.write_text("".join(f"{line}\n" for line in truecased), encoding="utf-8")
    names = [str(path) for path in files]
    vocabularies = [f"{name}.vocabulary" for name in names]
    args = ["-i", *names, "-o", str(folder / "codes"), "-s", str(options.vocabulary)]
    parsed: argparse.Namespace = create_parser().parse_args([*args, "--write-vocabulary", *vocabularies])
    with contextlib.redirect_stderr(io.StringIO()):
        learn_joint_bpe_and_vocab(parsed)
    results = []
    for path, vocabulary in zip(files, vocabularies, strict=True):
        frequent = read_vocabulary(Path(vocabulary).read_text(encoding="utf-8").splitlines(), options.threshold)
        codes = io.StringIO((folder / "codes").read_text(encoding="utf-8"))
        bpe = BPE(codes, vocab=frequent if options.threshold else None)
        segmented = [bpe.process_line(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        counts = Counter(token for line in segmented for token in line.split())
        results.append((segmented, sorted(counts, key=lambda token: (-counts[token], token))))
    return results


@pytest.mark.parametrize("options", KINDS[1:], ids=str)
def test_moses_bpe_equals_the_original_tools(options: TextOptions, cache: Path, tmp_path: Path) -> None:
    expected = original_tools(options, tmp_path)
    assert expected[0][1] != expected[1][1]
    for codec, lines, (segmented, vocabulary) in zip(learn(options, cache), phrases(), expected, strict=True):
        assert codec.size == len(vocabulary) + 3
        assert [" ".join(vocabulary[i - 3] for i in ids) for ids in codec.encode(lines)] == segmented


def test_decoding_joins_the_subwords_of_an_incomplete_word(tmp_path: Path) -> None:
    source, _ = learn(TextOptions("moses_bpe", 20, 0), tmp_path)
    ids = source.encode(["the sailor"])[0]
    texts = source.decode([ids[:end] for end in range(1, len(ids) + 1)])
    assert len(texts) > 3
    assert texts[-1] == "The sailor"
    assert all("@" not in text and "The sailor".startswith(text) for text in texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TextOptions("sentencepiece", 9_999, 0), r"data.vocabulary=9999 does not fit .*size too high"),
        (TextOptions("sentencepiece", 20, 0), r"data.vocabulary=20 does not fit .*size is smaller"),
        (TextOptions("moses_bpe", 9_999, 0), r"data.vocabulary=9999 is too large: .* gives only \d+ merges"),
        (TextOptions("moses_bpe", 20, 99_999), r"data.threshold=99999: no subword .* the en training .* lower it"),
    ],
    ids=str,
)
def test_impossible_vocabulary_is_refused(options: TextOptions, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        learn(options, tmp_path)
    assert list((tmp_path / "subwords").glob("[!.]*")) == []


def test_as_many_merges_as_the_text_gives_can_be_learnt(tmp_path: Path) -> None:
    pairs = (["ab ab"], ["ab ab"])
    learn(TextOptions("moses_bpe", 1, 0), tmp_path, pairs)
    with pytest.raises(ValueError, match=r"vocabulary=2 is too large: .* gives only 1 merges"):
        learn(TextOptions("moses_bpe", 2, 0), tmp_path, pairs)


@pytest.mark.parametrize(
    ("language", "line", "tokens"),
    [
        # what tokenizer.perl -a prints since August 2014, after normalize-punctuation.perl
        ("en", "a rug of 8' x 10'", "a rug of 8 &apos; x 10&apos;"),
        ("en", "the toys of the dogs'", "the toys of the dogs&apos;"),
        ("en", "he said 'yes.'", "he said &apos; yes . &apos;"),
        ("de", "Er ruft: „Ja, bitte.“", "Er ruft : &quot; Ja , bitte &quot; ."),
        ("de", '"Ja." "Nein."', "&quot; Ja &quot; . &quot; Nein &quot; ."),
        ("es", 'Dice: "Vale..."', "Dice : &quot; Vale &quot; ..."),
        ("fr_CA", 'Elle dit : "L\'amitié..."', "Elle dit : &quot; L&apos; amitié &quot; ..."),
        ("en", 'He says: "Yes."', "He says : &quot; Yes . &quot;"),
    ],
)
def test_ends_of_lines_are_tokenised_as_by_moses_scripts(language: str, line: str, tokens: str) -> None:
    assert subwords._tokeniser(language)(line).split() == tokens.split()
