"""``python -m rmsexp.published``: logs in the authors' layout are drawn with our runs, a stored model is evaluated."""

from __future__ import annotations

import itertools
import pickle
import shlex
import struct
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.records import write_run
from matplotlib.colors import to_hex

from rmsexp import config
from rmsexp.commands import published
from rmsexp.compare import load
from rmsexp.data import DataError, Source, authors_files
from rmsexp.data.captions import encode
from rmsexp.models.order_embedding import OrderEmbedding
from rmsexp.norms import LN, RMS, Norm
from rmsexp.records import record
from rmsexp.records.frames.statistics import final_metric
from rmsexp.report.plots import setting_curves, style
from rmsexp.rules import quantities
from rmsexp.system import atomic, readers
from rmsexp.tasks import order_embedding

CSV = "epoch, time, train_error, test_error\n0, 61, 0.5432, 0.4321\n1, 122, 0.4010, 0.3456\n2, 183, 0.3, 0.25\n"
WORDS = ["<eos>", "<unk>", "a", "dog", "cat", "zebra"]  # vocabulary of the data; the stored model lacks zebra
WORD_IDS = OrderedDict([("cat", 2), ("a", 3), ("dog", 4), ("rare", 5)])
EMBEDDING, HIDDEN, FEATURES = 3, 4, 6


def saved(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["published", *map(str, words)])
    try:
        return published.main()
    except SystemExit as stop:
        return int(stop.code or 0)


def statistics(**changed: Any) -> dict[str, Any]:
    """Return statistics as attentive_reader.py stores them: the lists that we read, one more, and ``changed``."""
    values = defaultdict(list)
    for index in range(3):
        values["train_err_ave"].append(np.float64(0.9 - index / 10))
        values["train_cost_ave"].append(np.float32(4 - index))
        values["train_gnorm_ave"].append(np.array(2.5, dtype=np.float32))
        values["valid_errs"].append(np.float64(0.8 - index / 10))
        values["valid_costs"].append(np.float32(3.5 - index))
        values["valid_alphas_mean"].append(17.25)
    return values | changed


def python2_statistics() -> bytes:
    """Return a pickle as Python 2 wrote it by default: protocol 0, byte strings, ``__builtin__``, old numpy modules."""

    def scalar(value: float) -> bytes:
        text = repr(struct.pack("<d", value)).removeprefix("b").encode()
        return (
            b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'f8'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbS"
            + text
            + b"\ntRa"
        )

    lists = {name: values for name, values in statistics().items() if name != "valid_alphas_mean"}
    items = b"".join(
        b"S'" + name.encode() + b"'\n(l" + b"".join(scalar(float(value)) for value in values) + b"s"
        for name, values in lists.items()
    )
    return b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntR" + items + b"."


# CIFAR-10


def test_results_csv_gives_a_training_and_a_test_row_per_epoch(tmp_path: Path) -> None:
    rows = authors_files.cifar10_rows(saved(tmp_path / "results.csv", CSV))
    assert [(row["step"], row["epoch"], row["examples"], row["split"], row["error"]) for row in rows] == [
        (500, 1, 50_000, "train", 0.5432),
        (500, 1, 50_000, "test", 0.4321),
        (1000, 2, 100_000, "train", 0.4010),
        (1000, 2, 100_000, "test", 0.3456),
        (1500, 3, 150_000, "train", 0.3),
        (1500, 3, 150_000, "test", 0.25),
    ]
    assert [row["seconds"] for row in rows[::2]] == [{"train": 61}, {"train": 122}, {"train": 183}]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("epoch, time", "time, epoch"), (CSV, ""), (CSV, "epoch, time, train_error, test_error\n")),
        *(("122, 0.4010, 0.3456", "122, 0.4010"), ("122", "x"), ("122", "1_22"), ("122", "0x7a"), ("1, 122", "2, 122")),
        *(("183", "100"), ("183", "nan"), ("183", "inf"), ("0.25", "25.0"), ("0.25", "nan"), ("epoch", "époch")),
    ],
)
def test_another_results_csv_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = saved(tmp_path / "results.csv", CSV.replace(old, new, 1))
    with pytest.raises(DataError, match=f"^{path} is not as the authors published it") as error:
        authors_files.cifar10_rows(path)
    assert str(error.value).count("\n") == 1


# the attentive reader


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(python2_statistics(), id="Python 2"),
        pytest.param(pickle.dumps(statistics(), protocol=0), id="protocol 0"),
        pytest.param(pickle.dumps(statistics(), protocol=2), id="protocol 2"),
    ],
)
def test_statistics_of_the_reader_are_rows_at_each_thousand_updates(tmp_path: Path, content: bytes) -> None:
    rows = authors_files.reader_rows(saved(tmp_path / "stats_lstm_s1.npz.pkl", content))
    assert [(row["step"], row["split"]) for row in rows] == [
        (step, split) for step in (1000, 2000, 3000) for split in ("train", "valid")
    ]
    assert rows[2] == {"step": 2000, "split": "train", "loss": 3.0, "error": pytest.approx(0.8), "grad_norm": 2.5}
    assert rows[3] == {"step": 2000, "split": "valid", "loss": 2.5, "error": pytest.approx(0.7)}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", pickle.dumps(statistics(), protocol=2)[:-40], b"cos\nsystem\n(S'true'\ntR.", pickle.dumps([1.0])),
        pickle.dumps({"valid_errs": [1.0]}),
        pickle.dumps(statistics(valid_costs=["x"]), protocol=2),
        pickle.dumps(statistics(valid_costs=3.0), protocol=2),
        pickle.dumps(statistics(valid_costs=[1.0]), protocol=2),
        pickle.dumps({name: [] for name in statistics()}, protocol=2),
    ],
)
def test_invalid_statistics_are_refused(tmp_path: Path, content: bytes) -> None:
    path = saved(tmp_path / "stats.pkl", content)
    with pytest.raises(DataError, match=f"^{path} is not as the authors published it") as error:
        authors_files.reader_rows(path)
    assert str(error.value).count("\n") == 1


# order-embedding


def parameters(norm: str, prefix: str = "encoder") -> dict[str, np.ndarray]:
    """Return parameters with the names and shapes that train.py of order-embedding stores, and random values."""
    generator = np.random.default_rng(0)
    sizes = {1: 2 * HIDDEN, 2: HIDDEN, 3: 2 * HIDDEN, 4: HIDDEN}
    shapes: dict[str, tuple[int, ...]] = {
        "Wemb": (len(WORD_IDS) + 2, EMBEDDING),
        f"{prefix}_W": (EMBEDDING, 2 * HIDDEN),
        f"{prefix}_b": (2 * HIDDEN,),
        f"{prefix}_U": (HIDDEN, 2 * HIDDEN),
        f"{prefix}_Wx": (EMBEDDING, HIDDEN),
        f"{prefix}_Ux": (HIDDEN, HIDDEN),
        f"{prefix}_bx": (HIDDEN,),
        **{f"{prefix}_b{number}": (size,) for number, size in sizes.items() if norm in ("ln", "rms with bias")},
        **{f"{prefix}_s{number}": (size,) for number, size in sizes.items() if norm != "none"},
        "ff_image_W": (FEATURES, HIDDEN),
        "ff_image_b": (HIDDEN,),
    }
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def store(folder: Path, arrays: dict[str, np.ndarray], **changed: Any) -> Path:
    options = {"method": "order", "abs": True, "encoder": "lngru", "dim": HIDDEN}
    described = {"options": options, "worddict": WORD_IDS} | changed
    saved(folder / "order.pkl", pickle.dumps(described, protocol=2))
    np.savez(folder / "order.npz", **arrays)  # type: ignore[arg-type]
    return folder / "order.npz"


def published_caption(stored: dict[str, np.ndarray], norm: str, ids: list[int]) -> np.ndarray:
    """Return the vector of a caption, computed as in the authors' layers.py, in numpy."""

    def normalised(x: np.ndarray, number: int) -> np.ndarray:
        if norm == "none":
            return x
        if norm == "ln":
            x = x - x.mean()
        x = x / np.sqrt((x * x).mean() + 1e-5) * stored[f"encoder_s{number}"]
        return x + stored.get(f"encoder_b{number}", 0.0)

    h = np.zeros(HIDDEN)
    for word in ids:
        x = stored["Wemb"][word].astype(float)
        gates = normalised(x @ stored["encoder_W"] + stored["encoder_b"], 1) + normalised(h @ stored["encoder_U"], 3)
        r, u = np.split(1 / (1 + np.exp(-gates)), 2)
        inner = normalised(x @ stored["encoder_Wx"] + stored["encoder_bx"], 2)
        h = u * h + (1 - u) * np.tanh(normalised(h @ stored["encoder_Ux"], 4) * r + inner)
    return np.abs(h / np.linalg.norm(h))


@pytest.mark.parametrize("prefix", ["encoder", "lngru", "rlngru"])
def test_the_gru_is_found_under_any_prefix(tmp_path: Path, prefix: str) -> None:
    arrays = parameters("rms", prefix)
    stored = authors_files.order_model(store(tmp_path, arrays))
    np.testing.assert_array_equal(stored.arrays["gru_Ux"], arrays[f"{prefix}_Ux"])
    np.testing.assert_array_equal(stored.arrays["gru_s3"], arrays[f"{prefix}_s3"])
    np.testing.assert_array_equal(stored.arrays["ff_image_b"], arrays["ff_image_b"])
    assert stored.options["method"] == "order"


def test_words_get_the_ids_of_the_stored_model(tmp_path: Path) -> None:
    stored = authors_files.order_model(store(tmp_path, parameters("rms")))
    assert stored.ids(WORDS).tolist() == [0, 1, 3, 4, 2, 1]
    fewer = parameters("rms")
    fewer["Wemb"] = fewer["Wemb"][:4]  # the model may have fewer words than its dictionary
    assert authors_files.order_model(store(tmp_path, fewer)).ids(WORDS).tolist() == [0, 1, 3, 1, 2, 1]


@pytest.mark.parametrize(
    ("norm", "ours"),
    [
        ("none", Norm(name="none")),
        ("ln", LN(name="ln")),
        ("rms", RMS(name="rms")),
        ("rms with bias", RMS(name="rms", bias=True)),
    ],
)
def test_stored_parameters_give_the_published_vectors(tmp_path: Path, norm: str, ours: Norm) -> None:
    arrays = parameters(norm)
    stored = authors_files.order_model(store(tmp_path, arrays))
    model = OrderEmbedding(ours, len(WORDS), FEATURES, embedding=EMBEDDING, hidden=HIDDEN)
    published.fill(model, stored, WORDS)
    captions = torch.tensor([[2, 3, 0], [5, 0, 0]])  # a dog; zebra
    features = torch.arange(12.0).reshape(2, FEATURES).sin()
    with torch.no_grad():
        vectors = model.captions(captions, torch.tensor([[True] * 3, [True, True, False]])).numpy()
        image_vectors = model.images(features).numpy()
    np.testing.assert_allclose(vectors[0], published_caption(arrays, norm, [3, 4, 0]), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(vectors[1], published_caption(arrays, norm, [1, 0]), rtol=2e-5, atol=1e-6)
    image = features.numpy() @ arrays["ff_image_W"] + arrays["ff_image_b"]
    np.testing.assert_allclose(image_vectors, np.abs(image / np.linalg.norm(image, axis=1, keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "described", "file"),
    [
        *(({"ff_image_W": None}, {}, "order.npz"), ({"encoder_Ux": None}, {}, "order.npz")),
        *(({"encoder_b": np.full(8, np.nan)}, {}, "order.npz"), ({"encoder_b": np.array(["x"])}, {}, "order.npz")),
        *(({"encoder_b": np.array([{}])}, {}, "order.npz"), ({}, {"options": None}, "order.pkl")),
        *(({}, {"worddict": {"a": 2, "dog": 1}}, "order.pkl"), ({}, {"worddict": {"a": 2.5}}, "order.pkl")),
    ],
)
def test_an_invalid_model_is_refused(
    tmp_path: Path, arrays: dict[str, Any], described: dict[str, Any], file: str
) -> None:
    stored = {name: array for name, array in (parameters("rms") | arrays).items() if array is not None}
    path = store(tmp_path, stored, **described)
    with pytest.raises(DataError, match=f"^{tmp_path / file} ") as error:
        authors_files.order_model(path)
    assert str(error.value).count("\n") == 1


def test_damaged_and_missing_files_of_a_model_are_named(tmp_path: Path) -> None:
    path = store(tmp_path, parameters("rms"))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=f"^{path} "):
        authors_files.order_model(path)
    store(tmp_path, parameters("rms"))
    (tmp_path / "order.pkl").unlink()
    with pytest.raises(DataError, match=r"order.pkl cannot be read \(No such file"):
        authors_files.order_model(path)


# the command


def test_a_published_log_is_drawn_beside_our_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = saved(tmp_path / "results.csv", CSV), tmp_path / "results"
    for norm in ("ln", "rms"):
        write_run(results, norm, steps=1500, every=50, setting="paper", scale="paper")
    assert command(monkeypatch, path, "--task", "cifar10", "--norm", "rms", "--results", results) == 0
    folder = results / "cifar10/paper/rms+published/seed0"
    output = capsys.readouterr().out.splitlines()
    assert output == [
        f"record  {folder}",
        f"curves  {results}/cifar10/paper/comparison/curves.png",
        f"next    python -m rmsexp task=cifar10 norm=rms scale=paper results={results}",
    ]
    run = readers.read_json(folder / record.RUN)
    assert "results.csv (sha256 " in run["notes"]["source"]
    assert "500 updates per epoch" in run["notes"]["assumed"]

    records = load(results).select("cifar10", "paper")
    assert records.problems == []
    assert final_metric(records, 1500)[str(folder)] == 0.25
    published_run = records.runs.set_index("series").loc["rms+published"]
    assert (published_run["status"], published_run["step"], published_run["norm"], published_run["time_state"]) == (
        "finished",
        1500,
        "rms",
        "contended",
    )
    assert records.metrics.query("series == 'rms+published'")["time"].isna().all()
    assert records.metrics.query("series == 'rms+published'")["seconds_train"].max() == 183

    named = published_run["quantities"]
    assert [quantity.name for quantity in named] == ["train_loss", "train_error", "valid_error", "test_error"]

    by_step, by_time = setting_curves.draw(records, [quantities.error("test")]).axes
    colour = style.LOOKS["rms"].colour
    thick = [
        [
            line
            for line in axes.lines
            if to_hex(line.get_color()) == colour.lower() and line.get_linewidth() > 1 and len(line.get_xdata()) > 1
        ]
        for axes in (by_step, by_time)
    ]
    assert [len(lines) for lines in thick] == [2, 1]  # against steps our curve and the authors', against time only ours
    np.testing.assert_allclose(np.array(thick[0][1].get_xydata()), [[500, 43.21], [1000, 34.56], [1500, 25.0]])


def test_the_same_log_again_changes_nothing_and_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = saved(tmp_path / "results.csv", CSV), tmp_path / "results"
    folder = published.import_log(path, "cifar10", "ln", 3, results)
    assert folder == results / "cifar10/paper/ln+published/seed3"
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    assert set(before) == {record.RUN, record.METRICS, record.STATUS}
    assert published.import_log(path, "cifar10", "ln", 3, results) == folder
    saved(path, CSV.replace("0.25", "0.2"))
    assert command(monkeypatch, path, "--norm", "ln", "--seed", 3, "--results", results) == 1
    output = capsys.readouterr().err
    assert output == f"rmsexp: {folder} contains another run; choose another --seed or --results\n"
    assert before == {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")] == ["seed3"]
    saved(path, CSV)
    older = readers.read_json(folder / record.RUN)
    del older["quantities"]
    atomic.write_json(folder / record.RUN, older)
    assert published.import_log(path, "cifar10", "ln", 3, results) == folder
    assert readers.read_json(folder / record.RUN) == older


def test_the_log_of_the_attentive_reader_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten_figures: list[str]
) -> None:
    path = saved(tmp_path / "stats_lstm_s1.npz.pkl", python2_statistics())
    assert command(monkeypatch, path, "--norm", "rms", "--results", tmp_path) == 0
    records = load(tmp_path).select("attentive_reader", "paper")
    assert records.problems == []
    assert final_metric(records, 3000).to_list() == pytest.approx([0.6])
    assert "curves" in unwritten_figures


def test_mistakes_give_an_error_message_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = saved(tmp_path / "results.csv", CSV)
    bad = saved(tmp_path / "bad.csv", CSV.replace("0.25", "x"))
    for words, status, message in (
        ([bad], 1, f"rmsexp: {bad} is not as the authors published it"),
        ([tmp_path / "absent.csv"], 1, "absent.csv cannot be read (No such file or directory)"),
        ([tmp_path / "absent.npz"], 1, "absent.npz cannot be read"),
        ([good, "--task", "attentive_reader"], 1, "is not as the authors published it"),
        ([tmp_path / "results.txt"], 2, "ends in none of .csv, .pkl, .npz"),
        ([good, "--norm", "lm"], 2, "invalid choice: 'lm'"),
        ([good, "--seed", "-1"], 2, "--seed must be from 0 to 9223372036854775807, got -1"),
        ([], 2, "required: file"),
    ):
        assert command(monkeypatch, *words, "--results", tmp_path / "results") == status
        output = capsys.readouterr()
        assert message in output.err
        assert "Traceback" not in output.err
        assert output.out == ""
    assert not (tmp_path / "results").exists()


def published_ranks(stored: dict[str, np.ndarray], captions: list[str], features: np.ndarray) -> list[list[float]]:
    """Return R@1, R@5, R@10, mean and median rank for captions, then for images, as in the authors' evaluation.py."""
    ids = [[WORD_IDS.get(word, 1) for word in caption.split()] for caption in captions]
    vectors = np.stack([published_caption(stored, "rms", [*words, 0]) for words in ids])
    images = features @ stored["ff_image_W"] + stored["ff_image_b"]
    images = np.abs(images / np.linalg.norm(images, axis=1, keepdims=True))
    errors = (np.maximum(0, vectors[:, None] - images) ** 2).sum(2)
    caption_ranks = [np.where(np.argsort(errors[:, image]) // 5 == image)[0][0] for image in range(len(images))]
    image_ranks = [np.where(np.argsort(errors[row]) == row // 5)[0][0] for row in range(len(errors))]
    return [
        [*(100 * np.mean(np.array(ranks) < k) for k in (1, 5, 10)), np.mean(ranks) + 1, np.floor(np.median(ranks)) + 1]
        for ranks in (caption_ranks, image_ranks)
    ]


def test_metrics_of_a_stored_model_are_printed_above_table_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the data sets has signs in its name that mean something in overrides."""
    root = tmp_path / "a, b=[c]'s \\' {d: 1}\\"
    sentences = [" ".join(words) for words in itertools.product(WORDS[2:], repeat=5)]
    splits, rows = {}, {}
    for split, images in {"train": 130, "valid": 3, "test": 12}.items():
        captions = sentences[: 5 * images]
        splits[split] = [caption.split() for caption in captions]
        features = np.random.default_rng(images).random((images, FEATURES)).astype(np.float32)
        rows[split] = features = features / np.linalg.norm(features, axis=1, keepdims=True)
    source = Source("COCO", "digest", False, lambda report: encode(splits, rows, report))
    monkeypatch.setitem(order_embedding.SOURCES, "coco", lambda *_: source)
    path = store(tmp_path, parameters("rms"))
    assert command(monkeypatch, path, "--data-root", root) == 0
    *_, header, row, none, ln, rms, _, hint = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["caption_r1", "caption_r5", "caption_r10", "caption_mean_rank"]
    caption_metrics, image_metrics = published_ranks(parameters("rms"), captions, features)
    expected = [*caption_metrics[:4], *image_metrics[:4], caption_metrics[4], image_metrics[4]]
    assert [float(number) for number in row.split()[1:]] == pytest.approx(expected, abs=0.051)
    assert none.split()[2:] == ["no", "norm", "45.8", "79.7", "88.8", "5.4", "37.6", "73.6", "85.8", "7.7"]
    assert "LayerNorm" in ln
    assert "48.7" in rms
    *words, last = shlex.split(hint)
    assert " ".join(words) == "next python -m rmsexp task=order_embedding norm=rms scale=paper"
    assert config.job([last]).config.data.root == str(root)
    assert command(monkeypatch, path, "--data-root", root, "--norm", "ln") == 1
    assert "do not fit: gru.gates_x.norm.bias is none" in capsys.readouterr().err
