"""What a person sees of a run, and what it was computed with."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.records import make_row

from rmsexp.train import progress, provenance

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("loss", "speed", "expected"),
    [
        (0.5, 2.0, "rms seed0  step 40/100  loss 0.5000  2.0 steps/s  0:30 left"),
        (None, 2.0, "rms seed0  step 40/100  loss not finite  2.0 steps/s  0:30 left"),
        (0.5, 0.0, "rms seed0  step 40/100  loss 0.5000  0.0 steps/s  0:00 left"),
        (0.5, 0.01, "rms seed0  step 40/100  loss 0.5000  0.0 steps/s  1:40:00 left"),
    ],
)
def test_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loss: float | None, speed: float, expected: str
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    display = progress.ProgressDisplay("rms seed0", 100)
    display.update(make_row(40, loss), speed)
    display.close()
    captured = capsys.readouterr()
    assert captured.err == f"{expected}\n"
    assert captured.out == ""


def test_evaluations_show_their_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    display = progress.ProgressDisplay("rms seed0", 100)
    display.report_evaluation(make_row(40, 0.25, "test") | {"epoch": 1.0, "examples": 9, "error": 0.125, "bleu": None})
    assert capsys.readouterr().err == "rms seed0  step 40/100  test: loss 0.2500, error 0.1250\n"


def test_a_line_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "prms+axes=[1,2] [bold]x[/bold] :smile: " + "a" * 300
    progress.ProgressDisplay("prms", 1).report(text)
    assert capsys.readouterr().err.rstrip("\n") == text


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    display = progress.ProgressDisplay("rms seed0", 100)
    display.update(make_row(40, 0.5), 2.0)
    display.report_evaluation(make_row(40, 0.25, "test"))
    display.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "40/100" in plain
    assert "loss 0.5000  2.0 steps/s  0:30 left" in plain
    assert "test: loss 0.2500" in plain


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress._duration(seconds) == text


def test_a_session_says_what_computed_it() -> None:
    session = provenance.session(CPU, 7)
    assert session["from_step"] == 7
    assert session["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert session["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert re.fullmatch("[0-9a-f]{16}", session["code"])
    assert session["device"]
    assert (session["device_type"], session["threads"]) == ("cpu", torch.get_num_threads())
    assert session == json.loads(json.dumps(session))


@pytest.mark.parametrize("key", provenance.DECISIVE)
def test_what_may_change_results_or_times_is_noticed(key: str) -> None:
    before = provenance.session(CPU, 0)
    assert provenance.changed(before, before | {"from_step": 5, "started": "later", "git": {}}) == []
    assert provenance.changed(before, before | {key: "other"}) == [key]
    without = {name: value for name, value in before.items() if name != key}
    assert provenance.changed(without, before) == [key]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of three files in the place of this one, in no checkout."""
    folder = tmp_path / "checkout" / "package"
    (folder / "sub").mkdir(parents=True)
    (folder / "record.py").write_text("1\n")
    (folder / "sub/b.py").write_text("2\n")
    (folder / "sub/b.cpp").write_text("2\n")
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


FAULTS = """
import resource
import sys
import torch
from rmsexp.train import memory, provenance

if sys.argv[1] == "keep":
    memory.keep_freed()
assert provenance.session(torch.device("cpu"), 0)["memory_kept"] == memory.keeps_freed()
for step in range(12):  # the heap grows for some
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(megabytes << 18) for megabytes in (40, 1, 33)]
    del kept
print(memory.keeps_freed(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
def test_memory_is_kept_from_step_to_step() -> None:
    """74 MB are 18,944 pages of 4 KiB. Processes of their own, since one that keeps its memory does so for good."""

    def faults(mode: str) -> int:
        command = [sys.executable, "-c", FAULTS, mode]
        kept, count = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert kept == str(mode == "keep" and platform.libc_ver()[0] == "glibc")
        return int(count)

    before, after = faults("leave"), faults("keep")
    if platform.libc_ver()[0] == "glibc":
        assert after < 0.1 * before


@pytest.mark.parametrize("suffix", [".py", ".cpp"])
@pytest.mark.parametrize("change", ["edit", "add", "rename", "remove"])
def test_the_code_s_digest_follows_every_source(package: Path, change: str, suffix: str) -> None:
    digest_of = provenance._code.__wrapped__
    before = digest_of()
    (package / "notes.txt").write_text("x")
    assert digest_of() == before
    path = package / f"sub/b{suffix}"
    if change == "edit":
        path.write_text("3\n")
    elif change == "add":
        (package / f"c{suffix}").write_text("")
    elif change == "rename":
        path.rename(package / f"sub/c{suffix}")
    else:
        path.unlink()
    assert digest_of() != before


def test_git_state(package: Path) -> None:
    state = provenance._git.__wrapped__

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(package.parent), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    nothing = {"commit": None, "dirty": None}
    assert state() == nothing
    git("init", "-q")
    assert state() == nothing  # an installed copy inside somebody's checkout
    git("add", ".")
    git("commit", "-q", "-m", "x")
    assert state() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (package / "record.py").write_text("4\n")
    assert state() == {"commit": git("rev-parse", "HEAD"), "dirty": True}


def test_without_git_there_is_no_commit(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert package.exists()
    assert provenance._git.__wrapped__() == {"commit": None, "dirty": None}
