"""``python -m rmsexp.status``: plain lines, a terminal of 80 columns, and ``--watch``."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from helpers.campaigns import Campaign
from helpers.records import write_run

from rmsexp.commands import status
from rmsexp.records import record
from rmsexp.system.command_line import command

PLAIN = """\
{root}: 5 runs: 1 running, 1 failed, 1 diverged, 2 finished; damaged records: 1

running
run                    step     last evaluation    time left
cifar10/demo/ln/seed1  40/1000  test error {error}  {left}

failed
run                        step  message
rnnsearch/small/rms/seed0  0     no data

damaged records
{root}/campaigns/broken/campaign.json is not JSON (Expecting value: line 1 column 1 (char 0))

campaign quality
Does RMSNorm match LayerNorm on cifar10?
stage  not started  coming  took  time left
tune   26           0       0:00  unknown
final  4            0       0:00  unknown
time left  unknown, one run after the other
next       python -m rmsexp.campaign quality results={root}

diverged
run                    step  last evaluation    message
cifar10/demo/wn/seed0  40    test error {diverged}  the loss is not finite

finished
setting       runs  by norm
cifar10/demo  2     ln 1, rms\\x1b 1
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Write runs in several states, a campaign and a damaged one. One norm has a name that must be escaped."""
    for series in ("ln", "rms\x1b"):
        write_run(tmp_path, series, steps=40)
    write_run(tmp_path, "wn", steps=40, status="diverged")
    running = write_run(tmp_path, "ln", 1, steps=40, status="running")
    (running / record.CONFIG).write_text("max_steps: 1000\n")
    failed = tmp_path / "rnnsearch/small/rms/seed0"
    failed.mkdir(parents=True)
    record.RunFolder(failed).write_status("failed", 0, "no data\nget some")
    best, grid = {"ln": 0.001, "rms": 0.001}, (0.001, 0.002)
    Campaign("quality", level=dict.fromkeys(best, 16.0), best=best, grid=grid, seeds=2, claims=()).write_file(tmp_path)
    (tmp_path / "campaigns/broken").mkdir()
    (tmp_path / "campaigns/broken/campaign.json").write_text("")
    return tmp_path


def last_error(results: Path, series: str, seed: int) -> str:
    rows, _ = record.RunFolder(results / f"cifar10/demo/{series}/seed{seed}").read_metrics()
    return f"{rows[-1]['error']:.4f}"


def test_plain_lines_show_all_states(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record.RunFolder(results / "cifar10/demo/ln/seed1").lock.held():
        assert status.main([str(results)]) == 0
    names = {"error": last_error(results, "ln", 1), "diverged": last_error(results, "wn", 0)}
    lines = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert lines == PLAIN.format(root=results, left="1:54", **names)


def test_committed_records_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / record.REFERENCE, "ln", steps=40)
    assert status.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = command("rmsexp.status", str(tmp_path / record.REFERENCE))
    assert lines == [f"{tmp_path}: 0 runs", f"left out: the committed records; for them: {shown}"]
    assert status.main([str(tmp_path / record.REFERENCE)]) == 0
    assert "1 finished" in capsys.readouterr().out


def test_the_folder_of_a_single_run_may_be_named(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(results / "cifar10/demo/ln")
    for word in ("seed0", "seed0/", "."):
        assert status.main([word]) == 0
    assert capsys.readouterr().out.count(f"{results}/cifar10/demo") == 3


def test_a_folder_that_does_not_exist_and_watching_without_a_terminal_are_mistakes(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.main(["nowhere"]) == 1
    assert capsys.readouterr().err == "rmsexp: nowhere is no folder; name the folder of your results\n"
    with pytest.raises(SystemExit, match="2"):
        status.main([str(results), "--watch"])
    assert capsys.readouterr().err == "rmsexp: --watch needs a terminal; leave it out\n"


def on_a_terminal(words: list[str], until: bytes, lines: int = 50) -> tuple[int, str]:
    """Run the command on a terminal of 80 columns, and press Ctrl-C when it has printed ``until``.

    Return its exit status and its output.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "rmsexp.status", *words]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], start_new_session=True, env=environment | {"TERM": "xterm"}, **streams
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            output += os.read(ours, 1 << 16)
        except OSError:  # the command has closed the terminal
            break
        if until in output:
            os.write(ours, b"\x03")
            until = b"nothing else"
    os.close(ours)
    return process.wait(), output.decode()


def test_what_needs_attention_is_watched_on_a_small_terminal_until_ctrl_c(results: Path) -> None:
    """Lines beyond the last one of the terminal are not shown."""
    with record.RunFolder(results / "cifar10/demo/ln/seed1").lock.held():
        exit_status, output = on_a_terminal([str(results), "--watch"], b"damaged records\x1b", lines=14)
    assert (exit_status, output.count("Traceback")) == (130, 0)
    assert output.endswith("rmsexp: interrupted\r\n")
    shown = output.partition("...")[0]  # rich's mark of further lines; at Ctrl-C it prints them, too
    assert all(f"{state}\x1b" in shown for state in ("running", "failed", "damaged records"))
    assert "finished\x1b" not in shown


def test_lines_fit_a_terminal_of_80_columns(results: Path) -> None:
    write_run(results, "rms", steps=40, status="diverged", setting=f"small+{'x' * 100}")
    exit_status, output = on_a_terminal([str(results)], b"nothing")
    assert exit_status == 0
    assert "\x1b[1;31mfailed" in output
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    assert max(map(len, plain.splitlines())) <= 80
    assert "the loss is not finite" in " ".join(plain.split())
