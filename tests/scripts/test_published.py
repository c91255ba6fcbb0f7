"""``python scripts/published.py``: logs in the authors' layout are drawn with our runs."""

import os
import pickle
import re
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import published
import pytest
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.data import DataError, files
from rmsexp.records import record
from rmsexp.records.frames.statistics import final_metric
from rmsexp.system import readers

CSV = "epoch, time, train_error, test_error\n0, 61, 0.5432, 0.4321\n1, 122, 0.4010, 0.3456\n2, 183, 0.3, 0.25\n"


def saved(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


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


def test_results_csv_gives_a_training_and_a_test_row_per_epoch(tmp_path: Path) -> None:
    rows = published.cifar10_rows(saved(tmp_path / "results.csv", CSV))
    assert [(row["step"], row["epoch"], row["examples"], row["split"], row["error"]) for row in rows] == [
        *((500, 1, 50_000, "train", 0.5432), (500, 1, 50_000, "test", 0.4321)),
        *((1000, 2, 100_000, "train", 0.4010), (1000, 2, 100_000, "test", 0.3456)),
        *((1500, 3, 150_000, "train", 0.3), (1500, 3, 150_000, "test", 0.25)),
    ]
    assert [row["seconds"] for row in rows[::2]] == [{"train": 61}, {"train": 122}, {"train": 183}]


@pytest.mark.parametrize("protocol", [0, 2])
def test_statistics_of_the_reader_are_rows_at_each_thousand_updates(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps(statistics(), protocol)
    rows = published.reader_rows(saved(tmp_path / "stats_lstm_s1.npz.pkl", content))
    assert [(row["step"], row["split"]) for row in rows] == [
        (step, split) for step in (1000, 2000, 3000) for split in ("train", "valid")
    ]
    assert rows[2] == {"step": 2000, "split": "train", "loss": 3.0, "error": pytest.approx(0.8), "grad_norm": 2.5}
    assert rows[3] == {"step": 2000, "split": "valid", "loss": 2.5, "error": pytest.approx(0.7)}


OTHER_CSV = [
    *(("epoch, time", "time, epoch"), (CSV, ""), (CSV, "epoch, time, train_error, test_error\n")),
    *(("122, 0.4010, 0.3456", "122, 0.4010"), ("122", "x"), ("122", "1_22"), ("122", "0x7a"), ("1, 122", "2, 122")),
    *(("183", "100"), ("183", "nan"), ("183", "inf"), ("0.25", "25.0"), ("0.25", "nan"), ("epoch", "époch")),
]
OTHER_STATISTICS = [
    *(b"", pickle.dumps(statistics(), protocol=2)[:-40], b"cos\nsystem\n(S'true'\ntR.", pickle.dumps([1.0])),
    pickle.dumps({"valid_errs": [1.0]}),
    *(pickle.dumps(statistics(valid_costs=costs), protocol=2) for costs in (["x"], 3.0, [1.0])),
    pickle.dumps({name: [] for name in statistics()}, protocol=2),
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("results.csv", CSV.replace(old, new, 1).encode()) for old, new in OTHER_CSV),
        *(("stats.pkl", content) for content in OTHER_STATISTICS),
    ],
)
def test_another_file_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    path = saved(tmp_path / name, content)
    with pytest.raises(DataError, match=f"^{path} is not as the authors published it") as error:
        published.LOGS[path.suffix].read(path)
    assert str(error.value).count("\n") == 1


# pickles: plain data is read, references to code are refused

PYTHON2_FLOAT64 = (  # what Python 2 writes for numpy.float64(0.5)
    b"\x80\x02cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\nq\x01U\x02f8q\x02K\x00K\x01\x87q\x03Rq\x04"
    b"(K\x03U\x01<q\x05NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x06bU\x08" + struct.pack("<d", 0.5) + b"\x86Rq\x07."
)


def unpickle(folder: Path, content: bytes) -> Any:
    (folder / "a.pkl").write_bytes(content)
    with files.checked(folder / "a.pkl", published.KIND) as read:
        return published.unpickled(read)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"(lp0\n(lp1\nI4\naI17\naa(lp2\nI5\naa.", [[4, 17], [5]], id="protocol 0"),
        pytest.param(b"(dp0\nS'@entity1'\np1\nI4\nsS'the'\np2\nL5L\ns.", {"@entity1": 4, "the": 5}, id="long"),
        pytest.param(PYTHON2_FLOAT64, 0.5, id="number of numpy"),
        pytest.param(b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntR.", {}, id="defaultdict"),
    ],
)
def test_pickles_of_python_2(content: bytes, expected: Any, tmp_path: Path) -> None:
    assert unpickle(tmp_path, content) == expected


@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"], ids=["new module", "old module"])
@pytest.mark.parametrize("protocol", range(4))
def test_arrays_numbers_and_bytes(protocol: int, module: bytes, tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = pickle.dumps({"a": [array, np.int64(7), b"\xff", None, True]}, protocol)
    values = unpickle(tmp_path, re.sub(rb"numpy\._?core", module, content))["a"]
    assert np.array_equal(np.asarray(values[0]), array)
    assert np.asarray(values[0]).dtype == array.dtype
    assert values[1:] == [7, b"\xff", None, True]


@pytest.mark.parametrize("code", [b"O8", b"V8", b"S8", b"M8"])
def test_bytes_are_taken_for_nothing_but_numbers(code: bytes, tmp_path: Path) -> None:
    """An array of 8 bytes whose type is said to have no pointers; numpy would read a pointer from them."""
    content = pickle.dumps(np.array([7]), 2).replace(b"X\x02\x00\x00\x00i8", b"X\x02\x00\x00\x00" + code)
    assert code in content
    values = unpickle(tmp_path, content)
    with pytest.raises(pickle.UnpicklingError, match="which are no numbers"):
        np.asarray(values)
    with pytest.raises(DataError, match="which are no numbers"):
        unpickle(tmp_path, PYTHON2_FLOAT64.replace(b"U\x02f8", b"U\x02" + code))


class Calls:
    """An object whose pickle calls ``function(*arguments)`` when an unrestricted reader loads it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_refused_by_name_and_not_run(protocol: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for function in (os.mkdir, os.system, eval, getattr, np.load):
        with pytest.raises(DataError, match=rf"refers to [\w.]+\.{function.__name__}, which is not allowed"):
            unpickle(tmp_path, pickle.dumps([1, Calls(function, str(folder))], protocol))
    for content in (b"(S'true'\nios\nsystem\n.", b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.", b"Pname\n."):
        with pytest.raises(DataError):
            unpickle(tmp_path, content)
    assert not folder.exists()


# the command


def test_a_published_log_is_drawn_beside_our_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, results = saved(tmp_path / "results.csv", CSV), tmp_path / "results"
    for norm in ("ln", "rms"):
        write_run(results, norm, steps=1500, every=50, setting="paper", scale="paper")
    assert published.main([str(path), "--norm", "rms", "--results", str(results)]) == 0
    folder = results / "cifar10/paper/rms+published/seed0"
    assert capsys.readouterr().out.splitlines() == [
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
    of_run = records.runs.set_index("series").loc["rms+published"]
    expected = {"status": "finished", "step": 1500, "norm": "rms", "time_state": "disturbed"}
    assert of_run[list(expected)].to_dict() == expected
    assert records.metrics.query("series == 'rms+published'")["time"].isna().all()
    assert records.metrics.query("series == 'rms+published'")["seconds_train"].max() == 183
    names = [quantity.name for quantity in of_run["quantities"]]
    assert names == ["train_loss", "train_error", "valid_error", "test_error"]


def test_the_same_log_again_changes_nothing_and_another_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = saved(tmp_path / "results.csv", CSV), tmp_path / "results"
    folder = published.import_log(path, "ln", 3, results)
    assert folder == results / "cifar10/paper/ln+published/seed3"
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    assert set(before) == {record.RUN, record.METRICS, record.STATUS}
    assert published.import_log(path, "ln", 3, results) == folder
    saved(path, CSV.replace("0.25", "0.2"))
    assert published.main([str(path), "--norm", "ln", "--seed", "3", "--results", str(results)]) == 1
    assert f"{folder} contains another run; choose another --seed or --results\n" in capsys.readouterr().err
    assert before == {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")] == ["seed3"]


def test_the_log_of_the_attentive_reader_is_drawn(tmp_path: Path, unwritten_figures: list[str]) -> None:
    path = saved(tmp_path / "stats_lstm_s1.npz.pkl", pickle.dumps(statistics(), protocol=2))
    assert published.main([str(path), "--norm", "rms", "--results", str(tmp_path)]) == 0
    records = load(tmp_path).select("attentive_reader", "paper")
    assert records.problems == []
    assert final_metric(records, 3000).to_list() == pytest.approx([0.6])
    assert "curves" in unwritten_figures
