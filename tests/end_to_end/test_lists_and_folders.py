"""Empty, nested and recursive lists, and folders that hold no results."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.campaign import question
from rmsexp.commands import campaign, report, run, status, timing
from rmsexp.records import record
from rmsexp.system import mounts


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("impl=[]", "impl must name at least one: impl=[eager]"),
        ("norms=[]", "norms must name at least one: norms=[none,ln,rms,prms]"),
        ("norms=&a [ln,*a]", "recursion"),
        ("norms=[&a [ln], [*a, *a]]", "norms must be a list of single values"),
        ("norms={a: 1}", "norms must be a list, in brackets"),
        ("norms=[ln,rms", "while parsing a flow sequence"),
    ],
)
def test_a_timing_of_no_list_is_refused(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(["task=order_embedding", word]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") <= 2


@pytest.mark.parametrize(
    "word", ["norms=[]", "norms=&a [*a]", "norms={a: 1}", "tune.over=[]", "tune.runs=[]", "pilot=[]"]
)
def test_a_campaign_of_no_list_is_refused(word: str) -> None:
    with pytest.raises(config.ConfigError, match=r"norms must|recursion|a list stands where keys belong"):
        question.read("quality_order_embedding", [word])


def test_seeds_of_no_list_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("seeds=[]", "seeds=&a [*a]", "seeds={a: 1}"):
        assert campaign.main(["table2", word, f"results={tmp_path}", "--plan"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_is_no_folder_of_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = tmp_path / "of the kernel"
    escaped = str(kernel).replace(" ", r"\040")
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw,relatime 0 0\nproc {escaped} proc rw 0 0\n")
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "mounts")
    (kernel / "1/cwd").mkdir(parents=True)
    (kernel / "run.json").touch()
    for command in (report.main, status.main):
        assert command([str(kernel / "1")]) == command(["/"]) == 1
        assert capsys.readouterr().err.count("name the folder of your results") == 2
    assert record.find(tmp_path, record.RUN) == []
    (tmp_path / "link").symlink_to(kernel / "1")
    assert record.find(tmp_path, record.RUN) == []


def test_many_folders_without_a_record_are_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_FOLDERS", 10)
    for number in range(30):
        run = tmp_path / f"results/task/setting/rms/seed{number}"
        (run / "checkpoints").mkdir(parents=True)
        (run / record.STATUS).touch()
        (tmp_path / f"others/{number}").mkdir(parents=True)
    assert len(record.find(tmp_path / "results", record.STATUS)) == 30
    assert record.find(tmp_path / "results", "timing/*/timing.json") == []
    with pytest.raises(ValueError, match="has more than 10 folders without runs"):
        record.find(tmp_path / "others", record.STATUS)


def test_a_run_of_an_empty_list_is_refused(main: object) -> None:  # noqa: ARG001
    assert run.main(["norm=[]"]) == run.main(["-m", "seed=range(0,0)"]) == 2
