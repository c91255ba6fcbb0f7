"""The command ``rmsexp``: its first word names another command, or all words describe runs."""

import sys
from collections.abc import Sequence
from importlib import import_module

import pytest

from rmsexp.__main__ import COMMANDS, main
from rmsexp.commands import run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gets_all_words_after_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def record_call(argv: Sequence[str] | None = None) -> int:
        calls.append(list(argv or []))
        return 3

    monkeypatch.setattr(import_module(f"rmsexp.commands.{command}"), "main", record_call)
    assert main([command, "-m", "norm=ln,rms", "timing"]) == 3
    monkeypatch.setattr(sys, "argv", ["rmsexp", command])
    assert main() == 3
    assert calls == [["-m", "norm=ln,rms", "timing"], []]


@pytest.mark.parametrize(
    "words",
    [[], ["norm=ln", "timing"], ["-m", "timing"], ["--help"], ["+norm.p=1"], ["~norm"], ["hydra/launcher=joblib"]],
    ids=" ".join,
)
def test_other_words_belong_to_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Sequence[str]] = []
    monkeypatch.setattr(run, "main", lambda argv: calls.append(argv) or 0)
    assert main(words) == 0
    assert calls == [words]


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("timings", "; did you mean timing?"), ("rms", "; did you mean norm=rms?"), ("xyz", ""), ("", "")],
)
def test_an_unknown_command_is_reported_in_one_line(
    word: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "rms"]) == 2
    out, err = capsys.readouterr()
    names = "campaign, timing, bench, report, status, analysis, translate, generate, prepare, swap"
    assert (out, err) == ("", f"rmsexp: {word!r} is no command and no KEY=VALUE{suggestion} (commands: {names})\n")
